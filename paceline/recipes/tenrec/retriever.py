"""Trained towers of another run, as the first stage before a ranker: which items of the whole catalogue are worth ranking.

    retriever = Retriever(lambda: load_towers(config, sizes), table)
    retriever.find(batch, 100)          (B, 100) items, best first

The run must have been trained on the same rows and split: what it was trained on is then held out for neither.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from paceline.engine.checkpoint.reading import read_exported, read_model
from paceline.engine.checkpoint.tensors import load_weights
from paceline.errors import ConfigError, UsageError
from paceline.recipes.job import load_job
from paceline.recipes.tenrec.catalogue import Catalogue
from paceline.recipes.tenrec.config import TenrecConfig, identify_data
from paceline.recipes.tenrec.contexts import Tensors
from paceline.recipes.tenrec.embedding import Sizes
from paceline.recipes.tenrec.table import Table
from paceline.recipes.tenrec.towers import Towers
from paceline.telemetry.checkpoints import check_files, find_checkpoint
from paceline.telemetry.exports import CONFIG, RECORD
from paceline.telemetry.layout import RunLayout

_KEY = "evaluate.retrieval"
_DO = (
    "name a run directory or an export of towers (served: with --retrieval): paceline train tenrec-retrieval --out RUN"
)


def load_towers(config: TenrecConfig, sizes: Sizes) -> Towers:
    """Those of the run that a ranker's configuration names, with the weights of its best checkpoint, on the CPU."""
    assert config.evaluate.retrieval is not None
    root = Path(config.evaluate.retrieval).expanduser()
    is_export = (root / RECORD).exists()
    file = root / CONFIG if is_export else RunLayout(root).config
    if not file.is_file():
        seen_from = "" if root.is_absolute() else f" (seen from {Path.cwd()})"
        raise UsageError(f"there is no trained run here{seen_from}", f"{_KEY}={root}", _DO)
    trained = load_job(str(file)).config
    if not isinstance(trained, TenrecConfig) or trained.model.kind != "towers":
        kind = trained.model.kind if isinstance(trained, TenrecConfig) else trained.recipe
        raise ConfigError(f"this run trained {kind}, and retrieval needs towers", f"{_KEY}={root}", _DO)
    _check_same_data(config, trained, root)
    if is_export:
        weights = read_exported(root)
    else:
        has_best = (RunLayout(root).checkpoints / "best").exists()
        checkpoint = find_checkpoint(root, "best" if has_best else "latest")
        check_files(checkpoint)
        weights, _ = read_model(checkpoint)
    with torch.random.fork_rng(devices=[]):  # the ranker's own weights are drawn as without it
        towers = Towers(sizes, trained.model)
    load_weights(towers, weights, str(root))
    return towers.eval().requires_grad_(False)


def _check_same_data(config: TenrecConfig, trained: TenrecConfig, root: Path) -> None:
    own, other = ((identify_data(each), each.data.split, each.data.seed) for each in (config, trained))
    if own != other:
        what = f"the towers were trained on other rows or another split ({other}), and the ranker has {own}"
        raise ConfigError(what, f"{_KEY}={root} and data", "train both on the same data, data.split and data.seed")


class Retriever:
    """The towers with the vectors of the whole catalogue, on the device where they were asked last."""

    def __init__(self, load: Callable[[], Towers], table: Table) -> None:
        self._load = load
        self._catalogue = Catalogue(table)
        self._vectors_ND: Tensor | None = None

    @functools.cached_property
    def towers(self) -> Towers:
        """Not before they are asked for: a ranker can be exported, moved and served without the run that it was evaluated with."""
        return self._load()

    def find(self, batch: Tensors, count: int) -> Tensor:
        device = batch["history"].device
        # In fp32 whatever the ranker's precision: what is found does not depend on that.
        with torch.autocast(device.type, enabled=False):
            if self._vectors_ND is None or self._vectors_ND.device != device:
                self._vectors_ND = self._catalogue.embed(self.towers.to(device))
            return self._catalogue.find(self.towers.embed_users(batch), self._vectors_ND, count)
