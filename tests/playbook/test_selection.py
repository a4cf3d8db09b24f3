from __future__ import annotations

from collections.abc import Callable

import pytest

from paceline.errors import UsageError
from paceline.playbook.playbook import Playbook
from paceline.playbook.selection import select

Written = Callable[..., Playbook]


def test_by_name_from_one_on_and_by_what_is_enabled(written: Written) -> None:
    book = written()
    assert select(book).names == ("P0", "P1", "P2")
    assert select(book).skipped == {"P3": "not asked for: P3.enabled=true runs it"}
    assert select(written_with(written, "P3.enabled=true")).names == ("P0", "P1", "P2", "P3")
    assert select(book, start="P2").names == ("P2",)
    assert select(book, phases="P2, P0").names == ("P0", "P2")
    # Whoever names it asks for it, unless the same command says no.
    assert select(book, phases="P3").names == ("P3",)
    assert select(written_with(written, "P3.enabled=false"), phases="P3").names == ()
    given = select(written_with(written, "P1.best=mine.yaml"))
    assert (given.names, given.skipped["P1"]) == (("P0", "P2"), "its winner was given by hand: mine.yaml")


def written_with(written: Written, *overrides: str) -> Playbook:
    from tests.playbook.conftest import SMALL

    return written(SMALL, *overrides)


def test_what_is_not_there(written: Written) -> None:
    with pytest.raises(UsageError, match="there is no phase 'p1'") as caught:
        select(written(), phases="P0,p1")
    assert caught.value.problems[0].do == "write P1"
    with pytest.raises(UsageError, match="cannot be combined"):
        select(written(), phases="P0", start="P1")
