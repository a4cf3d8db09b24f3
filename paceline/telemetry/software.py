"""What trains besides the settings: versions of the libraries that compute, and the content of the code. Imports none of it.

    describe_software({"paceline.engine": [package / "engine"]})   -> {"torch": "2.13.0", …, "paceline.engine": "4be1c0d21a07"}
    list_differences(saved, now)                                   -> ["torch: 2.12.1 → 2.13.0"]

Each attempt writes it down once, and each checkpoint has that of the attempt it is of. Code counts by its content: a checkout that was
edited, or pulled, has the version that it had.
"""

from __future__ import annotations

import hashlib
import os
import platform
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path

import paceline

COMPUTING = (
    "torch",
    "triton",
    "numpy",
    "nvidia-nccl-cu12",
    "nvidia-nccl-cu13",
    "nvidia-cudnn-cu12",
    "nvidia-cudnn-cu13",
    "deepspeed",
    "transformers",
)
"""Packages of which another version may give other sums."""
_SHOWN = 12
"""digits of a digest"""
_NONE = "none"


def describe_software(code: Mapping[str, Sequence[Path]]) -> dict[str, str]:
    """Of a start from here. `code` is what trains: the name of a package, and where it lies; it is read to its last byte."""
    versions = {"python": platform.python_version(), "paceline": paceline.__version__} | find_versions(COMPUTING)
    return versions | {name: digest_code(places)[:_SHOWN] for name, places in code.items()}


def list_differences(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """`name: old → new` of each that is another one, came, or went. Another version of Paceline has other code, which is not said besides."""
    pairs = [(name, before.get(name, _NONE), now.get(name, _NONE)) for name in dict.fromkeys([*before, *now])]
    changed = {name: f"{name}: {old} → {new}" for name, old, new in pairs if old != new}
    if "paceline" in changed:
        changed = {name: line for name, line in changed.items() if not name.startswith("paceline.")}
    return list(changed.values())


def find_versions(packages: Iterable[str]) -> dict[str, str]:
    """Of those among them that are installed."""
    found = {}
    for package in packages:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def digest_code(places: Iterable[Path]) -> str:
    """Of files, and of every Python file below directories, with its name there; what is not there counts as nothing."""
    digest = hashlib.sha256()
    for place in places:
        for name, path in sorted(_list_code(place)):
            try:
                with open(path, "rb", buffering=0) as stream:
                    content = stream.read()
            except OSError:
                # An editor's lock, or a file that a checkout takes away meanwhile: nothing imports it.
                continue
            digest.update(f"{name} {len(content)}\n".encode())
            digest.update(content)
    return digest.hexdigest()


def _list_code(place: Path) -> Iterator[tuple[str, str]]:
    """(name, path) of each file. The paths are text: building objects of them takes as long as reading the files."""
    top = str(place)
    if os.path.isfile(top):
        yield place.name, top
    seen: set[str] = set()
    for directory, folders, names in os.walk(top, followlinks=True):
        # A link to a folder above it would be walked for ever.
        real = os.path.realpath(directory)
        if real in seen:
            folders.clear()
            continue
        seen.add(real)
        for name in names:
            if name.endswith(".py"):
                path = f"{directory}/{name}"
                yield path[len(top) + 1 :], path
