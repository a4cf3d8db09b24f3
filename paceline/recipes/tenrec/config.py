"""What a tenrec configuration may say, what contradicts itself in it, and the recipe's entry in the registry. No torch, no numpy.

paceline train tenrec model.mixer=fastformer model.layers=4 data.negatives=63
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Annotated, Literal

from pydantic import Field

from paceline.config import sections
from paceline.config.sections import IDENTITY, Section, key
from paceline.errors import Problem
from paceline.recipes.heads import check_heads
from paceline.recipes.tenrec.data_config import Data, find_idle_data
from paceline.recipes.tenrec.source import find_table, identify_generated, identify_table
from paceline.workload import Recipe, Workload

_RANKER = ("model.mixer", "model.heads", "loss.smoothing", "loss.list_weight", "data.negatives", "data.recorded")
_RANKER_ONLY = (*_RANKER, "evaluate.negatives", "evaluate.retrieval", "evaluate.retrieved")
_TOWERS_ONLY = ("model.temperature", "loss.negatives", "loss.num_sampled", "loss.popularity_power")
_TILE = 16
"""see isolation.py"""


class Model(Section):
    kind: Literal["ranker", "towers"] = key(
        "ranker",
        "ranker: history and candidates together, a score per candidate and action; towers: user and item apart, for retrieval.",
        IDENTITY,
    )
    mixer: Literal["transformer", "fastformer"] = key(
        "transformer",
        "For ranker: how a layer mixes; attention, or Fastformer's two global vectors. Candidates never see each other.",
        IDENTITY,
    )
    width: int = key(64, "Width of embeddings and states; for towers that of the vectors, too.", IDENTITY, ge=1)
    layers: int = key(2, "Layers of the ranker; for towers, of each tower.", IDENTITY, ge=1)
    heads: int = key(4, "For ranker: heads that share the width.", IDENTITY, ge=1)
    feed_forward: int | None = key(None, "Hidden width of the feed-forward layers; null: 4 × width.", IDENTITY, ge=1)
    dropout: float = key(
        0.0, "Share of activations zeroed after the embedding and in each residual branch.", IDENTITY, ge=0, lt=1
    )
    temperature: float = key(
        0.1,
        "For towers: what the product of two vectors of length 1 is divided by; smaller is sharper.",
        IDENTITY,
        ge=0.001,
    )
    hash_rows: int | None = key(
        None,
        "Rows of the item embedding, of which each item has the sum of two, found by hashing; null: one row for each item.",
        IDENTITY,
        ge=2,
    )

    @property
    def hidden_width(self) -> int:
        return self.feed_forward or 4 * self.width


class Loss(Section):
    smoothing: float = key(
        0.1, "For ranker: share of a list's target that is spread evenly over its candidates.", IDENTITY, ge=0, lt=1
    )
    list_weight: float = key(
        0.2,
        "For ranker: weight of telling the clicked candidate from the sampled ones, beside the actions of the recorded rows.",
        IDENTITY,
        ge=0,
    )
    negatives: Literal["in_batch", "sampled"] = key(
        "in_batch",
        "For towers: what the clicked item is told from; the items of the step's other samples, or items drawn for the step. Both are "
        "corrected for how likely each was to be there.",
        IDENTITY,
    )
    num_sampled: int = key(512, "For towers with negatives sampled: how many a step draws.", IDENTITY, ge=1)
    popularity_power: float = key(
        0.5,
        "For towers with negatives sampled: items are drawn by their clicks in training to this power; 0: all alike, 1: as clicked.",
        IDENTITY,
        ge=0,
        le=1,
    )


class Evaluate(sections.Evaluate):
    top_k: list[Annotated[int, Field(ge=1)]] = key(
        [10],
        "Cut-offs of Hit@k and NDCG@k; the objective of towers is NDCG at the first one.",
        IDENTITY,
        min_length=1,
    )
    negatives: int = key(
        99,
        "For ranker: candidates beside the positive one of each list, whatever data.negatives is: runs with other ones are comparable.",
        IDENTITY,
        ge=1,
    )
    retrieval: str | None = key(
        None,
        "For ranker: the run of towers trained on the same data that finds its candidates; null: lists alone. With it both stages "
        "together, retrieval alone and popularity are evaluated.",
        IDENTITY,
        min_length=1,
    )
    retrieved: int = key(50, "For retrieval: how many items the towers find, of the whole catalogue.", IDENTITY, ge=1)


class TenrecConfig(sections.RunConfig):
    """A whole tenrec configuration."""

    recipe: Literal["tenrec"] = key(..., "Which recipe trains.", IDENTITY)
    data: Data = key(Data(), "Impressions with what came of them, prepared or generated.")
    model: Model = key(Model(), "The ranker, or the two towers.")
    loss: Loss = key(Loss(), "What is minimised.")
    evaluate: Evaluate = key(Evaluate(), "When and how to evaluate.")


def build(config: TenrecConfig) -> Workload:
    if config.model.kind == "ranker":
        from paceline.recipes.tenrec.workload import RankerWorkload

        return RankerWorkload(config)
    from paceline.recipes.tenrec.towers_workload import build_towers_workload

    return build_towers_workload(config)


def identify_data(config: TenrecConfig) -> str:
    """A digest of the prepared rows' content, or of all that generated ones follow from."""
    data = config.data
    if data.path is not None:
        return identify_table(find_table(data.path, data.max_users))
    return identify_generated(data.users, data.items, data.rows, data.seed)


