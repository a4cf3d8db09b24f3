"""An epoch of RecBole's SASRec, trained by its own `Trainer.fit` from its own loader.

python sasrec_recbole.py --data ml-1m.txt --epochs 2 --threads 2 --max-batches 100
python sasrec_recbole.py --data ml-1m.txt --epochs 2 --threads 2 --one-per-user

By default RecBole makes a sample of every prefix of every sequence, with a loss at its last position alone: ml-1m gives 980 thousand
samples, and `--max-batches` keeps that measurable. `--one-per-user` is the way its authors name for leaving the prefixes out: files that
are split already (`benchmark_filename`). An epoch is then as many forward passes as elsewhere, for one position per user.

It has no BCE. --loss bce means its BPR, the one with a sampled negative; ce is its default, over the whole catalogue.
"""

from __future__ import annotations

import itertools
import os
import sys
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
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

NAME = "case"
LOSSES = {"bce": "BPR", "ce": "CE"}


def write_events(folder: Path, sequences: dict[int, list[int]]) -> dict[str, Any]:
    """All events; RecBole splits them and makes the prefixes."""
    lines = ["user_id:token\titem_id:token\ttimestamp:float"]
    lines += [f"{user}\t{item}\t{when}" for user, items in sequences.items() for when, item in enumerate(items)]
    (folder / f"{NAME}.inter").write_text("\n".join(lines) + "\n")
    return {"load_col": {"inter": ["user_id", "item_id", "timestamp"]}}


def write_split(folder: Path, sequences: dict[int, list[int]], length: int) -> dict[str, Any]:
    """One line per user and part: what came before, and the answer."""
    parts = ["train", "valid", "test"]
    for part, held_out in zip(parts, (HELD_OUT, 1, 0), strict=True):
        lines = ["user_id:token\titem_id_list:token_seq\titem_id:token"]
        for user, items in sequences.items():
            *before, answer = items[: len(items) - held_out]
            if before:
                lines.append(f"{user}\t{' '.join(map(str, before[-length:]))}\t{answer}")
        (folder / f"{NAME}.{part}.inter").write_text("\n".join(lines) + "\n")
    return {
        "benchmark_filename": parts,
        "alias_of_item_id": ["item_id_list"],
        "load_col": {"inter": ["user_id", "item_id_list", "item_id"]},
    }


def main() -> None:
    parser = build_parser(tuple(LOSSES))
    parser.add_argument("--one-per-user", action="store_true", help="one sample per user, in place of one per prefix")
    arguments = parser.parse_args()
    del sys.argv[1:]  # RecBole reads it, too
    limit_threads(arguments.threads)
    warnings.simplefilter("ignore")

    import recbole
    import torch
    from recbole.config import Config
    from recbole.data import create_dataset, data_preparation

    # Not by its name: looking it up imports every model of RecBole, and one of them needs a package that RecBole does not ask for.
    from recbole.model.sequential_recommender.sasrec import SASRec
    from recbole.trainer import Trainer
    from recbole.utils import init_seed

    measured = Measured()

    class TimedTrainer(Trainer):
        """Its own epoch, timed, and cut short where that was asked for."""

        def _train_epoch(self, train_data: Any, *args: Any, **kwargs: Any) -> Any:
            batches = samples = 0

            def counted() -> Iterator[Any]:
                nonlocal batches, samples
                for batch in itertools.islice(train_data, arguments.max_batches):
                    batches += 1
                    samples += len(batch)
                    yield batch

            measured.begin()
            loss = super()._train_epoch(counted(), *args, **kwargs)
            measured.end(batches, samples, positions=samples)
            self.last_loss = loss / batches
            return loss

    sequences = read_sequences(arguments.data)
    with tempfile.TemporaryDirectory(prefix="recbole-") as scratch:
        folder = Path(scratch) / NAME
        folder.mkdir()
        one_per_user = arguments.one_per_user
        files = write_split(folder, sequences, arguments.length) if one_per_user else write_events(folder, sequences)
        os.chdir(scratch)  # RecBole writes logs and checkpoints where it stands
        settings = {
            **files,
            "data_path": scratch,
            "USER_ID_FIELD": "user_id",
            "ITEM_ID_FIELD": "item_id",
            "TIME_FIELD": "timestamp",
            "MAX_ITEM_LIST_LENGTH": arguments.length,
            "n_layers": arguments.blocks,
            "n_heads": HEADS,
            "hidden_size": arguments.width,
            # As in the paper and in pmixer's: as wide inside as outside, and ReLU. RecBole's own 4 × and GELU are slower.
            "inner_size": arguments.width,
            "hidden_act": "relu",
            "hidden_dropout_prob": DROPOUT,
            "attn_dropout_prob": DROPOUT,
            "loss_type": LOSSES[arguments.loss],
            "train_neg_sample_args": {"distribution": "uniform", "sample_num": 1} if arguments.loss == "bce" else None,
            "train_batch_size": arguments.batch,
            "learning_rate": LEARNING_RATE,
            "epochs": arguments.epochs,
            "worker": 0,
            "use_gpu": False,
            "show_progress": False,
        }
        config = Config(model=SASRec, dataset=NAME, config_dict=settings)
        init_seed(config["seed"], config["reproducibility"])
        train_data, _, _ = data_preparation(config, create_dataset(config))
        torch.set_num_threads(arguments.threads)
        model = SASRec(config, train_data.dataset).to(config["device"])
        trainer = TimedTrainer(config, model)
        trainer.fit(train_data, saved=False, verbose=False)

    samples = train_data.sample_size
    print_report(
        measured,
        samples_per_epoch=samples,
        positions_per_epoch=samples,
        batch=arguments.batch,
        system="recbole",
        version=recbole.__version__,
        torch=torch.__version__,
        threads=torch.get_num_threads(),
        loss="BPR, 1 sampled negative" if arguments.loss == "bce" else "softmax over the catalogue",
        samples="one per user" if one_per_user else "one per prefix",
        sequences_per_epoch=len(sequences),
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        last_loss=round(trainer.last_loss, 4),
    )


if __name__ == "__main__":
    main()
