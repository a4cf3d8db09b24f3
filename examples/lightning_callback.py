"""A Lightning Trainer that writes a Paceline run directory, through a callback of fifty lines.

pip install lightning
python examples/lightning_callback.py --out runs/lightning
torchrun --nproc-per-node 2 examples/lightning_callback.py --devices 2 --out runs/lightning-2
"""

from __future__ import annotations

import argparse
import contextlib
from pathlib import Path
from typing import Any

import lightning
import torch
from lightning.pytorch.callbacks import Callback
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from paceline import start_run


class PacelineCallback(Callback):
    """Tells steps, evaluations, saves and the end of a Trainer; on every rank. What it does before and after `fit` is no part of the run.

    Between two batches no phase is declared: beside the loader all other callbacks, hooks and loggers have their turn there, and what
    may be anything has more time than data before it counts as hung.
    """

    def __init__(self, out: str | Path, config: dict[str, Any] | None = None) -> None:
        self._out, self._config = out, config
        self._phase = contextlib.ExitStack()
        self._samples = 0
        self._run: Any = None  # None: it does not train

    def on_train_start(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        self._run = start_run(
            self._out,
            self._config,
            start_step=trainer.global_step,
            total_steps=int(trainer.estimated_stepping_batches),
            log_every=trainer.log_every_n_steps,
            rank=trainer.global_rank,
            world_size=trainer.world_size,
        )

    def on_train_batch_start(
        self, trainer: lightning.Trainer, pl_module: lightning.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        self._enter("forward")

    def on_before_backward(
        self, trainer: lightning.Trainer, pl_module: lightning.LightningModule, loss: torch.Tensor
    ) -> None:
        self._enter("backward")

    def on_before_optimizer_step(
        self, trainer: lightning.Trainer, pl_module: lightning.LightningModule, optimizer: torch.optim.Optimizer
    ) -> None:
        self._enter("optimizer")

    def on_train_batch_end(
        self, trainer: lightning.Trainer, pl_module: lightning.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self._phase.close()
        self._samples += len(batch[0])
        if trainer.global_step > self._run.last_step:  # the last of the batches that gradients are accumulated over
            lr = trainer.optimizers[0].param_groups[0]["lr"]
            epoch, loss = trainer.current_epoch, outputs["loss"]
            self._run.step(loss, samples=self._samples, step=trainer.global_step, epoch=epoch, lr=lr)
            self._samples = 0
            trainer.should_stop = self._should_stop(trainer, pl_module) or trainer.should_stop

    def on_validation_start(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        self._enter("evaluate")

    def on_validation_end(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        self._phase.close()
        if self._run is not None:
            self._run.validation(trainer.callback_metrics, step=trainer.global_step)

    def on_save_checkpoint(
        self, trainer: lightning.Trainer, pl_module: lightning.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        self._enter("checkpoint")  # it is about to be written; whatever comes next ends the phase

    def on_train_end(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        self._finish()

    def on_exception(
        self, trainer: lightning.Trainer, pl_module: lightning.LightningModule, exception: BaseException
    ) -> None:
        self._finish(error=exception)

    def _finish(self, error: BaseException | None = None) -> None:
        self._phase.close()
        if self._run is not None:
            self._run.finish(error=error)
            self._run = None

    def _should_stop(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> bool:
        """The same on all ranks. On several hosts each sees the request at a step of its own: rank 0 decides, once per window."""
        if self._run.is_one_host:
            return self._run.should_stop
        if trainer.global_step % trainer.log_every_n_steps:
            return False
        asked = torch.tensor(int(self._run.should_stop), device=pl_module.device)
        torch.distributed.broadcast(asked, src=0)
        return bool(asked.item())

    def _enter(self, phase: str) -> None:
        self._phase.close()
        if self._run is not None:
            self._phase.enter_context(self._run.phase(phase))


class Classifier(lightning.LightningModule):
    """Which side of a curved border a point lies on."""

    def __init__(self, lr: float) -> None:
        super().__init__()
        self.lr = lr
        self.layers = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 2))

    def training_step(self, batch: list[torch.Tensor], batch_idx: int) -> torch.Tensor:
        return nn.functional.cross_entropy(self.layers(batch[0]), batch[1])

    def validation_step(self, batch: list[torch.Tensor], batch_idx: int) -> None:
        accuracy = (self.layers(batch[0]).argmax(1) == batch[1]).float().mean()
        self.log("val/accuracy", accuracy, sync_dist=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=self.lr)


def generate(num_samples: int, seed: int) -> DataLoader[Any]:
    points = torch.randn(num_samples, 16, generator=torch.Generator().manual_seed(seed))
    labels = (points[:, 0] * points[:, 1] + points[:, 2] > 0).long()
    return DataLoader(TensorDataset(points, labels), batch_size=64)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("runs/lightning"))
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--devices", type=int, default=1)
    parser.add_argument("--lr", type=float, default=0.01)
    arguments = parser.parse_args()
    lightning.seed_everything(0)
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=arguments.devices,
        max_steps=arguments.steps,
        val_check_interval=min(30, arguments.steps),
        check_val_every_n_epoch=None,
        log_every_n_steps=10,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[PacelineCallback(arguments.out, {"lr": arguments.lr})],
    )
    trainer.fit(Classifier(arguments.lr), generate(4096, seed=1), generate(1024, seed=2))


if __name__ == "__main__":
    main()
