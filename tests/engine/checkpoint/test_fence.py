"""The fence between attempts: run.json is read again whenever it has changed, and only then."""

from __future__ import annotations

from pathlib import Path

import pytest

from paceline.engine.checkpoint import fence as module
from paceline.engine.checkpoint.fence import Fence, SaveFailed
from paceline.errors import UsageError
from paceline.files import is_locked
from paceline.telemetry.layout import RunLayout
from tests.engine.checkpoint.test_publishing import begin_attempt


@pytest.fixture
def layout(tmp_path: Path) -> RunLayout:
    layout = RunLayout(tmp_path)
    begin_attempt(layout, 1)
    return layout


def test_a_file_that_stays_is_read_once(layout: RunLayout, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[Path] = []
    load = module.load_run_file
    monkeypatch.setattr(module, "load_run_file", lambda root: (read.append(root), load(root))[1])
    fence = Fence(layout, 1)
    for _ in range(3):
        with fence:
            assert is_locked(layout.attempt_lock)
        assert not is_locked(layout.attempt_lock)
    assert len(read) == 1
    begin_attempt(layout, 1)  # the owner has written it again
    with fence:
        pass
    assert len(read) == 2


def test_a_later_attempt_is_seen_by_who_was_inside_before(layout: RunLayout) -> None:
    fence = Fence(layout, 1)
    with fence:
        pass
    begin_attempt(layout, 2)
    for _ in range(2):
        with pytest.raises(SaveFailed, match="attempt 1 is over"), fence:
            pytest.fail("inside")
        assert not is_locked(layout.attempt_lock)


@pytest.mark.parametrize("content", [None, "{"])
def test_a_run_that_is_gone_or_damaged_lets_nobody_in(layout: RunLayout, content: str | None) -> None:
    fence = Fence(layout, 1)
    with fence:
        pass
    layout.run.unlink()
    if content is not None:
        layout.run.write_text(content)
    for _ in range(2):
        with pytest.raises(SaveFailed if content is None else UsageError), fence:
            pytest.fail("inside")


def test_an_error_inside_leaves_the_lock_free(layout: RunLayout) -> None:
    with pytest.raises(ValueError, match="inside"), Fence(layout, 1):
        raise ValueError("inside")
    assert not is_locked(layout.attempt_lock)
