"""The best model of a run, brought back when the run is over: what was chosen on one split is what the others are asked about."""

from __future__ import annotations

from paceline.engine.average import Average
from paceline.engine.checkpoint.reading import read_state, read_tensors
from paceline.engine.checkpoint.tensors import EMA, MODEL, load_weights
from paceline.engine.context import Context
from paceline.engine.state import TrainState
from paceline.engine.strategies.base import Strategy
from paceline.errors import PacelineError
from paceline.telemetry.checkpoints import check_files, read_checkpoint, step_name


def load_best(context: Context, state: TrainState, strategy: Strategy, average: Average | None = None) -> TrainState:
    """Gives the model its best weights, and their average, if they are others than it has; the state that it is of then.

    All ranks do so, or none: where one of them cannot, the model stays as it is, and that is told.
    """
    if state.best_step in (None, state.step):
        return state
    path = context.layout.checkpoints / step_name(state.best_step)
    why, found = "checkpoint.enabled=false keeps none", None
    if context.config.checkpoint.enabled:
        try:
            checkpoint = read_checkpoint(path)
            check_files(checkpoint)
            found = read_state(checkpoint), read_tensors(checkpoint, MODEL), read_tensors(checkpoint, EMA)
        except PacelineError as error:
            why = error.problems[0].what
    everybody_has_it = bool(context.ranks.gather_floats([float(found is not None)]).min() > 0)
    if found is None or not everybody_has_it:
        if context.ranks.is_first:
            what = f"the last model is evaluated, not the best one of step {state.best_step:,}, whose checkpoint cannot be read"
            context.events.write("warning", what=what, why=why if found is None else "another rank cannot read it")
        return state
    chosen, weights, averaged = found
    load_weights(strategy.model, weights, str(path), strategy=strategy)
    if average is not None:
        average.load(averaged, str(path))
    return chosen
