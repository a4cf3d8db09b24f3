"""The four variants of sasrec (time × mHC) keep the product's promises: topology, resume, evaluation, export, recommendations.

Each variant trains with another loss, so that all kinds of negatives go through data parallelism and a resume, too.
"""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from paceline.telemetry.exports import building_export
from paceline.trained import load_model
from paceline.worker.model import write_files
from paceline.workload import Draw
from tests.integration.conftest import assert_same_bits

VARIANTS = {
    (False, False): ("loss.kind=sampled_softmax", "loss.negatives=popularity", "loss.num_negatives=5"),
    (False, True): ("loss.kind=sampled_softmax", "loss.negatives=in_batch", "loss.num_negatives=8"),
    (True, False): ("loss.kind=gbce", "loss.num_negatives=4", "model.positions=rotary"),
    (True, True): ("loss.kind=bce", "model.scores=cosine", "model.temperature=0.1"),
}
COMMON = (
    "data.window=random",
    "data.max_length=8",
    "train.max_steps=8",
    "train.micro_batch=5",
    "parallel.bucket_mb=0.004",
    "evaluate.every_steps=4",
    "evaluate.block=16",
    "evaluate.mask_seen=true",
    "checkpoint.every_steps=2",
    "checkpoint.asynchronous=false",
    "parallel.timeout_s=30",  # gloo may miss that a peer has died: this ends the survivor, not the end of the test's patience
)


@pytest.mark.parametrize(("time", "mhc"), VARIANTS, ids=["sasrec", "sasrec-mhc", "tisasrec", "tisasrec-mhc"])
def test_topology_resume_and_export(run_ranks, start_ranks, tmp_path: Path, time: bool, mhc: bool) -> None:
    options = (*COMMON, *VARIANTS[time, mhc], f"model.time={str(time).lower()}", f"model.mhc={str(mhc).lower()}")
    # On one rank and on three: the same losses.
    alone = run_ranks(1, *options, name="alone")
    spread = run_ranks(3, *options, name="spread")
    for ours, theirs in zip(spread.metrics, alone.metrics, strict=True):
        assert math.isclose(ours["loss"], theirs["loss"], rel_tol=1e-5), f"step {ours['step']}"
    assert [row["num_samples"] for row in spread.validation] == [153, 153, 153]
    # Killed and resumed, with dropout: the bits of the uninterrupted run.
    options = (*options, "model.dropout=0.2")
    reference = run_ranks(3, *options, name="reference")
    killed = start_ranks(3, *options, plant="kill:rank=1,step=6")
    killed.wait()
    assert killed.codes == [4, -9, 4]
    resumed = run_ranks(3, *options)
    assert [event["start_step"] for event in resumed.events_of("plan")] == [0, 4]
    assert_same_bits(resumed, reference)
    # What is exported, and loaded again, gives the same.
    trained = load_model(tmp_path / "run")
    with building_export(tmp_path / "out") as directory:
        write_files(trained, directory)
    exported = load_model(tmp_path / "out")
    batch = trained.workload.evaluation_set("test").fetch(range(20), Draw(0, 0))
    with torch.no_grad():
        assert torch.equal(*(each.model.last_hidden(batch) for each in (trained, exported)))
    # What holds the streams together is logged.
    observed = [event["values"] for event in resumed.events_of("observation")]
    assert bool(observed) == mhc
    assert all(values["mhc_deviation"] < 0.05 for values in observed)
