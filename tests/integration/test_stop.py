"""Guarantee 7: all ranks stop at the same step, within two steps of the request, whatever asks."""

from __future__ import annotations

import os
import signal

from paceline.telemetry.stop_request import write_stop_request

ENDLESS = "train.max_steps=1000000"


def last_steps(run, ranks: int) -> set[int]:
    """The step of each rank's last heartbeat, which it writes as it ends."""
    beats = [run.beats(rank)[-1] for rank in range(ranks)]
    assert len(beats) == ranks
    return {beat["step"] for beat in beats}


def ending(run) -> tuple[str, str]:
    (end,) = run.events_of("end")
    return end["state"], end["reason"]


def test_a_signal_to_one_rank_stops_all(start_ranks):
    started = start_ranks(3, ENDLESS)
    started.wait_for_step(5)
    os.kill(started.pids[1], signal.SIGTERM)
    run = started.wait()
    # Under a foreign launcher rank 0 answers for the run, the others end in order.
    assert set(started.codes) <= {0, 130}
    assert started.codes[0] == 130
    assert ending(run) == ("stopped", "sigterm")
    assert len(last_steps(run, 3)) == 1
    assert run.run.state == "stopped"


def test_sigterm_to_a_whole_process_group_leaves_the_loaders_alone(start_ranks):
    """What torchrun does when it is told to end: every process of each rank gets the signal."""
    started = start_ranks(2, ENDLESS, "data.placement=host", "data.num_workers=1")
    started.wait_for_step(5)
    for pid in started.pids:
        os.killpg(pid, signal.SIGTERM)
    run = started.wait()
    assert started.codes == [130, 0], run.events_of("failure")
    assert ending(run) == ("stopped", "sigterm")
    assert len(last_steps(run, 2)) == 1


def test_a_stop_request_is_followed_within_two_steps(start_ranks):
    # Slow steps, so that the moment of the request can be told apart from the steps.
    started = start_ranks(2, ENDLESS, plant="sleep:seconds=0.3")
    started.wait_for_step(3)
    write_stop_request(started.root / "stop_request.json", attempt=7, reason="stop_command", by="an earlier attempt")
    started.wait_for_step(6)
    before = len((started.root / "metrics.csv").read_text().splitlines()) - 1
    write_stop_request(started.root / "stop_request.json", attempt=1, reason="stop_command", by="test")
    run = started.wait()
    assert started.codes == [0, 0]
    assert ending(run) == ("stopped", "stop_command")
    (step,) = last_steps(run, 2)
    # The step that was under way when we counted, and two more.
    assert step <= before + 3
    assert run.metrics[-1]["step"] == step, "the last, partial window is logged, too"


def test_a_supervisor_that_halts_them_is_followed_together(start_ranks):
    started = start_ranks(2, ENDLESS)
    started.wait_for_step(5)
    write_stop_request(started.root / "stop_request.json", attempt=1, reason="halted", by="incident 0001")
    run = started.wait()
    assert started.codes == [5, 0]
    assert ending(run) == ("stopped", "halted")
    assert len(last_steps(run, 2)) == 1


def test_the_time_limit_stops_all(start_ranks):
    started = start_ranks(2, ENDLESS, "stop.max_hours=0.0003")
    run = started.wait()
    assert started.codes == [0, 0]
    assert ending(run) == ("stopped", "max_hours")
    assert len(last_steps(run, 2)) == 1


def test_early_stop_is_agreed(run_ranks):
    # A learning rate of almost nothing never improves on the evaluation before the first step.
    run = run_ranks(
        3,
        ENDLESS,
        "train.optimizer.lr=1e-12",
        "evaluate.every_steps=4",
        "evaluate.at_start=true",
        "stop.patience=3",
        "stop.min_delta=0.01",
    )
    assert ending(run) == ("finished", "early_stop")
    assert last_steps(run, 3) == {12}
    assert run.validation[-1]["split"] == "test", "a run that ends by its own rule is evaluated to the end"


def test_not_a_number_stops_all_and_names_the_rank(start_ranks):
    started = start_ranks(3, ENDLESS, plant="nan:rank=1,step=6")
    run = started.wait()
    assert started.codes == [4, 4, 4]
    assert last_steps(run, 3) == {7}, "one step after the bad one"
    message = run.events_of("failure")[0]["problems"][0]
    assert "step 6" in message["where"]
    assert "rank 1" in message["where"]
    assert "not a number" in started.text(0)
    # The bad step was not applied: the next one trained on, with weights that are numbers.
    assert run.metrics[-1]["step"] == 6
    assert run.run.state == "failed"


def test_not_a_number_can_be_skipped_by_agreement(run_ranks):
    for options in ((), ("train.optimizer.fused=false",), ("train.optimizer.name=sgd", "train.optimizer.momentum=0.9")):
        given = () if "sgd" not in str(options) else ("train.optimizer.weight_decay=0.0",)
        run = run_ranks(
            2,
            "train.max_steps=6",
            "train.nonfinite=skip",
            *options,
            *given,
            plant="nan:rank=1,step=1",
            name=f"r{len(options)}",
        )
        losses = [row["loss"] for row in run.metrics]
        assert losses[0] != losses[0]
        assert all(loss == loss for loss in losses[1:])
        (warning,) = run.events_of("warning")
        assert "rank 1" in warning["where"]


def test_a_stop_in_the_middle_of_an_evaluation(start_ranks):
    started = start_ranks(
        2, "train.max_steps=4", "evaluate.every_steps=2", "evaluate.block=1", plant="slow_evaluation:seconds=0.05"
    )
    started.wait_for_step(2)
    os.kill(started.pids[1], signal.SIGTERM)
    run = started.wait()
    assert ending(run) == ("stopped", "sigterm")
    assert last_steps(run, 2) == {2}
    assert run.validation == []
