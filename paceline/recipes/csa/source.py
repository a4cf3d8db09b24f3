"""Where speech with its words comes from, before any of it is heard: what identifies it. No torch, no numpy, no decoder.

identify_data(data)       -> "speech:5b0e…"     the same for a copy of a prepared corpus in another place
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from paceline.errors import ConfigError, DataError, UsageError
from paceline.recipes.csa.data_config import CORPUS_VERSION, RATE, Data, check_data
from paceline.recipes.csa.manifest import Manifest, load_manifest
from paceline.recipes.csa.prepare_inputs import Inputs, find_inputs


def find_manifest(data: Data) -> Manifest:
    """What was prepared; DataError where it cannot be trained on."""
    _check(data)
    where = f"data.manifest={data.manifest}"
    manifest = load_manifest(Path(str(data.manifest)).expanduser(), where)
    if manifest.rate != RATE:
        what = f"this speech has {manifest.rate} samples per second, and speech encoders listen at {RATE}"
        raise DataError(what, where, f"prepare it again with --rate {RATE}, into another --output DIR")
    if data.trim == "runtime" and manifest.is_trimmed:
        what = "data.trim=runtime, and this speech was trimmed when it was prepared"
        raise ConfigError(what, f"data.trim and {where}", "set data.trim=none")
    return manifest


def find_sources(data: Data) -> Inputs:
    """What a tree holds, as it was published; DataError where there is none."""
    _check(data)
    try:
        return find_inputs(Path(str(data.path)).expanduser())
    except UsageError as error:
        (problem,) = error.problems
        raise DataError(problem.what, f"data.path={data.path}", "give the folder that holds the splits") from error


def _check(data: Data) -> None:
    problems = list(check_data(data))
    if problems:
        raise ConfigError(problems=problems)


def identify_data(data: Data) -> str:
    """A digest of the speech and its words, or of all that they are generated from."""
    if data.source == "manifest":
        return f"speech:{find_manifest(data).digest}"
    if data.source == "tree":
        sources = find_sources(data).sources
        rows = [(source.id, source.split, source.transcript, source.path.stat().st_size) for source in sources]
        return f"tree:{_digest(rows)}"
    content = {"version": CORPUS_VERSION} | {
        name: getattr(data, name) for name in ("sentences", "words", "noise", "seed")
    }
    return f"tones:{_digest(content)}"


def _digest(content: object) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
