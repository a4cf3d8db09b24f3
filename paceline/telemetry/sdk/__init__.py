"""The SDK: a training loop that is not ours writes the same run directory as one that is. Standard library only.

from paceline.telemetry.sdk import start_run        # or: from paceline import start_run

with start_run("runs/mine", config={"lr": 0.1}) as run:
    for batch in batches:
        ...
        run.step(loss=loss, samples=len(batch))
"""

from paceline.telemetry.sdk.run import TrackedRun
from paceline.telemetry.sdk.start import start_run

__all__ = ["TrackedRun", "start_run"]
