from __future__ import annotations

from paceline.engine.marks import MarkedTimer, Marks
from paceline.engine.timing import StepTimer


class Written(Marks):
    def __init__(self) -> None:
        self.text = ""

    def push(self, name: str) -> None:
        self.text += f"[{name}"

    def pop(self) -> None:
        self.text += "]"


def test_phases_lie_inside_their_step_and_the_timer_hears_the_same():
    timer, first, second = StepTimer(), Written(), Written()
    marked = MarkedTimer(timer, [first, second])
    timer.resume()
    for step in (1, 2):
        marked.begin_step(step)
        for phase in ("data", "forward", "backward", "data", "forward", "backward", "optimizer"):
            marked.enter(phase)
        marked.end_step()
    micro = "[data][forward][backward]"
    assert first.text == second.text == "".join(f"[step {n}{micro}{micro}[optimizer]]" for n in (1, 2))
    closed = timer.close_window()
    assert closed is not None
    window = closed.read()
    assert window.steps == 2
    assert all(value > 0 for value in window.phases.values())
