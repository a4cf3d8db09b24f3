"""Where the time of a profiled run went, by the ranges in its trace: steps, their phases, and what a recipe marks inside them.

    measure_ranges(Path("runs/demo"))   -> {"ranges": [{"name": "forward", "inside": "step", "share": 0.31, …}, …], …}

With kernels in the trace a range has the time of the kernels that were launched inside it, whenever they ran; without a GPU, the host's
time between its borders. What a range's operators do in backward is a row of its own (`nsa window, backward`): the profiler links each
backward operator to its forward. Standard library only.
"""

from __future__ import annotations

import bisect
import re
import shlex
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.bench.attention_trace import find_traces, read_events
from paceline.errors import UsageError
from paceline.telemetry.reader import read_run
from paceline.telemetry.run_file import load_run_file

PHASES = ("data", "forward", "backward", "optimizer")
_STEP = re.compile(r"step \d+")
_ATTEMPT = re.compile(r"attempt_(\d+)")
_TORCH = re.compile(r"ProfilerStep|Optimizer\.|DistributedDataParallel\.|FSDP|nccl:|gloo:|Torch-Compiled Region|## ")
_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")
_LAUNCHES = ("cuda_runtime", "cuda_driver")
_HIDING = ("train.compile.enabled", "train.graph")
"""settings under which nothing is marked inside a phase"""


@dataclass(frozen=True)
class Range:
    """A named stretch of the host's time on one thread, in µs."""

    name: str
    inside: str
    thread: Any
    start: float
    end: float


def measure_ranges(root: Path) -> dict[str, Any]:
    """Of the newest profile of a run, its first rank; `note` says why there is nothing inside the phases, where the run itself hides it."""
    trace = find_traces(root)[0]
    found = attribute(read_events(trace), str(trace))
    has_stages = any(row["inside"] in PHASES for row in found["ranges"])
    return {"trace": str(trace), "note": "" if has_stages else _explain_missing(root, trace), **found}


def _explain_missing(root: Path, trace: Path) -> str:
    """Empty where nothing hid them: most recipes mark no stages."""
    attempt_name = _ATTEMPT.fullmatch(trace.parent.name)
    if attempt_name is None or load_run_file(root) is None:  # somebody else's profile
        return ""
    run, attempt = read_run(root), int(attempt_name[1])
    # The last word on each: compiling may have been given up.
    chosen = run.choices(attempt=attempt)
    hiding = [f"{key}=true" for key in _HIDING if key in chosen and chosen[key]["effective"] is True]
    if not hiding:
        return ""
    words = [f"{key}=false" for key in _HIDING]  # both, always: what is not compiled may be recorded instead
    plans, profiles = (run.events_of(kind, attempt=attempt) for kind in ("plan", "profile"))
    if plans and profiles and plans[-1].get("horizon") and profiles[-1].get("last_step"):
        # No longer than to what was profiled, at the rates it was profiled at: a warm-up may be longer than that.
        words += [
            f"train.max_steps={profiles[-1]['last_step']}",
            f"train.schedule.horizon={plans[-1]['horizon']}",
        ]
    again = shlex.join(["paceline", "train", str(run.layout.config), *words, "--out", f"{root}-stages"])
    why = f"with {' and '.join(hiding)} the code of a phase runs as one"
    return f"no stages inside the phases: {why}; to see those that a recipe marks, as nsa does: {again}"


def attribute(events: Sequence[Mapping[str, Any]], where: str = "") -> dict[str, Any]:
    """The share of every range in the time of the steps."""
    ranges = find_ranges(events)
    steps = [each for each in ranges if each.name == "step"]
    if not steps:
        do = "profile the run again: telemetry.profile.start_step=N"
        raise UsageError("the trace has no ranges of steps: it was taken by something else", where, do)
    linked = [*ranges, *_find_backward(events, ranges)]
    kernels = list(_find_launched(events))
    times = _device_times(linked, kernels) if kernels else _host_times(linked)
    whole = times["step", ""][1]
    rows: list[dict[str, Any]] = [
        {
            "name": name,
            "inside": inside,
            "calls": calls,
            "ms": us / 1e3 / len(steps),
            "share": us / whole if whole else 0.0,
        }
        for (name, inside), (calls, us) in times.items()
    ]
    rows.sort(key=lambda row: (row["inside"] != "", row["inside"] != "step", -row["share"]))
    covered = sum(row["share"] for row in rows if row["name"] in PHASES and row["inside"] == "step")
    clock = "time of the kernels launched inside" if kernels else "time of the host between its borders"
    return {"clock": clock, "num_steps": len(steps), "covered": covered, "ranges": rows}


