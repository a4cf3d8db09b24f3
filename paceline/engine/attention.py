"""Which attention a run uses, and why: one decision for all ranks, asked of torch for the shapes that the run will have.

    auto        below compute capability 8.0 eager, else SDPA; what is excluded or refused is passed over
    a request   served, or attention.fallback decides: what auto would take, said with the reason; or an error

A recipe hears of eager, sdpa or flex. What SDPA may use is set for the whole process, so that training, evaluation, recomputation and
graphs cannot differ. What a recipe computes by kernels of its own is recorded, and nothing is asked about it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from paceline.config.arithmetic import plan_batches
from paceline.config.sections import Attention as AttentionSection
from paceline.config.sections import RunConfig
from paceline.engine.backends import BACKENDS, NOT_ON_CPU, allow_only, find_refusals, find_selected
from paceline.engine.precision import DTYPES
from paceline.engine.promise import write_promise
from paceline.engine.ranks import Ranks
from paceline.errors import ConfigError
from paceline.telemetry.events import EventLog
from paceline.workload import Attends, AttentionCall, Workload

Refusals = Mapping[str, str]
"""eager, sdpa, flash, cudnn, flex: each that cannot be had, with the reason"""

_UNKNOWN = AttentionCall("training", rows=1, heads=1, queries=64, keys=64, width=64, is_causal=True)
"""What torch is asked about for a recipe that does not say what attention it has."""


@dataclass(frozen=True)
class Attention:
    """What was decided."""

    impl: str
    """eager, sdpa, flash, cudnn or flex; own: every attention is the recipe's"""
    backends: tuple[str, ...]
    """what SDPA may use"""

    @property
    def kernel(self) -> str:
        """What the recipe runs: eager, sdpa, flex or own."""
        return "sdpa" if self.impl in BACKENDS else self.impl

    def install(self) -> None:
        """Holds from now on, in the whole process."""
        allow_only(self.backends)


@dataclass(frozen=True)
class Verdict:
    """The effective implementation, why, and whether a request was not served."""

    impl: str
    reason: str
    is_fallback: bool = False


def find_calls(workload: Workload, config: RunConfig, device: torch.device, world_size: int) -> list[AttentionCall]:
    """The attention of a full micro-batch and of an evaluation block; empty where the recipe tells of none."""
    if not isinstance(workload, Attends):
        return []
    train = config.train
    plan = plan_batches(train.global_batch, train.micro_batch, train.accumulate, world_size)
    return list(workload.attention_calls(device.type, plan.largest_micro_batch, config.evaluate.block))


def choose_attention(
    section: AttentionSection,
    calls: Sequence[AttentionCall],
    precision: str,
    ranks: Ranks,
    events: EventLog,
    *,
    is_told: bool = False,
) -> Attention:
    """The attention of all ranks, recorded as requested and effective with the reason. Not in force before `install`.

    `is_told`: the operator knows already that the request changes nothing in this recipe.
    """
    dtype = DTYPES[precision]
    excluded = dict.fromkeys(map(str, section.exclude), "attention.exclude names it")
    asked = [call for call in calls if not call.own]
    tables: Sequence[Refusals] = []
    ruled_out = excluded
    if calls and not asked:
        verdict = choose_own(section, calls)
    else:
        asked = asked or [_UNKNOWN]
        tables, disputed = _agree([find_refusals(call, dtype, ranks.device) for call in asked], ranks)
        # Where one rank has a backend and another has not, none uses it.
        ruled_out = {**dict.fromkeys(disputed, "not every rank's GPU has it"), **excluded}
        refusals = combine(asked, tables, ruled_out)
        if section.impl == "flex" or {"sdpa", "eager"} <= refusals.keys():
            _ask_for_flex(refusals, ranks)
        verdict = choose_impl(section, ranks.lowest_capability(), refusals)
    if verdict.is_fallback and not is_told:
        what = f"attention.impl={section.impl} cannot be served here: {verdict.impl} instead"
        events.write("warning", what=what, why=verdict.reason)
    events.choice("attention.impl", section.impl, verdict.impl, verdict.reason)
    for name in (name for name in BACKENDS if name in excluded and calls):
        why = _find_unused(name, calls, tables)
        if why:
            events.write("note", what=f"attention.exclude: {name!r} has no effect here", why=why)
    allowed = tuple(name for name in BACKENDS if name not in ruled_out)
    attention = Attention(verdict.impl, (verdict.impl,) if verdict.impl in BACKENDS else allowed)
    if calls:
        _record_backends(attention, calls, tables, dtype, ranks.device, events)
    return attention


