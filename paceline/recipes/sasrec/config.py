"""What a sasrec configuration may say, what contradicts itself in it, and the recipe's entry in the registry. No torch, no numpy.

paceline train sasrec data.path=ratings.dat loss.kind=bce evaluate.top_k=[10,20]
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Annotated, Literal

from pydantic import Field

from paceline.config import sections
from paceline.config.sections import IDENTITY, NUMERICS, Bool, Section, key
from paceline.errors import Problem
from paceline.recipes.heads import check_heads
from paceline.recipes.sasrec.source import identify_file, identify_generated
from paceline.workload import Recipe, Workload

GENERATOR_VERSION = 1
"""Raised whenever generate.py draws other data from the same numbers: old runs then know that the data is not theirs."""


class Data(sections.Data):
    # Path and format are free: the digest of the content (Recipe.identify_data) identifies the data.
    path: str | None = key(None, "File of interactions; null: generated data.", min_length=1)
    format: Literal["auto", "text", "inter", "movielens"] = key(
        "auto",
        "text: `user item [timestamp]` per line; inter: RecBole; movielens: ratings.dat or ratings.csv; auto: by suffix and first line.",
    )
    users: int = key(2000, "Generated data: users.", IDENTITY, ge=1)
    items: int = key(1000, "Generated data: items.", IDENTITY, ge=10)
    events_per_user: int = key(
        50, "Generated data: mean number of events per user; lengths vary, 3 at least.", IDENTITY, ge=4
    )
    seed: int = key(
        0,
        "Generated data: its seed, apart from run.seed, so that several seeds train on the same data.",
        IDENTITY,
        ge=0,
    )
    min_events: int = key(
        1, "Users with fewer events are left out, and items that nobody else has with them.", IDENTITY, ge=1
    )
    max_length: int = key(
        50, "At most this many events, the latest ones, are looked at for a prediction.", IDENTITY, ge=1
    )
    window: Literal["last", "random"] = key(
        "last",
        "Which part of a longer training history an epoch shows: the latest events, or a stretch drawn anew each epoch.",
        IDENTITY,
    )
    placement: Literal["device", "host"] = key(
        "device",
        "Where the sequences live: device: all of them beside the model, and a batch is a gather there; host: in main memory, "
        "fetched by loader processes, for data that does not fit.",
        NUMERICS,
    )


class Model(Section):
    time: Bool = key(
        False,
        "Look at the time between events, in units of each user's own pace (TiSASRec); needs timestamps.",
        IDENTITY,
    )
    mhc: Bool = key(
        False,
        "Several residual streams that layers read from and write to by learned, constrained mixing (mHC).",
        IDENTITY,
    )
    width: int = key(64, "Width of embeddings and hidden states.", IDENTITY, ge=1)
    blocks: int = key(2, "Transformer blocks.", IDENTITY, ge=1)
    heads: int = key(2, "Attention heads; they share the width.", IDENTITY, ge=1)
    feed_forward: int | None = key(None, "Hidden width of the feed-forward layers; null: 4 × width.", IDENTITY, ge=1)
    activation: Literal["gelu", "relu", "swiglu"] = key("gelu", "Inside the feed-forward layers.", IDENTITY)
    norm: Literal["pre", "post"] = key("pre", "Normalise what a layer reads, or what it leaves.", IDENTITY)
    positions: Literal["learned", "rotary"] = key(
        "learned", "How the place in the sequence is told: an embedding each, or turned queries and keys.", IDENTITY
    )
    dropout: float = key(
        0.2, "Share of activations zeroed after the embedding and in each residual branch.", IDENTITY, ge=0, lt=1
    )
    attention_dropout: float = key(0.0, "Share of attention weights zeroed.", IDENTITY, ge=0, lt=1)
    scores: Literal["product", "cosine"] = key(
        "product",
        "The score of an item: its embedding times the hidden state, or the cosine of the two / temperature.",
        IDENTITY,
    )
    temperature: float = key(0.05, "For scores cosine: smaller is sharper.", IDENTITY, ge=0.001)
    time_span: int = key(
        256,
        "For time: intervals are told apart up to this many units; longer ones count as this.",
        IDENTITY,
        ge=1,
        le=65_536,
    )
    time_bins: Literal["linear", "log"] = key(
        "linear", "For time: one bin per unit, or bins that widen with the interval.", IDENTITY
    )
    streams: int = key(4, "For mhc: residual streams.", IDENTITY, ge=1, le=16)
    sinkhorn_iterations: int = key(
        20, "For mhc: rounds of making the residual mixing doubly stochastic.", IDENTITY, ge=1
    )
    mhc_gate: float = key(0.01, "For mhc: how much the mixing depends on the state at first.", IDENTITY, ge=0)
    mhc_fp32: Bool = key(
        False,
        "For mhc: keep the streams in fp32, also where the rest runs in half precision. How they mix is computed in fp32 either way.",
        NUMERICS,
    )


class Loss(Section):
    kind: Literal["ce", "sampled_softmax", "bce", "gbce"] = key(
        "ce",
        "ce: softmax over the whole catalogue; sampled_softmax: over the answer and sampled items, corrected for how they were "
        "drawn; bce: the answer against sampled items, each yes or no; gbce: bce with the answer's term tempered for the sampling.",
        IDENTITY,
    )
    num_negatives: int | None = key(
        None, "Sampled items per position; null: 1 for bce, 256 for gbce and sampled_softmax.", IDENTITY, ge=1
    )
    negatives: Literal["uniform", "popularity", "in_batch"] = key(
        "uniform",
        "How they are drawn: all alike, as often as they occur in training, or from the events of the step's own samples.",
        IDENTITY,
    )
    shared: Bool = key(
        False,
        "All positions of a step share one set of sampled items: one product instead of many. in_batch always does.",
        IDENTITY,
    )
    calibration: float = key(
        0.75, "For gbce: from 0, plain bce, to 1, scores that are calibrated probabilities.", IDENTITY, ge=0, le=1
    )

    @property
    def count(self) -> int:
        """Sampled items per position."""
        return self.num_negatives or (1 if self.kind == "bce" else 256)

    @property
    def is_shared(self) -> bool:
        """Whether all positions of a step have the same sampled items."""
        return self.kind != "ce" and (self.shared or self.negatives == "in_batch")


class Evaluate(sections.Evaluate):
    top_k: list[Annotated[int, Field(ge=1)]] = key(
        [10],
        "Cut-offs of HR@k, NDCG@k and MRR@k; NDCG at the first one decides which model is best.",
        IDENTITY,
        min_length=1,
    )
    mask_seen: Bool = key(
        False,
        "Leave items the user already had out of the ranking. An answer that is such an item then counts as missed: a system "
        "that filters seen items could not have shown it. false: repeats are answers like any other.",
        IDENTITY,
    )
    candidates: Literal["all", "sampled"] = key(
        "all",
        "Rank the answer among the whole catalogue, or among sampled items that the user never had, as older papers did; "
        "figures of the two do not compare.",
        IDENTITY,
    )
    num_candidates: int = key(100, "For candidates sampled: how many besides the answer.", IDENTITY, ge=1)


class SasrecConfig(sections.RunConfig):
    """A whole sasrec configuration."""

    recipe: Literal["sasrec"] = key(..., "Which recipe trains.", IDENTITY)
    data: Data = key(Data(), "Interactions, read or generated.")
    model: Model = key(Model(), "The transformer.")
    loss: Loss = key(Loss(), "What is minimised.")
    evaluate: Evaluate = key(Evaluate(), "When and how to evaluate.")


def build(config: SasrecConfig) -> Workload:
    from paceline.recipes.sasrec.workload import SasrecWorkload

    return SasrecWorkload(config)


def identify_data(config: SasrecConfig) -> str:
    """A digest of the file's content, or of all that generated data follows from."""
    data = config.data
    if data.path is not None:
        return identify_file(data.path, data.format)
    return identify_generated(
        GENERATOR_VERSION, users=data.users, items=data.items, events_per_user=data.events_per_user, seed=data.seed
    )


