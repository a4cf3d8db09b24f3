"""A file with the hosts of a training, one in a line: `host [slots=N] [# comment]`. The first one leads.

    node-a slots=8      # slots: ranks on it; without, one per GPU
    anna@node-b

read_hostfile(path)   -> [HostLine(target="node-a", slots=8, line=1), …], or every mistake with its line
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from pathlib import Path

from paceline.config.nearest import nearest
from paceline.errors import ConfigError, Problem, UsageError
from paceline.launch.hosts.address import is_of_one_link

_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")
_USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")
_SLOTS = "slots"
_SAME = ("slots", "slot", "nproc", "np", "gpus", "cpu", "max_slots", "max-slots")
_MOST_SLOTS = 1024


@dataclass(frozen=True)
class HostLine:
    """One host, as somebody wrote it."""

    target: str
    """what ssh is told: host or user@host"""
    slots: int | None
    line: int

    @property
    def name(self) -> str:
        return self.target.rpartition("@")[2]


def read_hostfile(path: Path) -> list[HostLine]:
    """The hosts in their order; all mistakes of the file at once."""
    try:
        text = path.read_text(encoding="utf-8-sig")  # some editors mark a text by three bytes before it
    except (OSError, UnicodeDecodeError) as error:
        what = error.strerror if isinstance(error, OSError) else "it is not text"
        raise UsageError(f"cannot read the hostfile: {what}", str(path), "--hostfile FILE names one that is") from error
    hosts: list[HostLine] = []
    problems: list[Problem] = []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        wrong, do, found = _read(words, number)
        same = next((each for each in hosts if found is not None and each.name.lower() == found.name.lower()), None)
        if same is not None:
            wrong, do, found = f"{same.name} is in line {same.line} already", "take one of the two lines out", None
        if found is None:
            problems.append(Problem(wrong, f"{path}:{number}", do))
        else:
            hosts.append(found)
    if not hosts and not problems:
        problems.append(Problem("there is no host in it", str(path), "write one host in each line: node-a slots=8"))
    if problems:
        raise ConfigError(problems=problems)
    return hosts


def _read(words: list[str], number: int) -> tuple[str, str, HostLine | None]:
    """(what is wrong, what to write instead, None), or the host."""
    target, *rest = words
    user, at, name = target.rpartition("@")
    wrong = _wrong_host(target, user if at else None, name)
    if wrong is not None:
        return *wrong, None
    if not rest:
        return "", "", HostLine(target, None, number)
    if len(rest) > 1 and re.fullmatch(r"[\w-]+ ?= ?\w+", " ".join(rest)):
        return "there are spaces around =", f"{target} {''.join(rest)}", None
    if len(rest) > 1:
        return f"{rest[1]!r} is one word too many", f"{target} {rest[0]}, and the next host in a line of its own", None
    return _read_slots(target, rest[0], number)


def _wrong_host(target: str, user: str | None, name: str) -> tuple[str, str] | None:
    if "=" in target:
        return f"the line begins with {target!r}, not with a host", f"node-a {target}"
    if "," in target or ";" in target:
        first, *others = [each for each in re.split("[,;]", target) if each]
        return f"{target!r} is more than one host", f"a line for each: {first}" + "".join(f", {o}" for o in others)
    if user is not None and not _USER.fullmatch(user):
        return f"{user!r} is not the name of a user", f"user@{name}"
    if is_of_one_link(name.strip("[]")):
        return f"{name} is an address of one link, which means another place on every host", "one that all hosts reach"
    if _NAME.fullmatch(name) or _is_address(name):
        return None
    bare = name.strip("[]").partition("%")[0]
    if _is_address(bare):
        return f"{target!r} is not a host", f"{target[: -len(name)]}{bare}, an address without brackets and interface"
    counted = re.fullmatch(r"([A-Za-z0-9][\w.-]*)[:*/](\d+)", name)
    if counted:
        return f"{target!r} is not a host", f"{target[: -len(name)]}{counted[1]} slots={counted[2]}"
    odd = next((letter for letter in name if not re.match(r"[A-Za-z0-9._-]", letter)), name[:1])
    plain = re.sub(r"[^A-Za-z0-9._-]", "-", name).strip("-.")
    return f"{target!r} is not the name of a host ({odd!r} cannot be there)", plain or "node-a"


def _is_address(name: str) -> bool:
    """An IPv6 one, without an interface; by its rules, because `cafe:8` looks like a part of one."""
    try:
        return ipaddress.IPv6Address(name).scope_id is None
    except ValueError:
        return False


def _read_slots(target: str, word: str, number: int) -> tuple[str, str, HostLine | None]:
    key, equals, value = word.partition("=")
    if not equals and word.isascii() and word.isdecimal():
        return f"{word!r} is not understood", f"{target} slots={word}", None
    if not equals:
        close = nearest(word, [_SLOTS])
        do = f"{target} slots=8" if close else f"{target} slots=8, or a line of its own if {word} is a host"
        return f"{word!r} is not understood after a host", do, None
    if key != _SLOTS:
        close = nearest(key, _SAME)
        do = f"{target} slots={value}" if close else f"{target} slots=8 is all that can be said"
        return f"a hostfile knows no {key!r}", do, None
    if not re.fullmatch(r"[0-9]{1,4}", value) or not 1 <= int(value) <= _MOST_SLOTS:
        return f"slots={value} is not a number of ranks (1 to {_MOST_SLOTS})", f"{target} slots=8", None
    return "", "", HostLine(target, int(value), number)