def find_ranges(events: Sequence[Mapping[str, Any]]) -> list[Range]:
    """All of them, each with the one around it; steps lose their numbers."""
    marked = [event for event in events if event.get("cat") == "user_annotation" and event.get("ph") == "X"]
    by_thread: dict[Any, list[Mapping[str, Any]]] = defaultdict(list)
    for event in marked:
        by_thread[event.get("tid")].append(event)
    found = []
    for thread, mine in by_thread.items():
        open_ones: list[Range] = []
        for event in sorted(mine, key=lambda event: (event["ts"], -event["dur"])):
            start, end = float(event["ts"]), float(event["ts"]) + float(event["dur"])
            while open_ones and open_ones[-1].end <= start:
                open_ones.pop()
            name = "step" if _STEP.fullmatch(str(event["name"])) else str(event["name"])
            if (not open_ones and name != "step") or _TORCH.match(name):
                continue  # what lies between steps, and what torch marks by itself
            found.append(Range(name, open_ones[-1].name if open_ones else "", thread, start, end))
            open_ones.append(found[-1])
    return found


def _find_backward(events: Sequence[Mapping[str, Any]], ranges: Sequence[Range]) -> Iterator[Range]:
    """The stretches of backward whose forward lay in a range below the phases."""
    inner = [each for each in ranges if each.name not in (*PHASES, "step")]
    if not inner:
        return
    lookup = _Lookup(inner)
    flows: dict[Any, Mapping[str, Any]] = {}
    ends: dict[tuple[Any, float], float] = {}
    for event in events:
        if event.get("cat") == "fwdbwd" and event.get("ph") == "s":
            flows[event["id"]] = event
        elif event.get("cat") == "cpu_op" and event.get("ph") == "X":
            place = event.get("tid"), float(event["ts"])
            ends[place] = max(ends.get(place, 0.0), float(event["ts"]) + float(event["dur"]))
    reached: dict[tuple[str, Any], float] = {}
    backward = [event for event in events if event.get("cat") == "fwdbwd" and event.get("ph") == "f"]
    for event in sorted(backward, key=lambda event: float(event["ts"])):
        begun, place = flows.get(event["id"]), (event.get("tid"), float(event["ts"]))
        origin = lookup.innermost(begun.get("tid"), float(begun["ts"])) if begun else None
        if origin is None or place not in ends:
            continue
        name = f"{origin.name}, backward"
        if place[1] >= reached.get((name, place[0]), 0.0):  # one inside another counts once
            reached[name, place[0]] = ends[place]
            yield Range(name, "backward", place[0], place[1], ends[place])


class _Lookup:
    """Which range a moment of a thread lies in."""

    def __init__(self, ranges: Sequence[Range]) -> None:
        self._mine: dict[Any, list[Range]] = defaultdict(list)
        for each in sorted(ranges, key=lambda each: each.start):
            self._mine[each.thread].append(each)
        self._starts = {thread: [each.start for each in mine] for thread, mine in self._mine.items()}

    def innermost(self, thread: Any, moment: float) -> Range | None:
        around = self.around(thread, moment)
        return around[-1] if around else None

    def around(self, thread: Any, moment: float) -> list[Range]:
        """From the outermost on. Ranges nest a few deep, so few have to be looked at."""
        mine = self._mine.get(thread, [])
        place = bisect.bisect_right(self._starts.get(thread, []), moment)
        return [each for each in mine[max(0, place - 64) : place] if each.end > moment]


def _find_launched(events: Sequence[Mapping[str, Any]]) -> Iterator[tuple[Any, float, float]]:
    """(thread, moment of the launch, time in µs) of each kernel and copy."""
    launches = {
        event["args"]["correlation"]: (event.get("tid"), float(event["ts"]))
        for event in events
        if event.get("cat") in _LAUNCHES and "correlation" in event.get("args", {})
    }
    for event in events:
        if event.get("cat") in _DEVICE and (event.get("args") or {}).get("correlation") in launches:
            yield (*launches[event["args"]["correlation"]], float(event.get("dur", 0)))


Times = dict[tuple[str, str], tuple[int, float]]


def _device_times(ranges: Sequence[Range], kernels: Sequence[tuple[Any, float, float]]) -> Times:
    times = _count(ranges)
    outer = [each for each in ranges if each.name == "step" or (each.name in PHASES and each.inside == "step")]
    outer_lookup = _Lookup([Range(each.name, each.inside, None, each.start, each.end) for each in outer])
    inner_lookup = _Lookup([each for each in ranges if each not in set(outer)])
    for thread, moment, us in kernels:
        # Backward launches from a thread of its own, while the main one waits in its phase: steps and phases go by the clock alone.
        for each in (*outer_lookup.around(None, moment), *inner_lookup.around(thread, moment)):
            calls, before = times[each.name, each.inside]
            times[each.name, each.inside] = calls, before + us
    return times


def _host_times(ranges: Sequence[Range]) -> Times:
    times = _count(ranges)
    for each in ranges:
        calls, before = times[each.name, each.inside]
        times[each.name, each.inside] = calls, before + each.end - each.start
    return times


def _count(ranges: Sequence[Range]) -> Times:
    times: Times = {}
    for each in ranges:
        times[each.name, each.inside] = times.get((each.name, each.inside), (0, 0.0))[0] + 1, 0.0
    return times