def check(config: SasrecConfig) -> list[Problem]:
    """Contradictions that types alone cannot see."""
    return [*_check_model(config), *_check_loss(config.loss), *_check_evaluate(config.evaluate)]


def _check_model(config: SasrecConfig) -> Iterator[Problem]:
    model = config.model
    yield from check_heads(model.width, model.heads)
    is_strict = config.attention.fallback == "error"
    if config.attention.impl == "flex" and is_strict and model.attention_dropout and not model.time:
        yield Problem(
            f"model.attention_dropout={model.attention_dropout} with attention.impl=flex, which cannot drop attention weights",
            "model.attention_dropout, attention.impl and attention.fallback=error",
            "set model.attention_dropout=0, or attention.impl=sdpa",
        )


def _check_loss(loss: Loss) -> Iterator[Problem]:
    if loss.kind in ("bce", "gbce") and loss.negatives != "uniform":
        yield Problem(
            f"loss.negatives={loss.negatives} with loss.kind={loss.kind}, which knows no correction for how often an item is drawn",
            "loss.negatives and loss.kind",
            "set loss.negatives=uniform, or loss.kind=sampled_softmax",
        )


def _check_evaluate(evaluate: Evaluate) -> Iterator[Problem]:
    top_k = evaluate.top_k
    if len(set(top_k)) < len(top_k):
        distinct = list(dict.fromkeys(top_k))
        yield Problem(
            f"evaluate.top_k={top_k} names a cut-off twice", "evaluate.top_k", f"set evaluate.top_k={distinct}"
        )
    if evaluate.candidates == "sampled" and evaluate.mask_seen:
        yield Problem(
            "evaluate.mask_seen=true with evaluate.candidates=sampled, which are never items that the user had",
            "evaluate.mask_seen and evaluate.candidates",
            "set evaluate.mask_seen=false",
        )


