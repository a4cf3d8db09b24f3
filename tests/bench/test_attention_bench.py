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


def test_branches_are_listed_by_name_with_what_computes_each(capsys, monkeypatch):
    small = ["data.documents=60", "data.length=64", "model.layers=1", "launch.gpus=[]"]
    measured = measure(load_job("nsa", [*small, "attention.impl=flash"], environ={}), 1)
    assert [call["name"] for call in measured["calls"]] == ["compressed", "selected", "window"] * 2
    assert all(call["selected"] == ["torch"] and call["kernels"] == [] for call in measured["calls"])
    monkeypatch.setattr("paceline.cli.asking.ask_worker", lambda argv: measured)
    command(["nsa"])
    told = capsys.readouterr().out
    assert "attention.backend: own → compressed torch, selected torch, window torch" in told
    assert "training: selected: 8 rows × 4 heads, 64 × 64, width 32, boolean mask: torch (model.sparse_path" in told


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


def write_kernels(root: Path, rank: int, kernels: dict[str, tuple[int, float]]) -> None:
    events = [
        {"name": name, "cat": "kernel", "dur": 1e3 * time_ms / count}
        for name, (count, time_ms) in kernels.items()
        for _ in range(count)
    ]
    (root / "profile" / f"rank_{rank:05}.trace.json").write_text(json.dumps({"traceEvents": events}))


BRANCHES = "compressed nsa_range, selected nsa_chosen, window nsa_range"
KERNELS = {
    "nsa_range_forward_kernel": (24, 12.0),
    "nsa_chosen_forward_kernel": (12, 30.0),
    "nsa_score_kernel": (12, 6.0),
    "nsa_loss_kernel": (1, 90.0),
}


def test_branches_are_seen_by_their_kernels(make_run, capsys):
    root = make_run(BRANCHES)
    for rank in range(2):
        write_kernels(root, rank, KERNELS)
    audit = audit_run(root)
    assert audit.wrong == ""
    assert {each.backend: (each.count, round(each.time_ms, 6)) for each in audit.seen} == {
        "nsa_chosen": (24, 60.0),
        "nsa_range": (48, 24.0),
        "nsa_score": (24, 12.0),
    }
    assert audit.branches == {"nsa_chosen": ["selected"], "nsa_range": ["compressed", "window"], "nsa_score": []}
    command(run=str(root))
    told = capsys.readouterr().out
    assert "compressed" in told
    assert f"promised {BRANCHES}: as promised" in told.replace("\n", " ")
    # One rank on which a branch fell back, while its kernel still runs for another branch.
    write_kernels(root, 1, KERNELS | {"fmha_cutlassF_f32_aligned_64x64_rf_sm80": (12, 1.0)})
    assert "shows efficient besides" in audit_run(root).wrong
    write_kernels(root, 1, {name: KERNELS[name] for name in ("nsa_range_forward_kernel", "nsa_score_kernel")})
    assert "nsa_chosen for selected was promised" in audit_run(root).wrong


def test_kernels_that_only_the_promise_knows_are_found(make_run):
    root = make_run("near mine_near, far mine_far")
    write_kernels(root, 0, {"mine_near_forward": (3, 3.0), "mine_far_forward": (1, 1.0)})
    audit = audit_run(root)
    assert (audit.wrong, [each.backend for each in audit.seen]) == ("", ["mine_near", "mine_far"])


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
