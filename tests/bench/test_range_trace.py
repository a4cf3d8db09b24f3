"""Time by range, from traces that are written by hand and from one of torch's own."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest
import torch

from paceline.bench.attention_trace import read_events
from paceline.bench.range_trace import attribute, find_ranges, measure_ranges
from paceline.errors import UsageError
from paceline.files import write_json
from paceline.telemetry.events import EventLog
from paceline.telemetry.layout import RunLayout
from paceline.telemetry.run_file import Attempt, RunFile


def mark(name: str, start: float, end: float, thread: int = 1) -> dict[str, Any]:
    return {"ph": "X", "cat": "user_annotation", "name": name, "ts": start, "dur": end - start, "tid": thread}


STEP = [
    mark("step 7", 0, 100),
    mark("forward", 0, 40),
    mark("DistributedDataParallel.forward", 1, 39),
    mark("nsa window", 10, 20),
    mark("backward", 40, 90),
    mark("optimizer", 90, 100),
    mark("ProfilerStep#1", 0, 100, thread=9),
]
LINK = [
    {"ph": "s", "cat": "fwdbwd", "id": 1, "ts": 12, "tid": 1},
    {"ph": "f", "cat": "fwdbwd", "id": 1, "ts": 50, "tid": 2},
    {"ph": "X", "cat": "cpu_op", "name": "WindowBackward", "ts": 50, "dur": 15, "tid": 2},
    # The operator inside it is linked to the same forward, and counts once.
    {"ph": "s", "cat": "fwdbwd", "id": 2, "ts": 13, "tid": 1},
    {"ph": "f", "cat": "fwdbwd", "id": 2, "ts": 51, "tid": 2},
    {"ph": "X", "cat": "cpu_op", "name": "MulBackward", "ts": 51, "dur": 3, "tid": 2},
]


def launch(number: int, moment: float, thread: int, us: float) -> list[dict[str, Any]]:
    correlation = {"args": {"correlation": number}}
    return [
        {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": moment, "dur": 1, "tid": thread}
        | correlation,
        {"ph": "X", "cat": "kernel", "name": f"k{number}", "ts": moment + 500, "dur": us, "tid": 7} | correlation,
    ]


def shares(found: dict[str, Any]) -> dict[tuple[str, str], float]:
    return {(row["name"], row["inside"]): round(row["share"], 3) for row in found["ranges"]}


def test_on_a_cpu_by_the_clock_of_the_host() -> None:
    found = attribute([*STEP, *LINK])
    assert found["num_steps"] == 1
    assert shares(found) == {
        ("step", ""): 1.0,
        ("forward", "step"): 0.4,
        ("backward", "step"): 0.5,
        ("optimizer", "step"): 0.1,
        ("nsa window", "forward"): 0.1,
        ("nsa window, backward", "backward"): 0.15,
    }
    assert found["covered"] == pytest.approx(1.0)


def test_on_a_gpu_by_the_kernels_that_were_launched_inside() -> None:
    # Backward launches from a thread of its own; a kernel outside every step is nobody's.
    kernels = [*launch(1, 15, 1, 30), *launch(2, 30, 1, 10), *launch(3, 52, 2, 40), *launch(4, 80, 2, 20)]
    found = attribute([*STEP, *LINK, *kernels, *launch(5, 400, 1, 1000)])
    assert "kernels" in found["clock"]
    assert shares(found) == {
        ("step", ""): 1.0,
        ("forward", "step"): 0.4,
        ("backward", "step"): 0.6,
        ("optimizer", "step"): 0.0,
        ("nsa window", "forward"): 0.3,
        ("nsa window, backward", "backward"): 0.4,
    }


STAGELESS = [event for event in STEP if event["name"] != "nsa window"]


def profiled(root: Path, events: list[dict[str, Any]], **chosen: bool) -> Path:
    """A run of which the second attempt was profiled, after the first had made other choices."""
    run = RunFile("0123456789ab", "nsa", "", "0", 0.0, {}, attempts=[Attempt(1, 1, 1, 0.0, "", [])])
    (root / "profile" / "attempt_2").mkdir(parents=True)
    run.save(RunLayout(root))
    write_json(root / "profile" / "attempt_2" / "rank_00000.trace.json", {"traceEvents": events})
    for attempt, effective in ((1, dict.fromkeys(chosen, True)), (2, chosen)):
        log = EventLog(RunLayout(root).events, "rank 0", attempt)
        for name, value in effective.items():
            log.choice(name.replace("__", "."), "auto", value, "because")
        log.write("plan", horizon=400)
        log.write("profile", first_step=50, last_step=54)
        log.close()
    return root


@pytest.mark.parametrize(
    ("chosen", "why"),
    [
        ({"train__compile__enabled": True}, "with train.compile.enabled=true the"),
        ({"train__compile__enabled": False, "train__graph": True}, "with train.graph=true the"),
        (
            {"train__compile__enabled": True, "train__graph": True},
            "with train.compile.enabled=true and train.graph=true the",
        ),
    ],
)
def test_what_hides_the_stages_is_said_and_what_to_type(tmp_path: Path, chosen: dict[str, bool], why: str) -> None:
    root = profiled(tmp_path / "my run", STAGELESS, **chosen)
    found = measure_ranges(root)
    assert [row["name"] for row in found["ranges"]] == ["step", "backward", "forward", "optimizer"]
    assert found["note"].startswith("no stages inside the phases: ")
    assert why in found["note"]
    assert "\n" not in found["note"]
    command = shlex.split(found["note"].rpartition("as nsa does: ")[2])
    off = ["train.compile.enabled=false", "train.graph=false"]
    length = ["train.max_steps=54", "train.schedule.horizon=400"]
    assert command == ["paceline", "train", f"{root}/config.yaml", *off, *length, "--out", f"{root}-stages"]


@pytest.mark.parametrize(
    ("events", "chosen"),
    [
        (STEP, {"train__compile__enabled": True}),
        (STAGELESS, {"train__compile__enabled": False, "train__graph": False}),
        (STAGELESS, {}),
    ],
    ids=["stages are there", "its recipe marks none", "nothing was written down"],
)
def test_where_nothing_is_hidden_nothing_is_said(tmp_path: Path, events: list, chosen: dict[str, bool]) -> None:
    assert measure_ranges(profiled(tmp_path, events, **chosen))["note"] == ""


def test_a_profile_that_is_no_runs(tmp_path: Path) -> None:
    (tmp_path / "profile").mkdir()
    write_json(tmp_path / "profile" / "mine.json", {"traceEvents": STAGELESS})
    assert measure_ranges(tmp_path)["note"] == ""


def test_a_trace_without_steps_is_refused() -> None:
    with pytest.raises(UsageError, match="no ranges of steps"):
        attribute([mark("forward", 0, 1)])


def test_a_trace_of_torch_has_what_is_looked_for(tmp_path: Path) -> None:
    weight = torch.randn(64, 64, requires_grad=True)
    named = torch.profiler.record_function
    profile = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], acc_events=True)
    with profile as profiler, named("step 1"):
        with named("forward"), named("nsa window"):
            loss = (weight @ weight).relu().sum()
        with named("backward"):
            loss.backward()
    profiler.export_chrome_trace(str(tmp_path / "trace.json"))
    events = read_events(tmp_path / "trace.json")
    assert {each.name for each in find_ranges(events)} == {"step", "forward", "backward", "nsa window"}
    found = shares(attribute(events))
    assert found["nsa window, backward", "backward"] > 0
    assert found["nsa window", "forward"] <= found["forward", "step"] + 1e-3