def find_idle(config: SasrecConfig, given: Collection[str]) -> Iterator[tuple[str, str]]:
    """What was given and changes nothing, with the reason."""
    return ((name, reason) for name, reason in _list_idle(config) if name in given)


def _list_idle(config: SasrecConfig) -> Iterator[tuple[str, str]]:
    data, model, loss = config.data, config.model, config.loss
    if data.path is not None:
        yield from ((f"data.{name}", "data.path is given") for name in ("users", "items", "events_per_user", "seed"))
    else:
        yield "data.format", "generated data has none"
    if data.placement == "device":
        yield "data.num_workers", "data.placement=device needs no loader processes"
    if model.time:
        yield "attention.impl", "model.time=true has an attention of its own"
    else:
        yield from ((f"model.{name}", "model.time=false") for name in ("time_span", "time_bins"))
    if not model.mhc:
        for name in ("streams", "sinkhorn_iterations", "mhc_gate", "mhc_fp32"):
            yield f"model.{name}", "model.mhc=false"
    if model.scores == "product":
        yield "model.temperature", "model.scores=product has none"
    if loss.kind == "ce":
        for name in ("num_negatives", "negatives", "shared"):
            yield f"loss.{name}", "loss.kind=ce scores the whole catalogue"
    elif loss.negatives == "in_batch":
        yield "loss.shared", "loss.negatives=in_batch is always shared"
    if loss.kind != "gbce":
        yield "loss.calibration", f"loss.kind={loss.kind} has none"
    if config.evaluate.candidates == "all":
        yield "evaluate.num_candidates", "evaluate.candidates=all ranks the whole catalogue"


RECIPE = Recipe(
    name="sasrec",
    schema=SasrecConfig,
    build=build,
    identify_data=identify_data,
    check=check,
    find_idle=find_idle,
)
