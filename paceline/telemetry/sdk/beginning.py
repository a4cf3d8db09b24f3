"""Where an attempt begins whose caller gave no start_step: its first step says it.

    begin = Beginning({4: 16, 7: 28}, None, write_plan, say)      # what earlier attempts reached, with their samples
    begin(7)      -> 28        # the first step is 8: it goes on, and the plan says from where
    begin(0)      -> 0         # it begins anew, which hides what was reached, and is said

The plan waits for it, because what earlier attempts did after its start_step no longer counts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping


class Beginning:
    """One per attempt of a run that has rows already, on rank 0."""

    def __init__(
        self,
        earlier: Mapping[int, int | None],
        start_samples: int | None,
        write_plan: Callable[[int], None],
        say: Callable[[str, str], None],
    ) -> None:
        self._earlier = earlier
        self._start_samples = start_samples
        self._write_plan = write_plan
        self._say = say

    def __call__(self, start_step: int) -> int | None:
        """The attempt begins after that step; how many samples came before, None where that is not known."""
        if start_step == 0:
            reached = max(self._earlier)
            text = (
                f"the run had reached step {reached:,}; this attempt begins anew at step 0; "
                f"give start_step={reached} to go on"
            )
            self._say("anew", text)
        self._write_plan(start_step)
        if self._start_samples is not None:
            return self._start_samples
        return 0 if start_step == 0 else self._earlier.get(start_step)
