"""On one NVIDIA GPU: a profile beside CUDA graphs, true phase times, NVTX ranges, pinned batches from a loader process that is named."""

from __future__ import annotations

import gzip
import json
import os
import signal

import pytest
import torch

from paceline.config.arithmetic import plan_length
from paceline.engine.loader import Loader
from paceline.errors import LoaderError
from paceline.telemetry.tables import read_table
from tests.engine.conftest import Numbers, build_context
from tests.gpu.test_cuda import effective, losses, train

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]
EXACT = ("run.deterministic=true", "telemetry.log_every=1")


def test_a_profile_sees_the_kernels_and_changes_no_bit_with_graphs_or_without(tmp_path):
    for graph in ("true", "false"):
        options = (f"train.graph={graph}", "data.placement=device", *EXACT)
        plain = train(tmp_path / f"plain-{graph}", 1, *options)
        window = ("telemetry.profile.start_step=10", "telemetry.profile.num_steps=4", "checkpoint.every_steps=12")
        run = train(tmp_path / f"profiled-{graph}", 1, *options, *window)
        assert effective(run)["train.graph"] is (graph == "true")
        assert losses(run) == losses(plain)
        assert [row["step"] for row in run.metrics if row["step_ms"] is None] == [10, 11, 12, 13]
        rows = read_table(run.layout.profile_table(1, 0))
        kernels = [row for row in rows if row["kind"] == "kernel"]
        assert sum(row["device_ms"] for row in kernels) > 0
        assert any("gemm" in row["name"] or "cutlass" in row["name"] or "nvjet" in row["name"] for row in kernels)
        trace = json.loads(gzip.decompress(run.layout.profile_trace(1, 0).read_bytes()))
        assert {"step 10", "step 13"} <= {entry.get("name") for entry in trace["traceEvents"]}


def test_phases_have_their_own_time_and_ranges_when_the_host_waits_for_the_device(tmp_path):
    plain = train(tmp_path / "plain", 1, *EXACT)
    run = train(tmp_path / "synced", 1, *EXACT, "telemetry.sync_timing=true", "telemetry.nvtx=true")
    assert losses(run) == losses(plain)
    assert effective(run)["telemetry.sync_timing"] is True
    assert effective(run)["telemetry.nvtx"] is True
    for row in run.metrics[5:]:
        phases = sum(row[f"{phase}_ms"] for phase in ("data", "forward", "backward", "optimizer"))
        assert 0 < phases <= row["step_ms_p50"] * 1.001 + 0.01
    assert not run.events_of("note")


def test_pinned_batches_come_from_a_loader_process_and_its_death_is_named(tmp_path):
    class Deadly(Numbers):
        def fetch(self, ids, draw):
            if os.path.exists(tmp_path / "now"):
                os.kill(os.getpid(), signal.SIGKILL)
            return super().fetch(ids, draw)

    data = {"num_workers": 1, "prefetch": 1, "loader_timeout_s": 30}
    context = build_context(tmp_path, {"data": data, "train": {"global_batch": 8}}, device=torch.device("cuda"))
    batches = Loader(context, Deadly(40), plan_length(context.config.train, 40)).load(1, 1000)
    assert next(batches).batch["x"].is_pinned()
    (tmp_path / "now").touch()
    with pytest.raises(LoaderError, match=r"killed by SIGKILL while fetching step"):
        list(batches)
