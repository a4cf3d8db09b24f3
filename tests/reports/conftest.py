from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.browser import Browser


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """One for all pages: it takes seconds to start."""
    with Browser() as found:
        yield found
