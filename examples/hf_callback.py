"""A Hugging Face Trainer that writes a Paceline run directory, through a callback of fifty lines.

    pip install transformers accelerate
    python examples/hf_callback.py --out runs/hf
    torchrun --nproc-per-node 2 examples/hf_callback.py --out runs/hf-2

The Trainer tells its loss where it logs: the mean over its `logging_steps`, which are also the windows of metrics.csv.
"""

from __future__ import annotations

import argparse
import contextlib
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from paceline import start_run


class PacelineCallback(TrainerCallback):
    """Tells steps, evaluations, saves and the end of a Trainer; on every rank. What it does before and after `train` is no part of the run."""

    def __init__(self, out: str | Path, config: dict[str, Any] | None = None) -> None:
        self._out, self._config = out, config
        self._phase, self._phase_name = contextlib.ExitStack(), ""
        self._run: Any = None  # None: it does not train

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self._log_every = int(args.logging_steps)
        self._run = start_run(
            self._out,
            self._config,
            start_step=state.global_step,
            total_steps=state.max_steps,
            log_every=self._log_every,
        )
        self._samples = args.train_batch_size * args.gradient_accumulation_steps

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        if not control.should_log:  # else on_log follows, and knows the loss
            self._step(state)
            self._announce(control)
        control.should_training_stop |= self._should_stop(args, state)

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **_: Any,
    ) -> None:
        if logs is not None and "loss" in logs:
            self._step(state, logs["loss"], logs.get("learning_rate"), logs.get("grad_norm"))
            self._announce(control)

    def on_epoch_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self._announce(control)

    def on_prediction_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        self._enter("evaluate")

    def on_evaluate(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        metrics: dict[str, float] | None = None,
        **_: Any,
    ) -> None:
        own = {name.removeprefix("eval_"): value for name, value in (metrics or {}).items() if name.startswith("eval_")}
        pace = ("runtime", "samples_per_second", "steps_per_second")
        if self._run is not None:
            self._run.validation({name: own[name] for name in own if name not in pace}, step=state.global_step)
        self._announce(control)

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self._announce(control)

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self._enter("")
        self._step(state)
        if self._run is not None:
            self._run.finish()
            self._run = None

    def _announce(self, control: TrainerControl) -> None:
        """What the Trainer does next: it logs, evaluates and saves, in this order, where its control says so."""
        self._enter("evaluate" if control.should_evaluate else "checkpoint" if control.should_save else "")

    def _enter(self, phase: str) -> None:
        if self._run is not None and phase != self._phase_name:
            self._phase.close()
            self._phase_name = phase
            if phase:
                self._phase.enter_context(self._run.phase(phase))

    def _should_stop(self, args: TrainingArguments, state: TrainerState) -> bool:
        """The same on all ranks. On several hosts each sees the request at a step of its own: rank 0 decides, once per window."""
        if self._run.is_one_host:
            return self._run.should_stop
        if state.global_step % self._log_every:
            return False
        asked = torch.tensor(int(self._run.should_stop), device=args.device)
        torch.distributed.broadcast(asked, src=0)
        return bool(asked.item())

    def _step(self, state: TrainerState, loss: Any = None, lr: Any = None, grad_norm: Any = None) -> None:
        if self._run is not None and state.global_step > self._run.last_step:
            self._run.step(
                loss,
                samples=self._samples,
                step=state.global_step,
                epoch=int(state.epoch or 0),
                lr=lr,
                grad_norm=grad_norm,
            )


class Classifier(nn.Module):
    """Which side of a curved border a point lies on; in the form that the Trainer expects."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 2))

    def forward(self, points: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        logits = self.layers(points)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


class Points(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """Generated points with their labels."""

    def __init__(self, num_samples: int, seed: int) -> None:
        self.points = torch.randn(num_samples, 16, generator=torch.Generator().manual_seed(seed))
        self.labels = (self.points[:, 0] * self.points[:, 1] + self.points[:, 2] > 0).long()

    def __len__(self) -> int:
        return len(self.points)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"points": self.points[index], "labels": self.labels[index]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("runs/hf"))
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--lr", type=float, default=0.01)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        settings = TrainingArguments(
            output_dir=folder,
            max_steps=arguments.steps,
            per_device_train_batch_size=64,
            learning_rate=arguments.lr,
            logging_steps=10,
            eval_strategy="steps",
            eval_steps=30,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            use_cpu=True,
            seed=0,
        )
        trainer = Trainer(
            model=Classifier(),
            args=settings,
            train_dataset=Points(4096, seed=1),
            eval_dataset=Points(1024, seed=2),
            compute_metrics=lambda found: {"accuracy": float((found.predictions.argmax(1) == found.label_ids).mean())},
            callbacks=[PacelineCallback(arguments.out, {"lr": arguments.lr})],
        )
        trainer.train()


if __name__ == "__main__":
    main()
