"""DeepSpeed on an NVIDIA GPU: two ranks on one (gloo), or on two (NCCL): the losses of DDP, also where autocast has to get through to the model."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from tests.gpu.test_sharding import curve, train

pytest.importorskip("deepspeed", reason="deepspeed is not installed (pip install 'paceline[deepspeed]')")
pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600)]


@pytest.mark.parametrize("mode", ["fp32", "bf16"])
def test_losses_are_ddps_at_every_stage(tmp_path: Path, mode: str) -> None:
    settings = (f"precision.mode={mode}", "train.max_steps=20")
    plain = train(tmp_path / "plain", 2, *settings)
    for stage in (0, 1, 2, 3):
        run = train(
            tmp_path / f"stage-{stage}", 2, *settings, "parallel.engine=deepspeed", f"parallel.zero_stage={stage}"
        )
        for (loss, norm), (expected, expected_norm) in zip(curve(run), curve(plain), strict=True):
            # In bf16 the same to its rounding.
            assert math.isclose(loss, expected, rel_tol=1e-5 if mode == "fp32" else 1e-3), (stage, loss, expected)
            assert math.isclose(norm, expected_norm, rel_tol=1e-3 if mode == "fp32" else 2e-2)
