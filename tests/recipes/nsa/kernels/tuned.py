"""A shape, a place, and tiles that somebody tuned for them, without a GPU."""

from __future__ import annotations

from paceline.recipes.nsa.kernels.tile_store import Case, Place, Tuned

CASE = Case(4, 8192, 12, 2, 64, "bfloat16")
PLACE = Place("a GPU", "2.11.0", "3.6.0")


def make_tuned(index: int = 1, case: Case = CASE, place: Place = PLACE) -> Tuned:
    """As if of every kernel that candidate had won."""
    tried = {kernel: [(tile, 1.0 + i) for i, tile in enumerate(case.candidates(kernel))] for kernel in case.kernels}
    return Tuned(case, place, {kernel: case.candidates(kernel)[index] for kernel in case.kernels}, tried)
