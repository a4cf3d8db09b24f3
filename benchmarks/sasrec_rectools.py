"""An epoch of RecTools' SASRec, trained by its own `SASRecModel.fit`: one sequence per user, a loss at each of its positions.

python sasrec_rectools.py --data ml-1m.txt --epochs 2 --threads 2

--loss bce is its BCE with one sampled negative, as in pmixer's SASRec; softmax is its default, over the whole catalogue.
"""

from __future__ import annotations

import warnings
from typing import Any

from sasrec_case import (
    DROPOUT,
    HEADS,
    HELD_OUT,
    LEARNING_RATE,
    Measured,
    build_parser,
    limit_threads,
    print_report,
    read_sequences,
)

LOSSES = {"bce": "BCE", "softmax": "softmax"}


def main() -> None:
    arguments = build_parser(tuple(LOSSES)).parse_args()
    limit_threads(arguments.threads)
    warnings.simplefilter("ignore")

    import numpy as np
    import pandas as pd
    import pytorch_lightning as lightning
    import rectools
    import torch
    from rectools import Columns
    from rectools.dataset import Dataset
    from rectools.models import SASRecModel

    measured = Measured()

    class Stopwatch(lightning.Callback):
        """The seconds of each epoch, without set-up; there is no validation to leave out."""

        def on_train_epoch_start(self, trainer: lightning.Trainer, module: lightning.LightningModule) -> None:
            self.batches = self.samples = self.positions = 0
            measured.begin()

        def on_train_batch_end(
            self, trainer: Any, module: Any, outputs: Any, batch: dict[str, torch.Tensor], *_: Any
        ) -> None:
            self.batches += 1
            self.samples += len(batch["y"])
            self.positions += int((batch["y"] != 0).sum())

        def on_train_epoch_end(self, trainer: lightning.Trainer, module: lightning.LightningModule) -> None:
            measured.end(self.batches, self.samples, self.positions)

    def build_trainer() -> lightning.Trainer:
        """The trainer that RecTools builds itself, with a stopwatch. It is copied before use: hence `measured` outside of it."""
        return lightning.Trainer(
            max_epochs=arguments.epochs,
            min_epochs=arguments.epochs,
            accelerator="cpu",
            devices=1,
            enable_progress_bar=False,
            enable_model_summary=False,
            enable_checkpointing=False,
            logger=False,
            limit_train_batches=arguments.max_batches,
            callbacks=[Stopwatch()],
        )

    lightning.seed_everything(1)
    train = {user: items[:-HELD_OUT] for user, items in read_sequences(arguments.data).items()}
    lengths = np.array([len(items) for items in train.values()])
    events = pd.DataFrame(
        {
            Columns.User: np.repeat(list(train), lengths),
            Columns.Item: np.concatenate(list(train.values())),
            Columns.Weight: 1.0,
        }
    )
    # RecTools orders by time: the place in the file, in seconds, is the order of the file.
    events[Columns.Datetime] = pd.Timestamp("2000-01-01") + pd.to_timedelta(np.arange(len(events)), unit="s")

    model = SASRecModel(
        n_blocks=arguments.blocks,
        n_heads=HEADS,
        n_factors=arguments.width,
        dropout_rate=DROPOUT,
        session_max_len=arguments.length,
        loss=LOSSES[arguments.loss],
        n_negatives=1,
        lr=LEARNING_RATE,
        batch_size=arguments.batch,
        dataloader_num_workers=0,
        get_trainer_func=build_trainer,
    )
    model.fit(Dataset.construct(events))

    trained = lengths[lengths >= 2]
    print_report(
        measured,
        samples_per_epoch=len(trained),
        positions_per_epoch=int(np.minimum(trained - 1, arguments.length).sum()),
        batch=arguments.batch,
        system="rectools",
        version=rectools.__version__,
        torch=torch.__version__,
        threads=torch.get_num_threads(),
        loss=f"{LOSSES[arguments.loss]}, 1 sampled negative"
        if arguments.loss == "bce"
        else "softmax over the catalogue",
        sequences_per_epoch=len(trained),
        parameters=sum(parameter.numel() for parameter in model.torch_model.parameters()),
        last_loss=round(float(model.fit_trainer.callback_metrics["train_loss"]), 4),
    )


if __name__ == "__main__":
    main()
