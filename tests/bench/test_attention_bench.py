"""`paceline bench attention`: what runs is profiled, refusals carry torch's words, and a run's profile is held against its promise."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F
from torch.profiler import ProfilerActivity, profile

from paceline.bench.attention import main, measure
from paceline.bench.attention_trace import audit_run, read_trace
from paceline.cli.bench_attention import build_table, command, tell
from paceline.engine.backends import BACKENDS, restricted
from paceline.errors import UsageError
from paceline.recipes.job import load_job
from paceline.telemetry.events import EventLog
from paceline.telemetry.layout import RunLayout
from paceline.telemetry.run_file import Attempt, RunFile

TINY = [
    "data.users=40",
    "data.items=30",
    "data.events_per_user=6",
    "data.max_length=5",
    "model.width=8",
    "launch.gpus=[]",
]


@pytest.fixture(autouse=True)
def _as_before():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with restricted(tuple(BACKENDS)):
        yield
    torch.set_num_threads(threads)


def by_kernel(call):
    return {row["kernel"]: row for row in call["kernels"]}


def test_what_runs_is_untimed_and_the_rest_is_refused_in_torchs_words():
    measured = measure(
        load_job("sasrec", [*TINY, "model.attention_dropout=0.1", "attention.impl=cudnn"], environ={}), 2
    )
    training, evaluation = measured["calls"]
    assert (training["phase"], training["selected"], evaluation["selected"]) == ("training", ["math"], ["flash"])
    rows = by_kernel(training)
    assert list(rows) == ["flash", "cudnn", "efficient", "math", "eager", "flex"]
    assert "do not support non-zero dropout" in rows["flash"]["refused"]
    assert "cannot drop" in rows["flex"]["refused"]
    for name in ("math", "eager"):
        assert rows[name]["ran"] == [name]
        assert rows[name]["refused"] is None
        assert 0 < rows[name]["forward_ms"]["lowest"] <= rows[name]["forward_ms"]["median"]
        assert rows[name]["backward_ms"]["windows"] == 2
    rows = by_kernel(evaluation)
    assert rows["flash"]["ran"] == ["flash"]
    assert "aten::_scaled_dot_product_flash_attention_for_cpu" in rows["flash"]["names"]
    assert rows["flash"]["backward_ms"] is None
    warning, *_ = measured["policy"]
    assert "attention.impl=cudnn cannot be served here" in tell(warning)
    table = build_table(training)
    assert table.row_count == 6
    assert "in force: math" in str(table.title)


def test_an_attention_of_the_recipes_own_is_said_and_not_timed(capsys):
    assert main(["sasrec", *TINY, "model.time=true", "--repeats", "1"]) == 0
    told = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert [call["own"].startswith("model.time=true") for call in told["calls"]] == [True, True]
    assert told["calls"][0]["selected"] == ["eager"]


def test_errors_travel_to_the_command(capsys):
    assert main(["sasrec", *TINY, "model.heads=3"]) == 2
    assert "model.heads=3" in capsys.readouterr().err
    for words, run in (([], None), (["sasrec"], "runs/x")):
        with pytest.raises(UsageError, match="one of them"):
            command(words, run=run)


@pytest.fixture
def make_run(tmp_path: Path):
    """A run that promised something, and a profile of what really ran."""

    def make(promised: str | None, *backends: str, name: str = "run") -> Path:
        layout = RunLayout(tmp_path / name)
        run = RunFile("0123456789ab", "sasrec", "", "0", 0.0, {"fingerprint": "f" * 64, "values": {}})
        run.attempts.append(Attempt(1, 1, 1, 0.0, "", []))
        layout.root.mkdir(exist_ok=True)
        run.save(layout)
        events = EventLog(layout.events, "rank 0", 1)
        if promised:
            events.choice("attention.impl", "auto", "sdpa", "test")
            events.choice("attention.backend", "sdpa", promised, "test")
        events.close()
        states = torch.ones(1, 1, 4, 8, requires_grad=True)
        with profile(activities=[ProfilerActivity.CPU]) as profiler:
            for backend in backends:
                with restricted([backend]):
                    F.scaled_dot_product_attention(states, states, states).sum().backward()
        folder = layout.root / "profile"
        folder.mkdir(exist_ok=True)
        (folder / "other.json").write_text('{"rows": []}')
        if backends:
            profiler.export_chrome_trace(str(folder / "rank_00000.trace.json.gz"))
        return layout.root

    return make


def test_a_profile_that_keeps_the_promise(make_run, capsys):
    root = make_run("training flash, evaluation math", "flash", "math")
    audit = audit_run(root)
    assert audit.wrong == ""
    assert {each.backend: each.count for each in audit.seen} == {"flash": 2, "math": 1}
    (trace,) = audit.traces
    assert trace.endswith("rank_00000.trace.json.gz")
    command(run=str(root), as_json=True)
    assert json.loads(capsys.readouterr().out)["promised"] == "training flash, evaluation math"
    command(run=str(root))
    assert "as promised" in capsys.readouterr().out


def test_a_profile_that_breaks_it_is_named(make_run):
    root = make_run("math", "math")
    assert audit_run(root).wrong == ""
    other = make_run("flash", "flash", name="other") / "profile" / "rank_00000.trace.json.gz"
    other.rename(root / "profile" / "rank_00001.trace.json.gz")
    audit = audit_run(root)
    assert audit.wrong == "math was promised for training, and the profile shows flash", "one rank is enough"
    assert {each.backend: each.count for each in audit.seen} == {"math": 1, "flash": 2}


def test_what_cannot_be_audited_says_why(make_run, tmp_path):
    with pytest.raises(UsageError, match="no profile"):
        audit_run(make_run("flash"))
    with pytest.raises(UsageError, match="did not record"):
        audit_run(make_run(None, "flash", name="older"))
    broken = tmp_path / "broken.json.gz"
    broken.write_bytes(gzip.compress(b'{"traceEvents": [')[:20])
    with pytest.raises(UsageError, match="not a trace"):
        read_trace(broken)


def test_kernels_of_a_gpu_speak_before_operators(tmp_path):
    events = [
        {"name": "aten::_scaled_dot_product_attention_math", "cat": "cpu_op", "dur": 5},
        {"name": "void pytorch_flash::flash_fwd_kernel<>", "cat": "kernel", "dur": 1500},
        {"name": "void pytorch_flash::flash_fwd_kernel<>", "cat": "kernel", "dur": 500},
        {"name": "metadata", "ph": "M"},
    ]
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": events}))
    assert list(read_trace(path)) == [("void pytorch_flash::flash_fwd_kernel<>", 2, 2.0)]


@pytest.mark.slow
def test_the_command_measures_in_a_child_and_shows_a_table(capsys):
    command(["sasrec", *TINY], repeats=1)
    shown = capsys.readouterr().out
    assert "attention.backend: sdpa → flash" in shown
    assert "in force: flash" in shown
    assert "a CPU has none" in shown
    command(["sasrec", *TINY], repeats=1, as_json=True)
    assert json.loads(capsys.readouterr().out)["calls"][0]["selected"] == ["flash"]
