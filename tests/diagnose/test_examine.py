"""What a directory alone says: failures, logs, heartbeats, tables, and the order of causes."""

from __future__ import annotations

import socket
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from paceline.diagnose.beats import judge_beats
from paceline.diagnose.examine import examine_run
from paceline.diagnose.failures import judge_failures
from paceline.diagnose.finding import KINDS, Finding, Witness, finding_from_record
from paceline.diagnose.limits import Limits
from paceline.diagnose.order import order_causes
from paceline.diagnose.sources import list_sources
from paceline.files import Lock, write_json
from paceline.telemetry.layout import RunLayout
from paceline.telemetry.reader import read_run
from paceline.telemetry.run_file import load_run_file
from tests.diagnose.directories import failure, write_run
from tests.diagnose.sights import Made
from tests.diagnose.test_bounds import rows as bound_rows
from tests.diagnose.test_divergence import rows

NAN = (
    "NonFiniteError",
    "the loss or gradient is not a number; all ranks stopped after step 13, step 12 was not applied",
    "step 12 (loss nan, gradient norm nan), not finite on rank 1",
)
PEER = "RuntimeError: [../gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:10895\n"
DESYNC = (
    "DesyncError",
    "parameters are no longer identical on all ranks at step 40: rank 2 differs from the 3 others, in 1 of 9",
)
GONE = (
    "RankLostError",
    "a collective failed because another rank has gone or is stuck",
    "rank 0: Connection closed by peer",
)


def examine(root: Path, *sights: Any, is_owned: bool | None = None) -> list[Finding]:
    return examine_run(read_run(root), sights, is_owned=is_owned)


@pytest.mark.parametrize(
    ("told", "kind", "rank", "step"),
    [
        (NAN, "not_finite", 1, 12),
        (DESYNC, "desync", 2, 40),
        (("OutOfMemoryError", "the GPU ran out of memory", "rank 3"), "out_of_memory", 0, 12),
        (("StorageError", "the disk is full"), "disk_full", 0, 12),
        (("LoaderError", "no batch came from the loader for 300 s"), "message", 0, 12),
        (("SomethingNew", "what"), "message", 0, 12),
    ],
)
def test_what_a_rank_said_is_the_first_finding(tmp_path: Path, told: Any, kind: str, rank: int, step: int) -> None:
    write_run(tmp_path, "failed", told[1], events=[failure(*told), failure(*GONE, rank=1, secondary=True)])
    first, *others = examine(tmp_path)
    assert (first.kind, first.rank, first.step, first.severity) == (kind, rank, step, "critical")
    assert first.do == "do this"
    assert others == []


def test_a_rank_that_died_without_a_word_is_named_before_its_victims(tmp_path: Path) -> None:
    reason = "rank 1 (pid 4712) was killed by signal 9 (SIGKILL; often the out-of-memory killer)"
    logs = {
        "rank_00000.log": PEER,
        "launcher.log": "ERROR:torch.distributed.elastic.multiprocessing.api:failed (exitcode: -9) local_rank: 1 (pid: 4712)\n",
    }
    write_run(tmp_path, "failed", reason, events=[failure(*GONE, secondary=True)], logs=logs)
    found = examine(tmp_path)
    assert [(each.kind, each.rank, each.cause) for each in found] == [
        ("dead_rank", 1, "sigkill"),
        ("message", None, "killed"),
        ("message", 0, "peer_gone"),
    ]


def test_where_only_victims_spoke_they_are_heard(tmp_path: Path) -> None:
    write_run(tmp_path, "failed", "something", events=[failure(*GONE, secondary=True)])
    (found,) = examine(tmp_path)
    assert (found.kind, found.severity) == ("dead_rank", "warning")
    assert judge_failures(None, []) == []


