"""The update of a step as one CUDA graph: recorded once per graph of a micro-step whose gradients it takes, replayed with one launch.

Only where one micro-step is the whole step: its gradients then lie where the last ones lay. The first update after a graph's gradients is
run as ever, so that the optimizer has all its state; from the second on it is replayed, with the same bits.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, MutableMapping

import torch

from paceline.engine.graph import Graph, Graphs, Records
from paceline.engine.outcome import Pending, Tally
from paceline.engine.ranks import Ranks
from paceline.engine.update import Update

_Replay = tuple[Callable[[], None], torch.Tensor]


class RecordedUpdates:
    """The updates of one run, by the graphs that they follow."""

    def __init__(
        self, update: Update, graphs: Graphs, recorder: Records, ranks: Ranks, optimizer: torch.optim.Optimizer
    ) -> None:
        self._update = update
        self._graphs = graphs
        self._recorder = recorder
        self._ranks = ranks
        self._replays: MutableMapping[Graph, _Replay | None] = weakref.WeakKeyDictionary()
        """None: run once, and not recorded yet"""
        self._is_on = update.is_recordable
        if self._is_on:
            make_recordable(optimizer, ranks.device)

    def run(self, step: int, graph: Graph, stop: str | None, hold: Callable[[], None]) -> Pending:
        """Applies the gradients of the graph's last replay."""
        if self._is_on and graph in self._replays:
            replay = self._replays[graph] or self._record(step, graph)
            if replay is not None:
                hold()
                replay[0]()
                return Pending(step, replay[1], stop)
        graph.leave_gradients(is_last=True)
        self._replays.setdefault(graph, None)
        return Pending(step, self._compute(step, graph, hold), stop)

    def _compute(self, step: int, graph: Graph, hold: Callable[[], None]) -> torch.Tensor:
        tally = Tally(self._ranks)
        tally.add(*graph.sums)
        return self._update.run(step, tally.finish(), hold)

    def _record(self, step: int, graph: Graph) -> _Replay | None:
        graph.leave_gradients(is_last=True)
        try:
            replay = self._recorder.record(lambda: self._compute(step, graph, _hold_nothing))
        except RuntimeError as error:
            graph.drop_gradients()
            self._graphs.give_up(f"the update cannot be recorded: {error}")
            return None
        self._replays[graph] = replay
        return replay


def make_recordable(optimizer: torch.optim.Optimizer, device: torch.device) -> None:
    """The learning rate becomes a number on the device, which LearningRate fills: a recorded one would stay what it was."""
    for group in optimizer.param_groups:
        group["lr"] = torch.tensor(float(group["lr"]), device=device)
        group["capturable"] = True


def _hold_nothing() -> None:
    """While an update is recorded, nothing changes."""
