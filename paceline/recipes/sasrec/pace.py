"""Each user's own unit of time: the shortest time, above zero, between two of their training events that follow each other.

times 0, 0, 60, 180, 3600 | held out …     gaps 0, 60, 120, 3420     unit 60 s

Events at the same second are ties: their gap tells nothing about a pace. A user without any other gap in training takes the median of
those who have one, and where nobody has, the unit is a second. Held-out events never count: the pace is known before they happen.
"""

from __future__ import annotations

import numpy as np

from paceline.recipes.sasrec.interactions import Floats
from paceline.recipes.sasrec.split import Split


def measure_pace(split: Split) -> Floats:
    """Seconds per unit, for every user; above zero."""
    interactions = split.interactions
    assert interactions.times is not None
    users = np.repeat(np.arange(interactions.num_users), interactions.lengths)
    within = np.arange(interactions.num_events) - interactions.offsets[users]
    is_later = (within > 0) & (within < split.train_lengths[users])
    gaps = np.diff(interactions.times, prepend=0.0)
    counts = is_later & (gaps > 0)
    paces = np.full(interactions.num_users, np.inf)
    np.minimum.at(paces, users[counts], gaps[counts])
    has_own = np.isfinite(paces)
    paces[~has_own] = np.median(paces[has_own]) if has_own.any() else 1.0
    return paces