def choose_own(section: AttentionSection, calls: Sequence[AttentionCall]) -> Verdict:
    """For calls that are all the recipe's own: no request can be served, and ConfigError where nothing may take its place."""
    why = "; ".join(dict.fromkeys(call.why or "this recipe has kernels of its own" for call in calls))
    if section.impl == "auto":
        return Verdict("own", why)
    _check_fallback(section, why)
    return Verdict("own", f"{section.impl}: {why}", is_fallback=True)


def combine(calls: Sequence[AttentionCall], tables: Sequence[Refusals], ruled_out: Refusals) -> dict[str, str]:
    """What cannot be had for all calls of a run: from what each backend refuses of each (`tables`), and what was ruled out, with the reason."""
    refusals: dict[str, str] = {}
    for call, table in zip(calls, tables, strict=True):
        for kernel in ("eager", "sdpa", "flex"):
            if kernel not in call.kernels:
                names = ("sdpa", "flash", "cudnn") if kernel == "sdpa" else (kernel,)
                refusals |= dict.fromkeys(names, call.why or f"this recipe has no {kernel} attention")
        for name in ("flash", "cudnn"):
            if name in table:
                refusals.setdefault(name, f"{table[name]} ({call})")
        if set(BACKENDS) <= {*table, *ruled_out}:
            against = {name: {**table, **ruled_out}[name] for name in BACKENDS}
            listed = ", ".join(f"{name}: {why}" for name, why in against.items())
            refusals.setdefault("sdpa", f"no backend is left ({listed}; {call})")
        if call.dropout:
            refusals.setdefault("flex", f"flex attention cannot drop attention weights ({call})")
        if call.mask != "none":
            refusals.setdefault("flex", f"flex attention takes no {call.mask} mask ({call})")
    return refusals | {name: why for name, why in ruled_out.items() if name not in ("efficient", "math")}


def choose_impl(section: AttentionSection, capability: tuple[int, int] | None, refusals: Refusals) -> Verdict:
    """For the lowest compute capability among the ranks, None without a GPU; ConfigError where nothing is left, or allowed to take its place."""
    requested = section.impl
    if requested != "auto" and requested not in refusals:
        return Verdict(requested, "as requested")
    if requested != "auto":
        _check_fallback(section, refusals[requested])
    is_old = capability is not None and capability < (8, 0)
    order = ("eager", "sdpa", "flex") if is_old else ("sdpa", "eager", "flex")
    impl = next((name for name in order if name not in refusals), None)
    if impl is None:
        listed = "; ".join(f"{name}: {refusals[name]}" for name in order)
        raise ConfigError(f"no attention is left: {listed}", "attention.exclude", "exclude less")
    if requested != "auto":
        return Verdict(impl, f"{requested}: {refusals[requested]}", is_fallback=True)
    if impl != order[0]:
        return Verdict(impl, f"{order[0]}: {refusals[order[0]]}")
    if capability is None:
        return Verdict(impl, "no GPU: SDPA has a fused kernel for CPUs")
    number = f"compute capability {capability[0]}.{capability[1]}"
    return Verdict(impl, f"{number} < 8.0 has no flash attention" if is_old else f"{number} >= 8.0")