def beats(step: int, phase: str, seconds: int = 40, **more: Any) -> list[dict[str, Any]]:
    now = time.time()
    moving = [{"step": step - 3, "phase": "forward", "time": now - 100}]
    return moving + [{"step": step, "phase": phase, "time": now - seconds + i} | more for i in range(0, seconds + 1, 5)]


def test_the_last_heartbeats_tell_who_stood_still(tmp_path: Path) -> None:
    told = {0: beats(120, "backward"), 1: beats(120, "data"), 2: beats(120, "backward")}
    write_run(tmp_path, "running", world_size=3, beats=told)
    (found,) = examine(tmp_path)
    assert (found.kind, found.rank, found.cause, found.witnesses[0].name) == ("stall", 1, "data", "heartbeat")
    moving, known = told | {1: beats(120, "data", 5)}, {rank: [b | {"attempt": 1} for b in told[rank]] for rank in told}
    assert judge_beats({r: [b | {"attempt": 1} for b in moving[r]] for r in moving}, 1, Limits()) == []
    assert judge_beats(known, 2, Limits()) == []
    undeclared = {rank: [b | {"attempt": 1, "phase": "step"} for b in told[rank]] for rank in told}
    (found,) = judge_beats(undeclared, 1, Limits())
    assert (found.kind, found.severity) == ("stall", "warning"), "it may have evaluated, without saying so"
    (found,) = judge_beats(undeclared, 1, Limits(phase_limits={"step": 30}))
    assert found.severity == "critical"
    assert judge_beats({0: [{"attempt": 1}], 1: [{"attempt": 1, "step": "x", "phase": None}]}, 1, Limits()) == []


def test_a_gpu_with_a_low_clock_is_throttled() -> None:
    told = {
        rank: [
            b | {"attempt": 1}
            for b in beats(120, "end", 30, gpu={"util": 97, "clock_mhz": 1100 if rank == 2 else 1980})
        ]
        for rank in range(4)
    }
    (found,) = judge_beats(told, 1, Limits())
    assert (found.kind, found.rank) == ("throttled", 2)


def test_a_run_that_nobody_runs_any_more_is_said_to_be_abandoned(tmp_path: Path) -> None:
    write_run(tmp_path)
    assert examine(tmp_path) == []
    (found,) = examine(tmp_path, is_owned=False)
    assert (found.cause, found.severity) == ("abandoned", "critical")


def test_what_a_supervisor_noted_is_recalled_with_its_incident(tmp_path: Path) -> None:
    noted = Finding(
        "stall", "it stood still", "look", severity="critical", rank=1, witnesses=(Witness("pulse", True, "x"),)
    )
    events = [
        ("incident", {"finding": noted.to_record(), "incident": "0001-stall-rank1"}),
        ("finding", {"finding": {"kind": "of another version"}, "incident": None}),
    ]
    write_run(tmp_path, "failed", "halted", events=events)
    (found,) = examine(tmp_path)
    assert (found.kind, found.rank) == ("stall", 1)
    assert "incidents/0001-stall-rank1" in found.do
    assert finding_from_record(noted.to_record() | {"more": 1}) == noted
    for state, severity in (("finished", "note"), ("running", "critical")):
        write_run(tmp_path, state)
        assert [each.severity for each in examine(tmp_path)] == [severity]
    run = Made(2)
    run.train(20, None, 0.05)
    moving = run.sight()
    run.everybody(21, "data")
    (found,) = examine(tmp_path, moving, run.sight())  # it lives, and gets on
    assert (found.severity, found.what) == ("note", "it stood still; the run went on afterwards")


