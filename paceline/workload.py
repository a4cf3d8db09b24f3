"""What the engine asks of a recipe, and nothing more; annotations only, so that importing this file does not import torch.

A recipe is registered as a `Recipe` (no torch: its name, its configuration schema, where its workload lives, what identifies its data)
and builds a `Workload` in the worker process. A recipe's classes may inherit from `Workload` and `SampleSet`: what has a default here then
need not be written. docs/recipes.md shows a whole one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from paceline.config.sections import RunConfig
from paceline.errors import UsageError

if TYPE_CHECKING:
    import numpy as np
    import torch

Batch = Any
"""A dictionary of tensors (and plain values): what the engine moves to the device and hands back to the workload."""


@dataclass(frozen=True)
class Draw:
    """What randomness may depend on: seed, epoch and sample, or all samples of the step; never the rank, nor its part of them."""

    seed: int
    epoch: int
    batch: Sequence[int] = ()
    """the samples of the step's whole batch, the same on every rank: for what a step draws once; empty in an evaluation"""


class SampleSet(Protocol):
    """Samples that can be fetched by their index, many at a time."""

    def __len__(self) -> int: ...

    def fetch(self, ids: Sequence[int], draw: Draw) -> Batch:
        """The collated batch of these samples. Runs in loader processes too; must not touch a global random generator."""
        ...

    def on_device(self, device: torch.device) -> SampleSet | None:
        """The same samples, kept on the device and fetched there; None: they are fetched on the host, by loader processes if asked."""
        return None


@runtime_checkable
class Weighed(Protocol):
    """What a sample set has besides, where fetching is work: files to read, sound to decode, text to cut."""

    is_heavy: bool
    """whether `fetch` is worth processes of its own (`data.num_workers=auto`); light without this: slices of arrays in memory"""


@runtime_checkable
class Measured(Protocol):
    """What a sample set has besides, where samples are of many lengths, and those of one micro-step had better be alike."""

    def lengths(self, ids: Sequence[int], draw: Draw) -> np.ndarray:
        """How long each of these samples will be in this epoch: a number each, the same on every rank and in every start; reads no file.

        The engine sorts the samples of a step by it where the loss is that of the whole step (`Contrasts`), and nowhere else.
        """
        ...


@dataclass(frozen=True)
class Objective:
    """The metric that decides which model is best."""

    metric: str
    direction: str
    """max or min"""

    def better(self, value: float, best: float | None, min_delta: float = 0.0) -> bool:
        if value != value:  # not a number never wins
            return False
        if best is None:
            return True
        return value > best + min_delta if self.direction == "max" else value < best - min_delta


@dataclass(frozen=True)
class Sizes:
    """What `explain` and the run's plan say about a workload."""

    num_parameters: int
    num_train: int
    num_evaluate: Mapping[str, int]
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Setting:
    """What the engine tells a workload about where it runs, before anything is built."""

    device: torch.device
    attention: str
    """the effective kernel: eager, sdpa or flex; own: every attention is the recipe's. Which backends SDPA may use is the engine's business"""
    needs_even_calls: bool = False
    """in a training forward, the elements of the model's lists of modules are called equally often on all ranks, whatever their batches:
    the weights of such a block travel when it is called. Evaluations may do as they like"""
    precision: str = "fp32"
    """what matrix products and attention compute in: fp32, bf16 or fp16"""
    micro_batch: int = 1
    """samples of a rank's largest micro-step"""
    settled: Mapping[str, Any] = field(default_factory=dict)
    """what the workload itself settled for all ranks and every start of the run (`Settles`); outside a training what of it holds here"""


