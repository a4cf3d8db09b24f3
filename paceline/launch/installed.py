"""Which torch and which NCCL are installed, read from their files: importing torch takes seconds.

find_torch()   -> {"version": "2.13.0+cu130", "cuda": "13.0"}
find_nccl()    -> Nccl(package="nvidia-nccl-cu13", wanted="2.28.9", found="2.28.9")
"""

from __future__ import annotations

import importlib.util
import re
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path


@dataclass(frozen=True)
class Nccl:
    package: str
    wanted: str
    """the version that torch was built with"""
    found: str | None
    """None: not installed"""


def find_torch() -> dict[str, str] | None:
    """`version` and, where it is built for one, `cuda`, from the file that torch itself reads them from; None without torch."""
    found = importlib.util.find_spec("torch")
    if found is None or found.origin is None:
        return None
    try:
        text = Path(found.origin).with_name("version.py").read_text(encoding="utf-8")
    except OSError:
        return None
    names = {"__version__": "version", "cuda": "cuda"}
    pairs = re.findall(r"^(\w+)(?:: [^=]+)? = '([^']+)'$", text, re.MULTILINE)
    facts = {names[name]: value for name, value in pairs if name in names}
    return facts if "version" in facts else None


def find_nccl() -> Nccl | None:
    """The NCCL that the installed torch names; None where it names none, as one for the CPU."""
    try:
        required = metadata.requires("torch") or []
    except metadata.PackageNotFoundError:
        return None
    pinned = (re.match(r"(nvidia-nccl-cu\d+)==([\d.]+)", line) for line in required)
    match = next((match for match in pinned if match), None)
    if match is None:
        return None
    try:
        return Nccl(match[1], match[2], metadata.version(match[1]))
    except metadata.PackageNotFoundError:
        return Nccl(match[1], match[2], None)