def test_while_a_rank_is_stopped_nothing_went_on(tmp_path: Path) -> None:
    slow = replace(STALL, kind="slow", severity="note", rank=0, what="steps became slow")
    events = [("finding", {"finding": slow.to_record()}), ("incident", INCIDENT | {"action": "none"})]
    layout = write_run(tmp_path, events=events)
    run = Made(2)
    run.train(20, None, 0.05)
    run.become(1, "stopped")
    first = run.sight()
    run.wait(2)
    what = {each.kind: each.what for each in examine(tmp_path, first, run.sight())}
    assert list(what) == ["stopped", "stall", "slow"]
    assert not any("went on" in each for each in what.values())
    report = layout.incidents / INCIDENT["incident"] / "report.json"
    report.parent.mkdir(parents=True)
    for ended in (None, 12.0):
        write_json(report, {"ended": ended})
        what = {each.kind: each.what for each in examine(tmp_path, first, run.sight())}
        assert ("went on" in what["stall"]) == (ended is not None), "that one was over before"


def test_a_halt_that_nobody_lived_to_write_down_is_told_as_a_halt(tmp_path: Path) -> None:
    """The supervisor was killed with its ranks: run.json says running, report.json of the incident has no end."""
    events = [("incident", INCIDENT | {"action": "none"}), ("incident", INCIDENT | {"action": "killed"})]
    write_run(tmp_path, events=events)
    run = Made(2)
    run.train(20, None, 0.05)
    first = run.sight()
    for rank in (0, 1):
        run.become(rank, "gone")
    run.wait(1)
    stall, abandoned = examine(tmp_path, first, run.sight(), is_owned=False)
    assert (stall.kind, stall.severity, stall.what) == ("stall", "critical", STALL.what)
    assert (abandoned.cause, abandoned.severity) == ("abandoned", "warning")
    assert "a supervisor ended its ranks" in abandoned.what


def begin_again(root: Path, state: str, reason: str = "") -> None:
    """A second attempt, and what it says of the logs that are there already."""
    layout = RunLayout(root)
    run = load_run_file(root)
    assert run is not None
    sizes = {path.name: path.stat().st_size for path in (root / "logs").glob("*.log")}
    run.attempts.append(replace(run.attempts[-1], attempt=2, state=state, reason=reason, log_bytes=sizes))
    run.attempts[0].state = "failed"
    run.state, run.reason = state, reason
    run.save(layout)


STALL = Finding(
    "stall",
    "the run stands still: rank 1",
    "paceline diagnose RUN --stacks shows where each rank is",
    severity="critical",
    rank=1,
    cause="data",
    witnesses=(Witness("pulse", True, "x"),),
)
INCIDENT = {"finding": STALL.to_record(), "incident": "0001-stall-rank1"}
KILLED = "E1115 ERROR api: failed (exitcode: -9) local_rank: 1 (pid: 4712) of binary: python\n"


@pytest.mark.parametrize("action", ["killed", "restarted", "none"])
def test_our_own_kill_is_nobody_elses(tmp_path: Path, action: str) -> None:
    """Neither the out-of-memory killer's in torchrun's log, nor a lost rank's of a foreign script."""
    lost = failure("RankLostError", "the script was killed by signal 9", rank=0)
    events = [("incident", INCIDENT | {"action": "none"}), ("incident", INCIDENT | {"action": action}), lost]
    write_run(
        tmp_path, "failed", "halted: rank 1", events=events, logs={"launcher.log": KILLED, "rank_00000.log": PEER}
    )
    found = [(each.kind, each.cause) for each in examine(tmp_path)]
    if action == "none":
        assert found == [
            ("dead_rank", "RankLostError"),
            ("stall", "data"),
            ("message", "killed"),
            ("message", "peer_gone"),
        ]
    else:
        assert found == [("stall", "data")]


