"""Runs families of checks one after another. A check that itself breaks is a warning: it must not keep anybody from training.

run_families(QUICK, subject)     everything that needs no torch, under 2 s
run_families(MACHINE, subject)   of those, what `paceline train` does not find out by itself: while its ranks import torch
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from paceline.preflight.check import Check, Report, warn
from paceline.preflight.gpus import check_gpus
from paceline.preflight.host import check_host
from paceline.preflight.leftovers import check_leftovers
from paceline.preflight.network import check_network
from paceline.preflight.software import check_software
from paceline.preflight.storage import check_room, check_storage
from paceline.preflight.subject import Subject
from paceline.preflight.training import check_training

Family = Callable[[Subject], list[Check]]

MACHINE: Mapping[str, Family] = {
    "software": check_software,
    "GPUs": check_gpus,
    "host": check_host,
    "network": check_network,
    "storage": check_room,
}
"""Of a start: data, batches and the directory are checked there anyway, and nothing is measured."""

QUICK: Mapping[str, Family] = {
    **MACHINE,
    "storage": check_storage,
    "training": check_training,
    "leftovers": check_leftovers,
}


def run_families(families: Mapping[str, Family], subject: Subject) -> Report:
    """Every check of these families; each family is there even if it breaks."""
    began = time.monotonic()
    found = {name: _run(name, family, subject) for name, family in families.items()}
    return Report(found, time.monotonic() - began)


def _run(name: str, family: Family, subject: Subject) -> list[Check]:
    try:
        return family(subject)
    except Exception as error:
        what = f"could not be checked ({type(error).__name__}: {error})"
        return [warn(name, what, "nothing follows for training; please report it")]
