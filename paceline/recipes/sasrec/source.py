"""Where interactions come from, before anything is parsed: the file that must be there, its format, the digest that identifies it.

The command line imports this, so neither torch nor numpy is loaded here.

    identify_file("ratings.dat", "auto")      -> "movielens:5b0e…"     the same for a copy of the file in another place
"""

from __future__ import annotations

import difflib
import hashlib
import json
import os
import shlex
import stat
from pathlib import Path

from paceline.errors import DataError
from paceline.files import sha256_of

_DO = "give an existing file as data.path, or data.path=null for generated data"
_LONGEST_LINE = 65_536


def find_file(path: str) -> Path:
    """The data file, known to be a readable file that is not empty; DataError otherwise."""
    file = Path(path).expanduser()
    try:
        found = file.stat()
    except FileNotFoundError:
        raise DataError("the data file does not exist", f"data.path={path}", _nearest(file)) from None
    except OSError as error:
        raise DataError(f"the data file cannot be reached ({error.strerror})", f"data.path={path}", _DO) from error
    if stat.S_ISDIR(found.st_mode):
        raise DataError("a directory was given where a data file is needed", f"data.path={path}", _file_inside(file))
    if not stat.S_ISREG(found.st_mode):
        raise DataError("this is not a regular file", f"data.path={path}", _DO)
    if not os.access(file, os.R_OK):
        raise DataError("the data file may not be read", f"data.path={path}", f"chmod u+r {path}, or another file")
    if found.st_size == 0:
        raise DataError("the data file is empty", f"data.path={path}", _DO)
    return file


def detect_format(file: Path, requested: str) -> str:
    """text, inter or movielens; `auto` goes by the suffix, then by the first line."""
    if requested != "auto":
        return requested
    if file.suffix == ".inter":
        return "inter"
    _, first = first_line(file)
    fields = [field.strip() for field in first.split("\t")]
    if len(fields) > 1 and any(field.endswith((":token", ":float")) for field in fields):
        return "inter"
    is_u_data = len(fields) == 4 and all(fields)
    return "movielens" if "::" in first or "," in first or is_u_data or file.suffix == ".csv" else "text"


def movielens_separator(first: str) -> str:
    """What cuts the lines of a MovieLens file: `::` (ratings.dat), a tab (u.data), a comma (ratings.csv)."""
    return next((separator for separator in ("::", "\t") if separator in first), ",")


def first_line(file: Path) -> tuple[int, str]:
    """Number and text of the first line that is not blank."""
    with open(file, "rb") as stream:
        for number, line in enumerate(iter(lambda: stream.readline(_LONGEST_LINE), b""), start=1):
            text = line.decode("utf-8-sig", errors="replace").rstrip("\r\n")
            if text.strip():
                return number, text
    return 1, ""


def identify_file(path: str, requested_format: str) -> str:
    """The digest of a file's content, with the format it is read in; its place and its dates do not matter."""
    file = find_file(path)
    try:
        return f"{detect_format(file, requested_format)}:{sha256_of(file)}"
    except OSError as error:
        raise DataError(f"the data file cannot be read ({error.strerror})", f"data.path={path}", _DO) from error


def identify_generated(version: int, **parameters: int) -> str:
    """The digest of everything generated data follows from."""
    text = json.dumps({"version": version} | parameters, sort_keys=True)
    return f"generated:{hashlib.sha256(text.encode()).hexdigest()}"


def _nearest(file: Path) -> str:
    if file.name in ("ml-1m.inter", "ml-100k.inter"):
        place = "" if file.parent.parts[-2:] == ("data", file.stem) else f" --out {shlex.quote(str(file.parent))}"
        return f"type `paceline prepare movielens {file.stem}{place}`, or give another file as data.path"
    try:
        names = [name for name in os.listdir(file.parent) if not name.endswith((".item", ".user", ".json"))]
    except OSError:
        return _DO
    near = difflib.get_close_matches(file.name, names, n=1)
    return f"did you mean {file.parent / near[0]}?" if near else _DO


def _file_inside(directory: Path) -> str:
    try:
        names = sorted(
            name for name in os.listdir(directory) if name.endswith((".inter", ".txt", ".dat", ".csv", "u.data"))
        )
    except OSError:
        return _DO
    # ratings.dat lies beside movies.dat and users.dat.
    names.sort(key=lambda name: not name.startswith(("ratings", "u.data")))
    return f"name a file inside it, such as {directory / names[0]}" if names else _DO
