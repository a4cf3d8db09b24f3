"""How large a difference a number of repeats can show, and how many it takes, by the power of Student's test on two cases.

power_of(0.03, noise=0.02, repeats=2)     0.15: a difference of 3 % under 2 % noise is missed in 17 sweeps out of 20
repeats_for(0.03, noise=0.02)             9
"""

from __future__ import annotations

import math

LEAST_REPEATS = 3
"""fewer have no spread worth the name"""


def power_of(effect: float, noise: float, repeats: int, confidence: float = 0.95) -> float:
    """The chance that a true relative difference is found, two-sided, when trials of one case scatter by `noise`."""
    if repeats < 2:
        return 0.0
    if noise <= 0:
        return 1.0
    from scipy.special import nctdtr, stdtrit

    freedom = 2 * (repeats - 1)
    shift = effect / noise * math.sqrt(repeats / 2)
    limit = float(stdtrit(freedom, 1 - (1 - confidence) / 2))
    # Beyond this, nctdtr is not a number, and the answer is certain.
    if shift > limit + 30:
        return 1.0
    return float(1 - nctdtr(freedom, shift, limit) + nctdtr(freedom, shift, -limit))


def repeats_for(
    effect: float, noise: float, power: float = 0.8, confidence: float = 0.95, least: int = LEAST_REPEATS
) -> int:
    """The fewest repeats that find the difference with this power."""
    high = least
    while power_of(effect, noise, high, confidence) < power:
        high *= 2
    low = max(least, high // 2)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if power_of(effect, noise, middle, confidence) >= power else (middle + 1, high)
    return high


def visible_effect(noise: float, repeats: int, power: float = 0.8, confidence: float = 0.95) -> float | None:
    """The smallest relative difference that so many repeats find with this power; None: none at all."""
    if repeats < 2:
        return None
    low, high = 0.0, max(noise, 1e-9)
    while power_of(high, noise, repeats, confidence) < power:
        high *= 2
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (low, middle) if power_of(middle, noise, repeats, confidence) >= power else (middle, high)
    return high


def say_power(effect: float, noise: float, repeats: int, power: float = 0.8, confidence: float = 0.95) -> str | None:
    """What a plan cannot resolve, and what would; None: it can."""
    reached = power_of(effect, noise, repeats, confidence)
    if reached >= power:
        return None
    needed = repeats_for(effect, noise, power, confidence)
    seen = visible_effect(noise, repeats, power, confidence)
    only = "" if seen is None else f"; {repeats} show {seen:.1%} and more"
    return (
        f"{repeats} repeats under {noise:.1%} noise find a difference of {effect:.1%} with a power of {reached:.2f}: "
        f"it takes {needed} for {power:.2f}{only}"
    )