def test_an_earlier_attempt_is_told_as_that_and_its_logs_are_not_read(tmp_path: Path) -> None:
    events = [("incident", INCIDENT | {"action": "none"}), ("incident", INCIDENT | {"action": "restarted"})]
    write_run(tmp_path, "failed", "halted", events=events, logs={"launcher.log": KILLED, "rank_00003.log": PEER})
    begin_again(tmp_path, "finished", "length")
    (found,) = examine(tmp_path)
    assert (found.kind, found.rank, found.severity) == ("stall", 1, "note")
    assert found.what == "in attempt 1, and its supervisor ended it: the run stands still: rank 1"
    assert "incidents/0001-stall-rank1/report.md" in found.do
    begin_again(tmp_path, "failed", "something")
    assert [each.severity for each in examine(tmp_path)] == ["note"]
    with open(tmp_path / "logs" / "launcher.log", "a") as log:
        log.write("RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB.\n")
    assert [(each.kind, each.severity) for each in examine(tmp_path)] == [
        ("out_of_memory", "critical"),
        ("stall", "note"),
    ]


def test_advice_for_a_run_that_has_ended_can_be_followed(tmp_path: Path) -> None:
    stopped = replace(STALL, kind="stopped", do="kill -CONT 4711 lets it go on; a scheduler can say why")
    events = [("incident", INCIDENT), ("incident", {"finding": stopped.to_record(), "incident": "0002-stopped-rank1"})]
    write_run(tmp_path, "failed", "halted", events=events)
    do = {each.kind: each.do for each in examine(tmp_path)}
    assert do == {
        "stall": "its stacks and beats: incidents/0001-stall-rank1",
        "stopped": "a scheduler can say why; its stacks and beats: incidents/0002-stopped-rank1",
    }
    run = Made(2)
    run.train(20, None, 0.05)
    moving = run.sight()
    run.everybody(21, "data")
    write_run(tmp_path, "running")
    assert f"paceline diagnose {tmp_path} --stacks" in examine(tmp_path, moving, run.sight())[-1].do


def test_advice_for_a_loop_of_ones_own_names_neither_logs_nor_keys_that_it_has_not(tmp_path: Path) -> None:
    died = replace(STALL, kind="dead_rank", do="read the end of logs/rank_00001.log; dmesg tells more")
    only = replace(STALL, kind="slow", do="read logs/rank_00001.log", severity="warning")
    slow = [row | bound_rows(1, data_ms=50.0)[0] | {"step": row["step"]} for row in rows(6)]
    events = [("finding", {"finding": each.to_record()}) for each in (died, only)]
    for recipe in ("sdk", "sasrec"):
        layout = write_run(tmp_path / recipe, "failed", "x", recipe=recipe, metrics=slow, events=events)
        if recipe == "sasrec":
            layout.log(1).touch()
        do = {each.kind: each.do for each in examine(tmp_path / recipe)}
        assert ("data.num_workers" in do["data_bound"]) == (recipe == "sasrec")
        assert ("rank_00001.log" in do["dead_rank"]) == (recipe == "sasrec")
        assert do["dead_rank"].endswith("dmesg tells more")
        assert ("logs/" in do["slow"]) == (recipe == "sasrec")
        write_run(tmp_path / recipe, "running", recipe=recipe)
        abandoned = next(each for each in examine(tmp_path / recipe, is_owned=False) if each.cause == "abandoned")
        assert ("paceline train" in abandoned.do) == (recipe == "sasrec")


def test_a_copy_of_a_run_is_not_declared_dead(tmp_path: Path) -> None:
    layout = write_run(tmp_path)
    write_json(layout.environment, {"v": 1, "host": "another-host"})
    for owned in (False, None):
        (found,) = examine(tmp_path, is_owned=owned)
        assert (found.cause, found.severity) == ("copy", "note")
        assert "another-host" in found.what
        assert "cannot be seen from here" in found.what
    write_json(layout.environment, {"v": 1, "host": socket.gethostname()})
    assert [each.cause for each in examine(tmp_path, is_owned=False)] == ["abandoned"]
    run = Made(2)
    run.train(20, None, 0.05)
    moving = run.sight()
    run.everybody(21, "data")
    now = run.sight()
    (found,) = examine(tmp_path, moving, now, is_owned=False)  # a copy on the same host: its ranks live
    assert (found.cause, found.severity) == ("copy", "note")
    workers = Lock(layout.workers_lock)
    workers.acquire(shared=True)  # as its ranks do
    (found,) = examine(tmp_path, moving, now, is_owned=False)  # no copy: they hold a lock of this very directory
    assert (found.cause, found.severity) == ("orphans", "critical")
    workers.release()