@dataclass(frozen=True)
class AttentionCall:
    """The largest attention of one phase, or of one branch there, as its kernel sees it; the type of its numbers follows from the precision."""

    phase: str
    """training, with a backward, or evaluation"""
    rows: int
    heads: int
    queries: int
    keys: int
    width: int
    """of a head"""
    is_causal: bool = False
    mask: str = "none"
    """besides: none, boolean, or bias (numbers added to the scores)"""
    dropout: float = 0.0
    kernels: Collection[str] = ("eager", "sdpa", "flex")
    """those that the recipe has for it"""
    why: str = ""
    """why not the others; of the recipe's own, what decides"""
    name: str = ""
    """which of several attentions of the model: one word, the same in every phase"""
    own: str = ""
    """what of the recipe's own computes it: one word, with which the names of its kernels begin; torch: nothing but torch's operators.
    Empty: one of the engine's kernels"""

    @property
    def shape(self) -> str:
        """In words, without the phase."""
        size = f"{self.rows} rows × {self.heads} heads, {self.queries} × {self.keys}, width {self.width}"
        words = [f"{self.name}: {size}" if self.name else size]
        words += ["causal"] if self.is_causal else []
        words += [f"{self.mask} mask"] if self.mask != "none" else []
        words += [f"dropout {self.dropout:g}"] if self.dropout else []
        return ", ".join(words)

    def __str__(self) -> str:
        return f"{self.phase}: {self.shape}"


@runtime_checkable
class Attends(Protocol):
    """What a workload has besides, where its model has attention: what torch is asked about before anything runs."""

    def attention_calls(self, device_type: str, micro_batch: int, block: int) -> Sequence[AttentionCall]:
        """For a full micro-batch of so many samples, and for an evaluation block; empty where there is none."""
        ...


@dataclass(frozen=True)
class Choice:
    """Something that a recipe decides for itself."""

    about: str
    """a key, or what it is about"""
    requested: Any
    effective: Any
    reason: str


@runtime_checkable
class Chooses(Protocol):
    """What a workload has besides, where it makes choices of its own that a run's events must tell of."""

    def choices(self, setting: Setting) -> Sequence[Choice]:
        """For the place where it runs, the same on every rank; ConfigError where nothing is left to choose."""
        ...


@runtime_checkable
class Settles(Protocol):
    """What a workload has besides, where numbers depend on what is neither in its configuration nor the same at every start: what was
    measured on this machine, what lies in somebody's cache."""

    def settle(self, setting: Setting, before: Mapping[str, Any]) -> Mapping[str, Any]:
        """What `choices` and `build_model` will find in `setting.settled`, on every rank: plain JSON, kept in the run's checkpoints.

        Asked of rank 0 alone, no collectives, and before random numbers are seeded. `before` is what the run went by so far, empty at its
        first start: it is to be kept to, unless the configuration asks for something else now, or it cannot be had here.
        """
        ...

    def keep(self, setting: Setting, before: Mapping[str, Any]) -> Mapping[str, Any]:
        """The same for a model that was trained and is only used, such as evaluated: what of a checkpoint's holds here.

        Nothing is measured or found anew for it.
        """
        ...


