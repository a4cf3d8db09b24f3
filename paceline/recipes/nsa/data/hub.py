"""FineWeb-Edu from the Hugging Face hub, read over the network row group by row group, without a copy on the disk. Needs `paceline[lm]`.

The files and their digests are those of one revision: what `main` was when the preparation began, and is asked for again when it goes on.
"""

from __future__ import annotations

from typing import IO, Any

from paceline.errors import DataError, UsageError
from paceline.recipes.nsa.data.documents import Origin
from paceline.recipes.nsa.data.inputs import Inputs
from paceline.recipes.nsa.data.manifest import Input

REPOSITORY = "HuggingFaceFW/fineweb-edu"
SAMPLES = {"10BT": "sample/10BT/", "100BT": "sample/100BT/", "350BT": "sample/350BT/", "all": "data/"}
"""published cuts of it -> where their files lie"""
_TIMEOUT_S = 20.0
_BLOCK_BYTES = 8 * 2**20
_DO = (
    "no network: give --from FILES (parquet, JSONL or text); with one: type the same again, it goes on where it stopped"
)


def find_hub_inputs(sample: str, revision: str | None) -> Inputs:
    """The files of a sample at a revision; None: at what is the latest one now. UsageError where the hub cannot be reached."""
    hub = _import_hub()
    place = f"https://huggingface.co/datasets/{REPOSITORY}"
    try:
        info = hub.HfApi().dataset_info(REPOSITORY, revision=revision, files_metadata=True, timeout=_TIMEOUT_S)
    except Exception as error:  # of the library, of its HTTP client, of the system: all mean that nothing came
        raise UsageError(f"the hub cannot be reached ({_reason(error)})", place, _DO) from error
    files = [one for one in info.siblings or [] if one.rfilename.startswith(SAMPLES[sample])]
    files = sorted((one for one in files if one.rfilename.endswith(".parquet")), key=lambda one: one.rfilename)
    if not files:
        raise DataError(f"there are no parquet files below {SAMPLES[sample]}", f"{place} at {info.sha}", _DO)
    known = tuple(Input(one.rfilename, one.size or 0, one.lfs.sha256 if one.lfs else one.blob_id) for one in files)
    system = hub.HfFileSystem()
    origins = tuple(_origin(system, one.rfilename, info.sha) for one in files)
    return Inputs(known, origins, {"from": place, "sample": sample, "revision": info.sha})


def _origin(system: Any, name: str, revision: str) -> Origin:
    def open_file() -> IO[bytes]:
        path = f"datasets/{REPOSITORY}@{revision}/{name}"
        # Blocks ahead: the pages of a column are read in their order.
        opened: IO[bytes] = system.open(path, "rb", block_size=_BLOCK_BYTES, cache_type="readahead")
        return opened

    return Origin(f"{REPOSITORY}/{name}", "parquet", open_file, is_remote=True)


def _import_hub() -> Any:
    try:
        import huggingface_hub
    except ImportError:
        what = "streaming FineWeb-Edu needs the package huggingface_hub, which is not installed"
        raise UsageError(what, "", "pip install 'paceline[lm]', or give --from FILES") from None
    return huggingface_hub


def _reason(error: BaseException) -> str:
    cause = error
    while cause.__cause__ is not None:
        cause = cause.__cause__
    return (str(cause).strip().splitlines() or [type(cause).__name__])[0]
