"""What one host is and has installed, to be held against the others: ranks of different versions must not train together.

facts = collect_facts("10.0.0.7", nproc=8)
compare([facts, HostFacts.from_record(received)])   -> [Problem("torch is 2.13.0 on node-a and 2.12.1 on node-b", …)]

Numbers of ranks and GPUs may differ. The third number of a Python, and the kernel, may, too.
"""

from __future__ import annotations

import functools
import hashlib
import platform
import socket
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import paceline
from paceline.errors import Problem
from paceline.launch.hardware import list_gpus
from paceline.launch.hosts.address import interface_of
from paceline.launch.installed import find_nccl, find_torch

_NONE = "none"
_MUST_AGREE = ("platform", "python", "torch", "cuda", "nccl", "paceline", "digest")
_WORDS = {
    "platform": "the platform",
    "python": "Python",
    "torch": "torch",
    "cuda": "torch's CUDA",
    "nccl": "NCCL",
    "paceline": "paceline",
    "digest": "the source of paceline",
}


@dataclass(frozen=True)
class HostFacts:
    """One host."""

    host: str
    address: str
    """by which the others reach it"""
    interface: str | None
    nproc: int
    gpus: tuple[str, ...]
    """their names"""
    python: str
    torch: str
    cuda: str
    """torch was built for; "none" for the CPU"""
    nccl: str
    paceline: str
    digest: str
    """of the source files of the package: the same version may have been edited on one host"""
    platform: str

    def to_record(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> HostFacts:
        """Of a host whose version may be another: what it does not say is not known."""
        texts = {each.name: str(record.get(each.name, "unknown")) for each in fields(cls)}
        interface, nproc, gpus = record.get("interface"), record.get("nproc"), record.get("gpus")
        more = {
            "interface": None if interface is None else str(interface),
            "nproc": nproc if isinstance(nproc, int) else 0,
            "gpus": tuple(map(str, gpus)) if isinstance(gpus, list | tuple) else (),
        }
        return cls(**(texts | more))  # type: ignore[arg-type]


def collect_facts(address: str, nproc: int) -> HostFacts:
    """Of this host; takes a fifth of a second and imports no torch."""
    torch, nccl = find_torch() or {}, find_nccl()
    return HostFacts(
        host=socket.gethostname(),
        address=address,
        interface=interface_of(address),
        nproc=nproc,
        gpus=tuple(gpu.name for gpu in list_gpus()),
        python=platform.python_version(),
        torch=torch.get("version", _NONE),
        cuda=torch.get("cuda", _NONE),
        nccl=(nccl.found if nccl is not None else None) or _NONE,
        paceline=paceline.__version__,
        digest=source_digest(),
        platform=f"{platform.system()} {platform.machine()}",
    )


def source_digest(package: Path | None = None) -> str:
    """Of every file of the package that somebody wrote, with its name."""
    return _digest(package or Path(paceline.__file__).parent)


@functools.cache
def _digest(package: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted(package.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            content = hashlib.sha256(path.read_bytes()).hexdigest()
            digest.update(f"{path.relative_to(package).as_posix()} {content}\n".encode())
    return digest.hexdigest()[:16]


def label_hosts(hosts: Sequence[HostFacts]) -> list[str]:
    """A name for each that no other has: its own, with the address where two share one."""
    count = Counter(each.host for each in hosts)
    addresses = Counter((each.host, each.address) for each in hosts)
    labels = []
    for index, each in enumerate(hosts):
        label = each.host if count[each.host] == 1 else f"{each.host} ({each.address})"
        # Two processes of one machine, as somebody tries it out.
        labels.append(label if addresses[each.host, each.address] == 1 else f"{each.host} #{index + 1}")
    return labels


def compare(hosts: Sequence[HostFacts]) -> list[Problem]:
    """What must be the same and is not, each with the odd host and one of the others; most hosts are right, else the first one is."""
    problems = []
    labels = label_hosts(hosts)
    for field in _MUST_AGREE:
        values = [_value(each, field) for each in hosts]
        if field == "digest" and len({each.paceline for each in hosts}) > 1:
            continue  # follows from the version, and is said there
        usual, _ = Counter(values).most_common(1)[0]  # of equals the first one met
        right = labels[values.index(usual)]
        for label, value in zip(labels, values, strict=True):
            if value != usual:
                what = f"{_WORDS[field]} is {usual} on {right} and {value} on {label}"
                problems.append(Problem(what, label, _remedy(field, usual, right, label)))
    return problems


def _value(facts: HostFacts, field: str) -> str:
    value = str(getattr(facts, field))
    return ".".join(value.split(".")[:2]) if field == "python" else value


def _remedy(field: str, usual: str, right: str, label: str) -> str:
    if field == "platform":
        return f"leave {label} out"
    if field == "python":
        return f"use Python {usual} on {label}"
    if field == "digest":
        return f"copy the package of {right} to {label}, or install the same commit on both"
    if field in ("torch", "paceline") and usual != _NONE:
        return f"pip install {field}=={usual.partition('+')[0]} on {label}"
    return f"install on {label} the torch that {right} has"