def _check_fallback(section: AttentionSection, refusal: str) -> None:
    """ConfigError where what was requested cannot be had, and nothing may take its place."""
    if section.fallback == "error":
        raise ConfigError(
            f"attention.impl={section.impl} cannot be served here: {refusal}",
            "attention.impl and attention.fallback=error",
            "set attention.impl=auto, or attention.fallback=warn to take what auto would",
        )


def _find_unused(name: str, calls: Sequence[AttentionCall], tables: Sequence[Refusals]) -> str:
    """Why a backend of SDPA would not be used anyway; empty where it may be. What a recipe writes in torch may use SDPA, too."""
    if any(call.own == "torch" for call in calls) or any(name not in table for table in tables):
        return ""
    return f"it could not be used anyway: {tables[0][name]}" if tables else "attention is by the recipe's own kernels"


def _agree(tables: Sequence[Refusals], ranks: Ranks) -> tuple[list[dict[str, str]], list[str]]:
    """(what any rank's torch refuses of each call, the backends about which ranks differ): the same on every rank, but for the words."""
    asked = [(table, name) for table in tables for name in BACKENDS]
    served = ranks.gather_floats([float(name not in table) for table, name in asked])
    agreed: list[dict[str, str]] = [{} for _ in tables]
    disputed: dict[str, None] = {}
    for index, (table, name) in enumerate(asked):
        column = served[:, index]
        if not column.all():
            agreed[index // len(BACKENDS)][name] = table.get(name, "the GPU of another rank refuses it")
            disputed |= {name: None} if column.any() else {}
    return agreed, list(disputed)


def _ask_for_flex(refusals: dict[str, str], ranks: Ranks) -> None:
    """Adds flex attention where a rank cannot have it. Asked only where it could be chosen: Triton takes its time to import."""
    mine = flex_refusal(ranks.device)
    is_served = bool(ranks.gather_floats([float(not mine)]).all())
    if not is_served:
        refusals.setdefault("flex", mine or "another rank cannot have it")


def flex_refusal(device: torch.device) -> str:
    """Why flex attention cannot train on this device; empty where it can."""
    if device.type == "cuda":
        from torch.utils._triton import has_triton

        return "" if has_triton() else "flex attention is compiled by Triton, which cannot run here"
    from torch.nn.attention.flex_attention import flex_attention

    probe = torch.zeros(1, 1, 1, 16, requires_grad=True, device=device)
    try:
        flex_attention(probe, probe, probe)
    except NotImplementedError as error:
        return str(error).partition(". ")[0]
    return ""


def _record_backends(
    attention: Attention,
    calls: Sequence[AttentionCall],
    tables: Sequence[Refusals],
    dtype: torch.dtype,
    device: torch.device,
    events: EventLog,
) -> None:
    """What computes each call: of SDPA the backend that torch selects, asked with only those enabled that may be used."""

    def computes(call: AttentionCall) -> str:
        if call.own or attention.kernel != "sdpa":
            return call.own or attention.impl
        return find_selected(call, dtype, device, attention.backends)

    reason = "nothing is asked of torch" if attention.impl == "own" else "SDPA is not used"
    if attention.kernel == "sdpa":
        against = {
            f"{name}: {table[name]}": None
            for table in tables
            for name in attention.backends
            if name in table and table[name] != NOT_ON_CPU
        }
        phases: dict[str, list[str]] = {}
        for call in (call for call in calls if not call.own):
            phases.setdefault(call.shape, []).append(call.phase)
        shapes = [f"{' and '.join(names)}: {shape}" for shape, names in phases.items()]
        asked = f"torch's choice in {str(dtype).removeprefix('torch.')} for {'; '.join(shapes)}"
        reason = "; ".join([asked, *against])
    promise = write_promise((call, computes(call)) for call in calls)
    events.choice("attention.backend", attention.impl, promise, reason)
