"""A manifest while it grows: what is there is appended line by line, and the whole is sorted and called complete at the end. No torch, no numpy."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from paceline.files import LineWriter, storage_errors
from paceline.recipes.csa.manifest import Entry, Manifest, entry_line, write_manifest


class Journal:
    """One manifest, from its first line to its last."""

    def __init__(self, path: Path, manifest: Manifest) -> None:
        self.manifest = manifest
        self._path = path
        self._lines: LineWriter | None = None

    @property
    def has_begun(self) -> bool:
        return self._lines is not None

    def begin(self) -> None:
        """From here on it is unfinished, and says what is known to be there."""
        with storage_errors(self._path):
            write_manifest(self._path, self.manifest)
            self._lines = LineWriter(self._path)

    def add(self, entry: Entry) -> None:
        if self._lines is None:
            self.begin()
        assert self._lines is not None
        self._lines.write(entry_line(self._path.parent, self.manifest.rate, entry))
        self.manifest.entries.append(entry)

    def finish(self) -> None:
        if self._lines is not None:
            self._lines.close()
        write_manifest(self._path, replace(self.manifest, is_complete=True))
