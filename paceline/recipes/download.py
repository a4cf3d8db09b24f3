"""A file fetched over the network: into `NAME.part`, where a fetch that broke off goes on, and in its place when its checksum is right.

download("https://files.grouplens.org/datasets/movielens/ml-1m.zip", Path("ml-1m.zip"), md5="c4d9…", …)
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http import HTTPStatus
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

import paceline
from paceline.errors import DataError, UsageError
from paceline.files import storage_errors

_TIMEOUT_S = 30.0
_BLOCK_BYTES = 256 * 2**10

Report = Callable[[int, int | None], None]
"""called with (bytes that are here, bytes in all or None) after every block"""


@dataclass(frozen=True)
class Remote:
    """Where a file can be fetched, and how to know that it is the right one."""

    url: str
    md5: str
    limit_bytes: int
    """more than this is not fetched, whatever a server sends"""
    by_hand: str
    """what to do where there is no network"""


def download(remote: Remote, target: Path, report: Report) -> None:
    """Leaves the whole file at `target`; `target.part` stays where the network fails, and the next call goes on from it."""
    address = urlsplit(remote.url)
    if address.scheme not in ("http", "https") or not address.netloc:
        raise UsageError(f"--url {remote.url} is no address to download from", "command line", "begin it with https://")
    part = part_of(target)
    is_continued = _fetch(remote, part, report)
    found = md5_of(part)
    if found != remote.md5 and is_continued:
        # The beginning may be of another file: once more, from the first byte.
        part.unlink()
        _fetch(remote, part, report)
        found = md5_of(part)
    if found != remote.md5:
        part.unlink()
        raise wrong_checksum(found, remote.md5, remote.url, "try again, or another --url; nothing was kept")
    with storage_errors(target):
        os.replace(part, target)


def part_of(target: Path) -> Path:
    return target.with_name(f"{target.name}.part")


def md5_of(file: Path) -> str:
    """MD5 because that is what was published: against damage, not against somebody who means harm."""
    with open(file, "rb") as stream:
        return hashlib.file_digest(stream, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


def wrong_checksum(found: str, expected: str, where: str, do: str) -> DataError:
    return DataError(f"the file is not the published one: its MD5 is {found}, published is {expected}", where, do)


class _PartDoesNotFit(Exception):
    """The server has nothing that an earlier part could be continued with."""


def _fetch(remote: Remote, part: Path, report: Report) -> bool:
    """Whether an earlier part was continued."""
    have = part.stat().st_size if part.exists() else 0
    try:
        with _open(remote, have) as answer:
            # A server may send everything although only the rest was asked for; if it sends another rest, the checksum shows it.
            begins_at = have if answer.status == HTTPStatus.PARTIAL_CONTENT else 0
            _receive(remote, answer, part, begins_at, report)
            return begins_at > 0
    except _PartDoesNotFit:
        part.unlink()
        return _fetch(remote, part, report)


def _open(remote: Remote, have: int) -> HTTPResponse:
    headers = {"User-Agent": f"paceline/{paceline.__version__}", "Accept-Encoding": "identity"}
    if have:
        headers["Range"] = f"bytes={have}-"
    try:
        answer: HTTPResponse = urlopen(Request(remote.url, headers=headers), timeout=_TIMEOUT_S)
        return answer
    except HTTPError as error:
        with error:
            if have and error.code == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
                raise _PartDoesNotFit from error
            raise _unreachable(remote, f"the server answers {error.code} {error.reason}") from error
    except (OSError, HTTPException, ValueError) as error:
        raise _unreachable(remote, _reason(error)) from error


def _receive(remote: Remote, answer: HTTPResponse, part: Path, begins_at: int, report: Report) -> None:
    length = answer.headers.get("Content-Length", "")
    here, total = begins_at, begins_at + int(length) if length.isdecimal() else None
    with storage_errors(part), open(part, "ab" if begins_at else "wb") as stream:
        for block in _blocks(remote, answer):
            stream.write(block)
            here += len(block)
            report(here, total)
            if max(here, total or 0) > remote.limit_bytes:
                part.unlink()
                what = f"the server sends more than {remote.limit_bytes:,} bytes: this is not the file"
                raise DataError(what, remote.url, remote.by_hand)
    if total is not None and here != total:
        raise _unreachable(remote, f"the connection ended after {here:,} of {total:,} bytes")


def _blocks(remote: Remote, answer: HTTPResponse) -> Iterator[bytes]:
    """What comes from the network, whose errors are told apart from those of the disk."""
    while True:
        try:
            block = answer.read(_BLOCK_BYTES)
        except (OSError, HTTPException) as error:
            raise _unreachable(remote, _reason(error)) from error
        if not block:
            return
        yield block


def _reason(error: BaseException) -> str:
    cause = getattr(error, "reason", error)
    if isinstance(cause, TimeoutError):
        return f"nothing came for {_TIMEOUT_S:g} s"
    return str(getattr(cause, "strerror", None) or cause) or type(cause).__name__


def _unreachable(remote: Remote, reason: str) -> UsageError:
    do = f"type the same again to go on where it stopped; without a network: {remote.by_hand}"
    return UsageError(f"the download failed: {reason}", remote.url, do)
