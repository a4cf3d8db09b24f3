"""Which attention really runs for the shapes of a configuration, why the others were refused, and what each takes; one line of JSON.

    python -m paceline.bench.attention sasrec model.width=64 --repeats 9

What runs is read from a profile of one call, not assumed. Kernels take turns in every repeat, so that a drift of the machine favours
none.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from paceline.bench.answering import answer, end
from paceline.bench.stopwatch import stopwatch, wait
from paceline.config.contradictions import Facts
from paceline.engine.attend import KERNELS
from paceline.engine.attention import Attention, choose_attention, find_calls, flex_refusal
from paceline.engine.backends import BACKENDS, States, build_states, find_refusals, restricted
from paceline.engine.kernels import Seen, find_attention
from paceline.engine.precision import DTYPES, choose_precision
from paceline.engine.ranks import Ranks
from paceline.engine.seeding import make_deterministic
from paceline.recipes.job import Job, load_job
from paceline.telemetry.events import QuietLog
from paceline.workload import AttentionCall

_WINDOW_MS = 20.0
_MOST_CALLS = 20


@dataclass
class Candidate:
    """One way to compute a call."""

    name: str
    refused: str = ""
    """why it cannot"""
    seen: list[Seen] = field(default_factory=list)
    """what a profile of one call showed"""
    forward_ms: list[float] = field(default_factory=list)
    backward_ms: list[float] = field(default_factory=list)

    def to_record(self) -> dict[str, Any]:
        return {
            "kernel": self.name,
            "refused": self.refused or None,
            "ran": [each.backend for each in self.seen],
            "names": [name for each in self.seen for name in each.names],
            "forward_ms": _spread(self.forward_ms),
            "backward_ms": _spread(self.backward_ms),
        }


class Told(QuietLog):
    """Keeps what the policy says in place of writing it."""

    def __init__(self) -> None:
        self.records: list[dict[str, Any]] = []

    def write(self, kind: str, **fields: Any) -> None:
        self.records.append({"kind": kind, **fields})


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m paceline.bench.attention", allow_abbrev=False)
    parser.add_argument("target", help="a recipe or a configuration file")
    parser.add_argument("overrides", nargs="*", metavar="key=value")
    parser.add_argument("--repeats", type=int, default=9)
    arguments = parser.parse_intermixed_args(argv)
    return answer(lambda: measure(load_job(arguments.target, arguments.overrides), arguments.repeats))


def measure(job: Job, repeats: int) -> dict[str, Any]:
    """Everything that the bench says, for the first device that the job would run on."""
    config = job.config
    device, world_size = _find_place(job)
    job.check(Facts(world_size, num_gpus=0 if device.type == "cpu" else torch.cuda.device_count()))
    if config.run.deterministic:
        make_deterministic()
    ranks = Ranks(0, 1, device, "none", "one process")
    precision, reason = choose_precision(config.precision.mode, ranks.lowest_capability())
    calls = find_calls(job.recipe.build(config), config, device, world_size)
    told = Told()
    # Who asks why a request is refused wants the table, not the refusal.
    section = config.attention.model_copy(update={"fallback": "warn"})
    attention = choose_attention(section, calls, precision, ranks, told)
    return {
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else _describe_cpu(),
        "torch": torch.__version__,
        "precision": {"requested": config.precision.mode, "effective": precision, "reason": reason},
        "deterministic": config.run.deterministic,
        "fallback": config.attention.fallback,
        "policy": told.records,
        "calls": [_measure_call(call, attention, DTYPES[precision], device, repeats) for call in calls],
    }


def _find_place(job: Job) -> tuple[torch.device, int]:
    """(the first device of the job, its number of ranks on this machine)."""
    launch = job.config.launch
    gpus = list(range(torch.cuda.device_count())) if launch.gpus is None else launch.gpus
    world_size = launch.nproc if isinstance(launch.nproc, int) else max(1, len(gpus))
    if not gpus or not torch.cuda.is_available():
        return torch.device("cpu"), world_size
    torch.cuda.set_device(gpus[0])
    return torch.device("cuda", gpus[0]), world_size


def _describe_cpu() -> str:
    threads = torch.get_num_threads()
    return f"CPU, {threads} thread{'s' if threads > 1 else ''}"


def _measure_call(
    call: AttentionCall, attention: Attention, dtype: torch.dtype, device: torch.device, repeats: int
) -> dict[str, Any]:
    record: dict[str, Any] = {
        "phase": call.phase,
        "name": call.name,
        "shape": call.shape,
        "type": str(dtype).removeprefix("torch."),
    }
    if call.own or "sdpa" not in call.kernels:
        return record | {"own": call.why, "selected": [call.own] if call.own else list(call.kernels), "kernels": []}
    states = _fill(build_states(call, dtype, device))
    with restricted(attention.backends):
        chosen = find_attention(_profile(_runner(call, KERNELS[attention.kernel], states, attention.backends), device))
    candidates = list_candidates(call, dtype, device)
    running = []
    for each in (candidate for candidate in candidates if not candidate.refused):
        run = _build_runner(call, each.name, states)
        try:
            each.seen = find_attention(_profile(run, device))
            running.append((each, run, _calibrate(run, device)))
        except (RuntimeError, NotImplementedError) as error:  # torch was willing; the kernel was not
            each.refused = (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
    for _ in range(repeats):
        for each, run, count in running:
            each.forward_ms.append(_time_forward(run, device, count))
            if call.phase == "training":
                each.backward_ms.append(_time_backward(run, device, count))
    selected = [each.backend for each in chosen]
    return record | {"own": None, "selected": selected, "kernels": [each.to_record() for each in candidates]}


def list_candidates(call: AttentionCall, dtype: torch.dtype, device: torch.device) -> list[Candidate]:
    """Every backend of SDPA, eager and flex, with torch's reason against those that cannot compute this call."""
    refusals = find_refusals(call, dtype, device)
    candidates = [Candidate(name, refusals.get(name, "")) for name in BACKENDS]
    against_flex = flex_refusal(device)
    if call.dropout:
        against_flex = "flex attention cannot drop attention weights"
    if call.mask != "none":
        against_flex = f"flex attention takes no {call.mask} mask"
    return [*candidates, Candidate("eager"), Candidate("flex", against_flex)]