class Workload(Protocol):
    """One recipe with one configuration, inside a worker process."""

    objective: Objective
    metric_names: Sequence[str]
    """what `metrics` returns, in the order of validation.csv's columns"""
    unit: str = "samples"
    """what throughput counts besides samples: items, tokens, audio seconds"""
    splits: Sequence[str]
    """evaluation sets; the first one decides (best, early stop), the others are evaluated once at the end"""
    has_static_shapes: bool = False
    """on a GPU, batches of as many samples are flat dictionaries of tensors of the same shapes, and `loss` neither waits for the device
    nor looks at values on the host: what a CUDA graph asks for"""
    draws_numbers: bool = True
    """the forward pass of training draws random numbers, as dropout does"""

    def build_model(self, setting: Setting) -> torch.nn.Module:
        """The model, on the CPU, initialised from torch's global generator (the engine has seeded it)."""
        ...

    def train_set(self) -> SampleSet: ...

    def evaluation_set(self, split: str) -> SampleSet: ...

    def loss(self, model: torch.nn.Module, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        """(sum of losses, weight) of a batch, both scalars on the device; the engine divides by the global weight.

        `model` may be wrapped for data parallelism: call it, do not reach into it. Not asked of a workload that `Contrasts`.
        """
        # A body that type checkers do not take for abstract: who contrasts need not have it, and `check_workload` asks the others for it.
        raise AssertionError("a workload that contrasts was asked for the loss of a batch")

    def units(self, ids: Sequence[int]) -> int:
        """How many units of throughput these training samples hold, counted on the host."""
        return len(ids)

    def predict(self, model: torch.nn.Module, batch: Batch) -> Mapping[str, torch.Tensor]:
        """Per-sample outputs of an evaluation batch (first dimension: samples), small enough to gather from all ranks."""
        ...

    def metrics(self, split: str, outputs: Mapping[str, np.ndarray]) -> Mapping[str, float]:
        """Metrics from the outputs of all samples of the split, in the order of their ids; NaN where one is not defined.

        Floats come as float64, everything else as int64. Asked of one rank alone: no collectives.
        """
        ...

    def baseline(self, split: str, num_samples: int) -> tuple[str, Mapping[str, float]] | None:
        """The name of a trivial model that every trained one must beat, and its metrics on the first samples of a split; or None."""
        return None

    def observe(self, model: torch.nn.Module) -> Mapping[str, float]:
        """Figures about the model worth a line at each evaluation of the deciding split; empty where there are none.

        Asked of one rank alone: no collectives.
        """
        return {}

    def step_flops(self, num_units: int) -> float | None:
        """Floating-point operations of forward and backward for so many units; None where unknown."""
        return None

    def details(self) -> Mapping[str, Any]:
        """Sizes worth printing: items, users, longest sequence …"""
        return {}


@dataclass(frozen=True)
class Embedded:
    """A batch as a loss of the whole step sees it; both with their history, in floating point."""

    rows: torch.Tensor
    """(samples, …): all that the loss has to know of each, in the order of the batch; of one shape for all samples of a run"""
    shared: torch.Tensor
    """(numbers,): what all samples share, such as a temperature; from the weights alone, never from the batch. May be empty"""


@runtime_checkable
class Contrasts(Protocol):
    """What a workload has in place of `loss`, where a sample's loss depends on all samples of the step."""

    def embed(self, model: torch.nn.Module, batch: Batch) -> Embedded:
        """One batch, by itself: nothing of a sample may depend on which others are in it.

        `model` may be wrapped for data parallelism: call it once, do not reach into it; what is `shared` comes out of its forward, too.
        Called twice for a batch where a step has several micro-steps, the first time without gradient, with the same random numbers.
        """
        ...

    def contrast(self, rows: torch.Tensor, shared: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(sum of losses, weight), both scalars on the device, from all rows of the step, of all ranks. Their order must not matter: it is
        the same on every rank, and that of the step's batch unless samples are `Measured`.

        `rows` and `shared` are in fp32 at least, outside autocast; the same on every rank, and so must be what comes out: no random
        numbers. The engine takes its gradient.
        """
        ...


@runtime_checkable
class Infers(Protocol):
    """What a workload has besides, where `predict` does more than inference: asks another model, looks up what is true."""

    def infer(self, model: torch.nn.Module, batch: Batch) -> Mapping[str, torch.Tensor]:
        """Of what `predict` gives that which the model itself computes: what is compiled, compared and timed before it is served."""
        ...


_REQUIRED = ("build_model", "train_set", "evaluation_set", "loss", "predict", "metrics")


def check_workload(workload: Workload, recipe: str) -> Workload:
    """The same; UsageError, for the author of the recipe, where it is not what the engine will ask of it."""
    where = f"{type(workload).__module__}.{type(workload).__qualname__}, built by the recipe {recipe}"
    asked = {*Workload.__annotations__, *(name for name in vars(Workload) if not name.startswith("_"))}
    if isinstance(workload, Contrasts):
        asked.remove("loss")
    # Inherited, but without a body: whoever calls it gets nothing from it.
    empty = {name for name in _REQUIRED if getattr(type(workload), name, None) is getattr(Workload, name)} & asked
    missing = sorted(name for name in asked if not hasattr(workload, name) or name in empty)
    if missing:
        do = (
            "write them, and inherit from paceline.workload.Workload for those that have a default; see docs/recipes.md"
        )
        raise UsageError(f"the workload has no {', '.join(missing)}", where, do)
    objective = workload.objective
    if objective.metric not in workload.metric_names or objective.direction not in ("max", "min"):
        what = f"the objective {objective.metric} ({objective.direction}) is none of the metrics ({', '.join(workload.metric_names)})"
        raise UsageError(what, where, "name one of metric_names, and max or min")
    return workload


def check_metrics(workload: Workload, split: str, found: Mapping[str, float]) -> dict[str, float]:
    """The same; UsageError, for the author of the recipe, where they are not those that validation.csv has columns for."""
    if set(found) != set(workload.metric_names):
        where = f"{type(workload).__module__}.{type(workload).__qualname__}.metrics({split!r}, …)"
        what = f"the metrics are {', '.join(found)}, and metric_names says {', '.join(workload.metric_names)}"
        raise UsageError(what, where, "return every one of metric_names, and no other")
    return dict(found)


@dataclass(frozen=True)
class Foreign:
    """How a recipe is started that has no workload: a script of somebody's own."""

    start: Callable[[Path, int], list[str]]
    """from a claimed run directory and its attempt: what is started in place of torchrun and the worker"""
    argv: Callable[[Any, Path, int], list[str]]
    """from the configuration, the run directory and the number of ranks: the script's own command line, for people"""


@dataclass(frozen=True)
class Recipe:
    """A recipe as the operator's side sees it; importing it must not import torch."""

    name: str
    schema: type[RunConfig]
    build: Callable[[Any], Workload]
    """from the resolved configuration; imports torch when called"""
    identify_data: Callable[[Any], str]
    """a digest of the data's content (or of what it is generated from); raises DataError if it is not there"""
    check: Callable[[Any], Sequence[Any]] = lambda config: ()
    """further `errors.Problem`s of a configuration that types alone cannot see"""
    find_idle: Callable[[Any, Collection[str]], Iterable[tuple[str, str]]] = lambda config, given: ()
    """(key, reason) of the recipe's own keys that somebody gave and that change nothing"""
    heeds: Callable[[Any], Collection[str]] = lambda config: ()
    """the engine's keys that the recipe itself goes by: they are never said to change nothing"""
    config_file: Path | None = None
    """the YAML that the recipe's name stands for, where it does not lie in configs/; None: the defaults of the schema"""
    foreign: Foreign | None = None
    """what is started instead, where there is no workload to build"""


@dataclass(frozen=True)
class Recommended:
    """One item, by the name that the data has for it."""

    item: str
    title: str | None
    score: float | None
    """None: it stands in a history, and was not scored"""


@dataclass(frozen=True)
class Recommendation:
    """What a model would show next, best first, and the history that it looked at, oldest first."""

    user: str | None
    """None: the history was given"""
    history: list[Recommended]
    items: list[Recommended]
    note: str = ""
    """what there is to say about it, such as titles that could not be read"""


@runtime_checkable
class Recommends(Protocol):
    """What a workload has besides, where its model recommends."""

    def recommend(
        self, model: torch.nn.Module, *, user: str | None, history: Sequence[str] | None, top: int, keep_seen: bool
    ) -> Recommendation:
        """For a user of the data, or for whoever has the history given; UsageError for a name that the data does not have."""
        ...


@dataclass(frozen=True)
class Sampled:
    """What a model wrote after a prompt."""

    prompt: str
    text: str
    """the prompt not included"""
    num_prompt: int
    num_tokens: int
    """of the text"""
    bytes_per_token: float
    """what attention read of the caches for each of them"""
    note: str = ""
    """what there is to say about it"""


@runtime_checkable
class Samples(Protocol):
    """What a workload has besides, where its model writes."""

    def sample(
        self, model: torch.nn.Module, prompt: str, *, tokens: int, temperature: float, top: int | None, seed: int
    ) -> Sampled:
        """At most so many tokens after the prompt; temperature 0: always the likeliest; UsageError where the data is no text."""
        ...
