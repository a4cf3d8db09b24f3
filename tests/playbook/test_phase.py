from __future__ import annotations

import pytest

from paceline.playbook.phase import Phase, Successor
from paceline.playbook.playbook import KINDS


@pytest.mark.parametrize("kind", [kind for kind in KINDS.values() if "use" in kind.model_fields])
def test_every_kind_that_uses_a_winner_reads_the_words_in_one_way(kind: type[Phase]) -> None:
    assert issubclass(kind, Successor)
    assert kind.winners == Successor.winners
    phase = kind.model_construct(use=["C.best", "A.top2"])
    assert phase.winners() == ["C.best", "A.top2"]