@dataclass(frozen=True)
class Runner:
    """A call that can be computed again and again."""

    forward: Callable[[], torch.Tensor]
    backward: Callable[[torch.Tensor], object] | None
    """from the result of a forward; None: an evaluation has none"""

    def both(self) -> None:
        mixed = self.forward()
        if self.backward is not None:
            self.backward(mixed)


def _build_runner(call: AttentionCall, name: str, states: States) -> Runner:
    is_backend = name in BACKENDS
    return _runner(call, KERNELS["sdpa" if is_backend else name], states, [name] if is_backend else list(BACKENDS))


def _runner(call: AttentionCall, attend: Callable[..., torch.Tensor], states: States, backends: Any) -> Runner:
    query, key, value, mask = states
    is_training = call.phase == "training"
    gradient = torch.ones_like(query) if is_training else None

    def forward() -> torch.Tensor:
        with torch.set_grad_enabled(is_training), restricted(backends):
            return attend(query, key, value, is_causal=call.is_causal, mask=mask, dropout=call.dropout)

    def backward(mixed: torch.Tensor) -> object:
        return torch.autograd.grad(mixed, (query, key, value), gradient)

    return Runner(forward, backward if is_training else None)


def _fill(states: States) -> States:
    """Numbers to compute with: a mask that hides nothing, and states from a fixed seed."""
    *others, mask = states
    generator = torch.Generator(others[0].device).manual_seed(0)
    with torch.no_grad():
        for each in others:
            assert each is not None
            each.normal_(generator=generator)
        if mask is not None:
            mask.fill_(True) if mask.dtype == torch.bool else mask.zero_()
    return states


def _profile(run: Runner, device: torch.device) -> list[tuple[str, int, float]]:
    """(name, calls, own time in ms) of every kernel and operator of one forward and backward, after one that compiles and chooses."""
    run.both()
    wait(device)
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device.type == "cuda" else [])]
    with profile(activities=activities, acc_events=True) as profiler:
        run.both()
        wait(device)
    rows = []
    for event in profiler.key_averages():
        own_us = event.self_device_time_total if device.type == "cuda" else event.self_cpu_time_total
        rows.append((event.key, event.count, own_us / 1e3))
    return rows


def _calibrate(run: Runner, device: torch.device) -> int:
    """How many calls fill a window."""
    run.both()
    wait(device)
    began = time.perf_counter()
    run.both()
    wait(device)
    one_ms = (time.perf_counter() - began) * 1e3
    return max(1, min(_MOST_CALLS, round(_WINDOW_MS / max(one_ms, 1e-3))))


def _time_forward(run: Runner, device: torch.device, count: int) -> float:
    with stopwatch(device) as clock:
        clock.start()
        for _ in range(count):
            run.forward()
        clock.stop()
    return clock.total_ms / count


def _time_backward(run: Runner, device: torch.device, count: int) -> float:
    assert run.backward is not None
    with stopwatch(device) as clock:
        for _ in range(count):
            mixed = run.forward()
            clock.start()
            run.backward(mixed)
            clock.stop()
    return clock.total_ms / count


def _spread(values: list[float]) -> dict[str, float | int] | None:
    if not values:
        return None
    middle = statistics.median(values)
    return {
        "median": round(middle, 5),
        "lowest": round(min(values), 5),
        "highest": round(max(values), 5),
        "windows": len(values),
    }


if __name__ == "__main__":
    end(main)
