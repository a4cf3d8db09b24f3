"""What a run says when something goes wrong inside it: the guilty rank by name, the right exit code, nothing left."""

from __future__ import annotations


def test_parameters_that_drift_apart_are_noticed_and_named(start_ranks):
    started = start_ranks(3, "train.max_steps=1000", "parallel.check_every=5", plant="desync:rank=1,step=7")
    run = started.wait()
    assert started.codes == [4, 4, 4]
    failures = run.events_of("failure")
    assert {failure["error"] for failure in failures} == {"DesyncError"}
    problem = failures[0]["problems"][0]
    assert "at step 10" in problem["what"]
    assert "rank 1 differs from the 2 others" in problem["what"]
    assert "embedding" in problem["where"]


def test_two_ranks_that_differ_are_noticed_at_the_end(start_ranks):
    started = start_ranks(2, "train.max_steps=8", plant="desync:rank=0,step=3")
    run = started.wait()
    assert started.codes == [4, 4]
    assert "no majority" in run.events_of("failure")[0]["problems"][0]["what"]


def test_an_exception_names_its_rank_and_the_others_are_victims(start_ranks):
    started = start_ranks(2, "train.max_steps=1000", plant="raise:rank=1,step=4")
    run = started.wait()
    assert all(code == 4 for code in started.codes)
    failures = {event["rank"]: event for event in run.events_of("failure")}
    assert failures[1]["secondary"] is False
    assert "ZeroDivisionError: planted" in failures[1]["problems"][0]["what"]
    assert "planted.py" in failures[1]["problems"][0]["where"]
    assert failures[0]["secondary"] is True
    assert "ZeroDivisionError" in started.text(1)
    assert "Traceback" not in started.text(1)
    assert "Traceback" in (started.root / "logs" / "rank_00001.log").read_text()


def test_a_rank_that_dies_ends_the_others(start_ranks):
    started = start_ranks(3, "train.max_steps=100000", plant="kill:rank=2,step=4")
    run = started.wait()
    assert started.codes[2] == -9
    assert started.codes[:2] == [4, 4]
    assert {event["rank"]: event["secondary"] for event in run.events_of("failure")} == {0: True, 1: True}


def test_under_a_foreign_launcher_rank_0_speaks_for_all(start_ranks, tmp_path):
    """A refusal is printed once, all ranks end with its code; settings for our launcher are said to do nothing."""
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "notes.txt").write_text("mine")
    refused = start_ranks(2, "train.max_steps=3")
    assert refused.zygote.wait(30) == [2, 2]
    assert "notes.txt" in refused.text(0)
    assert refused.text(1) == ""
    started = start_ranks(2, "train.max_steps=3", "launch.nproc=4", "launch.omp_threads=7", name="other")
    notes = {event["what"].split()[0]: event["why"] for event in started.wait().events_of("note")}
    assert started.codes == [0, 0]
    assert notes["launch.nproc"] == notes["launch.omp_threads"] == "the ranks were started by another launcher"


def test_a_worker_does_not_write_into_a_run_that_nobody_claimed_for_it(start_ranks):
    started = start_ranks(1, "train.max_steps=2", "evaluate.block=1000000000")
    run = started.wait()
    assert started.codes == [0]
    before = run.layout.metrics.read_text()
    again = start_ranks(1, "train.max_steps=3", "--attempt", "9")
    assert again.zygote.wait(30) == [2]
    assert "leave --attempt out" in again.text(0)
    assert run.layout.metrics.read_text() == before


def test_a_loader_process_that_is_killed_is_named_by_its_rank(start_ranks):
    """As the out-of-memory killer would do it; the other rank is a victim."""
    options = ("data.placement=host", "data.num_workers=1", "data.loader_timeout_s=60")
    started = start_ranks(2, "train.max_steps=100000", *options, plant="kill_loader:rank=1,step=5")
    run = started.wait()
    assert started.codes == [4, 4]
    failures = {event["rank"]: event for event in run.events_of("failure")}
    assert (failures[1]["error"], failures[1]["secondary"]) == ("LoaderError", False)
    assert "was killed by SIGKILL" in failures[1]["problems"][0]["what"]
    assert "rank 1, one of 1 loader processes" in failures[1]["problems"][0]["where"]
    assert failures[0]["secondary"] is True
    choices = {event["about"]: event["effective"] for event in run.events_of("choice")}
    assert (choices["data.num_workers"], choices["data.loader_timeout_s"]) == (1, 60)
