"""The ledger: which samples each rank trained on in each micro-step, and their loss, taken where the loss is computed.

    {"attempt":1,"step":3,"micro_step":0,"epoch":0,"ids":[17,4,9],"loss_sum":12.5,"weight":31.0}

It is the proof of guarantees 3 and 4, and costs a synchronisation per micro-step: `telemetry.ledger=true` asks for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from paceline.files import LineWriter


class Ledger:
    """Appends one line per micro-step of one rank."""

    def __init__(self, path: Path, attempt: int) -> None:
        self._lines = LineWriter(path)
        self._attempt = attempt

    def write(
        self, *, step: int, micro_step: int, epoch: int, ids: Sequence[int], loss_sum: float, weight: float
    ) -> None:
        self._lines.write_record(
            {
                "attempt": self._attempt,
                "step": step,
                "micro_step": micro_step,
                "epoch": epoch,
                "ids": list(ids),
                "loss_sum": loss_sum,
                "weight": weight,
            }
        )

    def close(self) -> None:
        self._lines.close()
