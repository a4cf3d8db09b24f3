"""Whether the heads of an attention can share its width. No torch, no numpy."""

from __future__ import annotations

from collections.abc import Iterator

from paceline.errors import Problem


def check_heads(width: int, heads: int) -> Iterator[Problem]:
    """Nothing, or the problem of `model.width` and `model.heads`, with the nearest numbers that fit."""
    share, rest = divmod(width, heads)
    if not rest:
        return
    fitting = min((number for number in range(1, width + 1) if width % number == 0), key=lambda one: abs(one - heads))
    yield Problem(
        f"model.width={width} cannot be shared among model.heads={heads} ({width} = {share} × {heads} + {rest})",
        "model.width and model.heads",
        f"set model.heads={fitting}, or model.width={(share + 1) * heads}",
    )
