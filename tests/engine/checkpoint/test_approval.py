"""Approval: waited for, given for everything before it, and never given once it has ended."""

from __future__ import annotations

import threading

import pytest

from paceline.engine.checkpoint.approval import Approval

pytestmark = pytest.mark.timeout(60)


@pytest.mark.parametrize("is_good", [True, False])
def test_a_step_is_waited_for_until_it_is_judged(is_good: bool) -> None:
    approval, found = Approval(), []
    approval.grant(4)
    assert approval.await_step(3)
    thread = threading.Thread(target=lambda: found.append(approval.await_step(6)))
    thread.start()
    approval.grant(5)
    thread.join(0.05)
    assert found == []
    approval.grant(7) if is_good else approval.end()
    thread.join(20)
    assert found == [is_good]


def test_what_was_approved_stays_so() -> None:
    approval = Approval()
    approval.grant(4)
    approval.end()
    assert approval.await_step(4)
    assert not approval.await_step(5)