def test_a_living_run_is_looked_at(tmp_path: Path) -> None:
    write_run(tmp_path)
    run = Made(2)
    run.train(20, None, 0.05)
    run.move(0, 21, "backward")
    run.move(1, 21, "data")
    run.wait(30)
    first = run.sight()
    run.wait(1)
    (found,) = examine(tmp_path, first, run.sight())
    assert (found.kind, found.rank) == ("stall", 1)


def test_tables_of_a_finished_run_are_judged_too(tmp_path: Path) -> None:
    made = rows(6, memory_gib=lambda index, memory: 3 + 0.02 * index)
    slow = [row | bound_rows(1, data_ms=50.0)[0] | {"step": row["step"]} for row in made]
    timing = {0: bound_rows(wait_ms=30.0), 1: bound_rows(wait_ms=45.0)}
    write_run(tmp_path, "finished", "length", metrics=slow, timing=timing)
    assert [each.kind for each in examine(tmp_path)] == ["memory_growth", "data_bound", "communication_bound"]


def test_records_of_another_version_are_passed_over_and_said(tmp_path: Path) -> None:
    hang = {0: beats(3, "backward", 60), 1: beats(3, "data", 60)}
    layout = write_run(tmp_path, "failed", "x", beats=hang)
    assert [each.kind for each in examine(tmp_path)] == ["stall"]
    write_run(tmp_path, "failed", "x", events=[failure("ConfigError", "what")])
    for path in (layout.heartbeat(0), layout.heartbeat(1), layout.events):
        path.write_text(path.read_text().replace('"v":1', '"v":99').replace('"v": 1', '"v": 99'))
    assert examine(tmp_path) == []
    gaps = list_sources(read_run(tmp_path)).gaps
    assert "heartbeats are there of 0 of 2 ranks" in gaps
    assert any(gap.startswith("heartbeat/rank_00001.jsonl: ") and "of another version (99;" in gap for gap in gaps)
    assert "events.jsonl: 1 line of it is of another version (99; this one reads up to 1) and left out" in gaps


def test_torn_and_missing_files_are_passed_over(tmp_path: Path) -> None:
    layout = write_run(tmp_path, "failed", "x", beats={0: beats(3, "data")}, logs={"rank_00000.log": "\xff\x00" * 10})
    layout.heartbeat(0).write_text('{"v":1,"time":17')
    layout.events.write_text('{"kind":"failure","att')
    (tmp_path / "logs" / "rank_x.log").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "timing" / "rank_00000.csv").write_text("attempt,step\n1,")
    assert examine(tmp_path) == []


def test_causes_come_before_their_effects_and_nothing_twice() -> None:
    def made(kind: str, severity: str, rank: int | None = None, since: float | None = None) -> Finding:
        return Finding(kind, kind, "", severity=severity, rank=rank, since=since)

    shuffled = [
        made("data_bound", "warning"),
        made("message", "note"),
        made("stall", "critical", 0),
        made("dead_rank", "critical", 2, 20.0),
        made("dead_rank", "critical", 1, 10.0),
        made("out_of_memory", "critical", 1),
        made("stall", "critical", 0),
    ]
    ordered = order_causes(shuffled)
    assert [(each.kind, each.rank) for each in ordered] == [
        ("out_of_memory", 1),
        ("dead_rank", 1),
        ("dead_rank", 2),
        ("stall", 0),
        ("data_bound", None),
        ("message", None),
    ]
    assert len(order_causes([made(kind, "note") for kind in KINDS])) == len(KINDS)
