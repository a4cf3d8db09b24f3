"""What a sasrec configuration may say, what contradicts itself in it, and the recipe's entry in the registry. No torch, no numpy.

paceline train sasrec data.path=ratings.dat loss.kind=bce evaluate.top_k=[10,20]
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Annotated, Literal

from pydantic import Field

from paceline.config import sections
from paceline.config.sections import IDENTITY, Bool, Section, key
from paceline.errors import Problem
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


class Model(Section):
    width: int = key(64, "Width of embeddings and hidden states.", IDENTITY, ge=1)
    blocks: int = key(2, "Transformer blocks.", IDENTITY, ge=1)
    heads: int = key(2, "Attention heads; they share the width.", IDENTITY, ge=1)
    feed_forward: int | None = key(None, "Hidden width of the feed-forward layers; null: 4 × width.", IDENTITY, ge=1)
    dropout: float = key(
        0.2, "Share of activations zeroed after the embedding and in each residual branch.", IDENTITY, ge=0, lt=1
    )


class Loss(Section):
    kind: Literal["ce", "bce"] = key(
        "ce", "ce: softmax over the whole catalogue; bce: the next item against sampled ones, each yes or no.", IDENTITY
    )
    num_negatives: int | None = key(
        None, "For kind bce: sampled items per position, uniform over all others; null: 1.", IDENTITY, ge=1
    )


class Evaluate(sections.Evaluate):
    top_k: list[Annotated[int, Field(ge=1)]] = key(
        [10], "Cut-offs of HR@k and NDCG@k; NDCG at the first one decides which model is best.", IDENTITY, min_length=1
    )
    mask_seen: Bool = key(
        False,
        "Leave items the user already had out of the ranking. An answer that is such an item then counts as missed: a system "
        "that filters seen items could not have shown it. false: repeats are answers like any other.",
        IDENTITY,
    )


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
    problems = []
    model, top_k = config.model, config.evaluate.top_k
    if model.width % model.heads:
        fitting = [heads for heads in range(1, model.width + 1) if model.width % heads == 0]
        nearest = min(fitting, key=lambda heads: abs(heads - model.heads))
        wider = -(-model.width // model.heads) * model.heads
        problems.append(
            Problem(
                f"model.width={model.width} cannot be shared among model.heads={model.heads} "
                f"({model.width} = {model.width // model.heads} × {model.heads} + {model.width % model.heads})",
                "model.width and model.heads",
                f"set model.heads={nearest}, or model.width={wider}",
            )
        )
    if len(set(top_k)) < len(top_k):
        distinct = list(dict.fromkeys(top_k))
        problems.append(
            Problem(f"evaluate.top_k={top_k} names a cut-off twice", "evaluate.top_k", f"set evaluate.top_k={distinct}")
        )
    return problems


def find_idle(config: SasrecConfig, given: Collection[str]) -> Iterator[tuple[str, str]]:
    """What was given and changes nothing, with the reason."""
    idle: list[tuple[str, str]] = []
    if config.loss.kind == "ce":
        idle += [("loss.num_negatives", "loss.kind=ce scores the whole catalogue")]
    if config.data.path is not None:
        idle += [(f"data.{name}", "data.path is given") for name in ("users", "items", "events_per_user", "seed")]
    else:
        idle += [("data.format", "generated data has none")]
    return ((name, reason) for name, reason in idle if name in given)


RECIPE = Recipe(
    name="sasrec",
    schema=SasrecConfig,
    build=build,
    identify_data=identify_data,
    check=check,
    find_idle=find_idle,
)
