"""Problems planted into the ranks of a real `paceline train`, where this directory is on PYTHONPATH: AILMENTS=unused,loader."""

from __future__ import annotations

import os
import time


def _unused() -> None:
    """The model has a parameter that no loss depends on."""
    import torch

    from paceline.recipes.sasrec import recommender

    build = recommender.Recommender.__init__

    def wrapped(self, *arguments, **options) -> None:
        build(self, *arguments, **options)
        self.forgotten = torch.nn.Parameter(torch.zeros(8))

    recommender.Recommender.__init__ = wrapped


def _corrupt() -> None:
    """Compressed gradients arrive with the wrong sign."""
    from paceline.engine import compression
    from paceline.engine.strategies import ddp

    build = compression.build_compression

    def build_corrupt(name, world_size):
        compress = build(name, world_size)

        # Without annotations: DDP compares them with types.
        def corrupt(state, bucket):
            return compress(state, bucket).then(lambda future: future.value().neg_())

        return corrupt

    compression.build_compression = build_corrupt
    if hasattr(ddp, "build_compression"):
        ddp.build_compression = build_corrupt


def _loader() -> None:
    """A loader process never brings its tenth batch."""
    from paceline.engine import loader

    fetch = loader._Fetcher.__getitem__
    fetched = 0

    def hang(self, request):
        nonlocal fetched
        import torch.utils.data

        if torch.utils.data.get_worker_info() is not None:
            fetched += 1
            if fetched == 10:
                time.sleep(1e6)
        return fetch(self, request)

    loader._Fetcher.__getitem__ = hang


if "RANK" in os.environ:
    for word in filter(None, os.environ.get("AILMENTS", "").split(",")):
        globals()[f"_{word}"]()