def check(config: TenrecConfig) -> list[Problem]:
    """Contradictions that types alone cannot see."""
    return [*_check_model(config.model), *_check_loss(config), *_check_evaluate(config.evaluate)]


def _check_model(model: Model) -> Iterator[Problem]:
    if model.kind == "ranker":
        yield from check_heads(model.width, model.heads)
    for name, width in (("width", model.width), ("feed_forward", model.hidden_width)):
        if model.kind == "ranker" and width % _TILE:
            yield Problem(
                f"model.{name}={width} is no multiple of {_TILE}, with which a candidate's score would depend on its place in the last digits",
                f"model.{name}",
                f"set model.{name}={-(-width // _TILE) * _TILE}",
            )


def _check_loss(config: TenrecConfig) -> Iterator[Problem]:
    is_in_batch = config.model.kind == "towers" and config.loss.negatives == "in_batch"
    if is_in_batch and config.train.global_batch < 2:
        what = f"train.global_batch={config.train.global_batch} leaves nothing to tell a clicked item from"
        yield Problem(what, "train.global_batch", "set train.global_batch=2 or more, or loss.negatives=sampled")
    data = config.data
    if config.model.kind == "ranker" and not data.num_recorded:
        yield Problem(
            f"data.recorded={data.recorded:g} of data.negatives={data.negatives} is less than one row: without any that nothing came of, "
            "the ranker would learn that everything is clicked",
            "data.recorded and data.negatives",
            f"set data.recorded={min(1.0, max(0.5, 1 / data.negatives)):g} or more",
        )


def _check_evaluate(evaluate: Evaluate) -> Iterator[Problem]:
    top_k = evaluate.top_k
    if len(set(top_k)) < len(top_k):
        distinct = list(dict.fromkeys(top_k))
        yield Problem(
            f"evaluate.top_k={top_k} names a cut-off twice", "evaluate.top_k", f"set evaluate.top_k={distinct}"
        )
    if evaluate.retrieval is not None and evaluate.retrieved < max(top_k):
        yield Problem(
            f"evaluate.retrieved={evaluate.retrieved} items cannot fill evaluate.top_k={top_k}",
            "evaluate.retrieved and evaluate.top_k",
            f"set evaluate.retrieved={max(top_k)} or more",
        )


def find_idle(config: TenrecConfig, given: Collection[str]) -> Iterator[tuple[str, str]]:
    """What was given and changes nothing, with the reason."""
    return ((name, reason) for name, reason in _list_idle(config) if name in given)


def _list_idle(config: TenrecConfig) -> Iterator[tuple[str, str]]:
    yield from find_idle_data(config.data)
    yield "attention.impl", "the mixers of this recipe are its own: candidates look at the context and themselves"
    if config.model.kind == "towers":
        yield from ((name, "model.kind=towers has none") for name in _RANKER_ONLY)
    else:
        yield from ((name, "model.kind=ranker has none") for name in _TOWERS_ONLY)
        if config.evaluate.retrieval is None:
            yield "evaluate.retrieved", "evaluate.retrieval is null"
    if config.loss.negatives == "in_batch":
        yield from ((f"loss.{name}", "loss.negatives=in_batch") for name in ("num_sampled", "popularity_power"))


RECIPE = Recipe(
    name="tenrec", schema=TenrecConfig, build=build, identify_data=identify_data, check=check, find_idle=find_idle
)
