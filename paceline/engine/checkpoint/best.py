"""The best model of a run, brought back when the run is over: what was chosen on one split is what the others are asked about."""

from __future__ import annotations

import torch

from paceline.engine.checkpoint.reading import read_state, read_tensors
from paceline.engine.checkpoint.tensors import MODEL, load_weights
from paceline.engine.state import TrainState
from paceline.telemetry.checkpoints import read_checkpoint, step_name
from paceline.telemetry.layout import RunLayout


def load_best(layout: RunLayout, state: TrainState, model: torch.nn.Module) -> TrainState:
    """Gives the model its best weights, if they are others than it has and were saved; the state that it is of then."""
    path = layout.checkpoints / step_name(state.best_step or 0)
    if state.best_step in (None, state.step) or not path.exists():
        return state
    checkpoint = read_checkpoint(path)
    load_weights(model, read_tensors(checkpoint, MODEL), str(path))
    return read_state(checkpoint)
