"""The training loop: steps, windows, evaluations, checkpoints and the end, the same decisions on every rank."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from dataclasses import dataclass

from paceline.config.arithmetic import Length
from paceline.engine.average import Average
from paceline.engine.checkpoint.best import load_best
from paceline.engine.checkpoint.saver import Saver
from paceline.engine.compilation import Compilation
from paceline.engine.context import Context
from paceline.engine.desync import check_parameters
from paceline.engine.evaluation import Evaluator
from paceline.engine.garbage import Garbage
from paceline.engine.loader import Loader
from paceline.engine.marks import Marks, marked
from paceline.engine.monitor import Monitor
from paceline.engine.optimizer import LearningRate
from paceline.engine.outcome import Outcome, Pending
from paceline.engine.profile import StepProfile
from paceline.engine.rank_times import RankTimes
from paceline.engine.state import Ending, TrainState
from paceline.engine.step import TrainStep
from paceline.engine.stop import STOP_REASONS
from paceline.engine.strategies.base import Strategy
from paceline.engine.tables import Tables
from paceline.engine.timing import StepTimer, Window
from paceline.errors import NonFiniteError
from paceline.telemetry.compiling import CompileAnnouncer
from paceline.workload import Objective, Workload


@dataclass(frozen=True)
class Unwritten:
    """A window of steps that has ended, and is not in the tables yet."""

    state: TrainState
    pending: Pending
    window: Window
    units: int
    is_untimed: bool
    """something else than training took time in it: a profile, or a compiler"""


class Trainer:
    """Trains one workload to its end."""

    def __init__(
        self,
        context: Context,
        workload: Workload,
        objective: Objective,
        state: TrainState,
        strategy: Strategy,
        length: Length,
        loader: Loader,
        step: TrainStep,
        learning_rate: LearningRate,
        evaluator: Evaluator,
        monitor: Monitor,
        timer: StepTimer,
        saver: Saver,
        profile: StepProfile,
        rank_times: RankTimes,
        compilation: Compilation | None = None,
        average: Average | None = None,
        tables: Tables | None = None,
        *,
        garbage: Garbage,
        marks: Sequence[Marks] = (),
    ) -> None:
        self.state = state
        self._context = context
        self._config = context.config
        self._ranks = context.ranks
        self._pulse = context.pulse
        self._workload = workload
        self._objective = objective
        self._strategy = strategy
        self._length = length
        self._loader = loader
        self._step = step
        self._learning_rate = learning_rate
        self._evaluator = evaluator
        self._monitor = monitor
        self._timer = timer
        self._saver = saver
        self._compilation = compilation
        self._average = average
        self._tables = tables
        self._garbage = garbage
        self._marks = marks
        self._profile = profile
        self._rank_times = rank_times
        # What the configuration had compiled announces itself; a model may compile on its own.
        self._announcer = CompileAnnouncer(context.pulse) if compilation is None else None
        if self._announcer is not None:
            self._announcer.register()
        self._judged_step = state.step
        saver.approve(state.step)
        self._overflows = 0
        """steps of this window that fp16 left out"""
        self._unwritten: Unwritten | None = None

    def run(self) -> Ending:
        with self._garbage.kept_off(self.state.step):
            return self._run()

    def _run(self) -> Ending:
        try:
            ending = self._train()
        except NonFiniteError:  # on all ranks alike: what is under way can be brought to its end
            self._write_row()
            self._saver.reject()
            raise
        if ending.state == "finished":
            ending = self._settle(ending)
        self._save()
        self._saver.finish(self.state, is_final=False)
        if ending.state == "finished":
            ending = self._conclude(ending)
        if ending.state == "finished":
            self._saver.finish(self.state, is_final=True)
        self._pulse.beat(self.state.step, "end")
        return ending

    def close(self) -> None:
        self._monitor.close()
        if self._compilation is not None:
            self._compilation.close()
        if self._announcer is not None:
            self._announcer.close()
        self._rank_times.close()

    def _train(self) -> Ending:
        state, total = self.state, self._length.total_steps
        self._save()  # a fork's first own checkpoint; anybody else has this one
        verdict = self._evaluate_deciding() if self._evaluation_is_owed() else self._patience_verdict()
        if verdict == "stop":
            return Ending("stopped", self._agreed_reason(), state.step)
        batches = self._loader.load(state.step + 1, total)
        self._strategy.module.train()
        previous: Pending | None = None
        stop: str | None = None
        self._timer.resume()
        self._turn_profile()
        while state.step < total and stop is None and verdict is None:
            self._monitor.check()
            pending, batch_samples = self._step.run(state.step + 1, batches)
            state.step += 1
            state.samples += batch_samples
            # Judged a step late, so that no step waits for its own result.
            stop = self._judge(previous.read()) if previous is not None else None
            previous = pending
            self._write_row()
            self._rank_times.see_step()
            if state.step % self._config.telemetry.log_every == 0 or self._profile.is_border(state.step):
                self._log_window(pending)
                self._turn_profile()
            self._check(at_end=False)
            if stop is None and self._evaluation_is_due():
                verdict = self._evaluate_deciding()
                if verdict == "stop":
                    stop = self._agreed_reason()
            # The last step is saved at the very end, when its evaluation is known.
            if stop is None and state.step < total and self._checkpoint_is_due():
                if not self._config.checkpoint.asynchronous:
                    stop = self._judge(pending.read())  # it will not be waited for without
                self._save()
            self._saver.prepare()
            self._garbage.end_step(state.step)
        if previous is not None:
            self._write_row()
            stop = self._judge(previous.read()) or stop
            self._log_window(previous)
            self._write_row()
            if self._profile.is_on:  # a stop came first
                self._profile.end(state.step)
            if self._tables is not None:
                self._context.events.write("tables", step=state.step, **self._tables.describe_traffic())
        if stop is not None and state.step < total:
            return Ending("stopped", stop, state.step)
        return Ending("finished", "early_stop" if verdict == "early_stop" else "length", state.step)

    def _judge(self, outcome: Outcome) -> str | None:
        """What a step's result asks for; the same on every rank."""
        if outcome.step > self._judged_step:
            self._judged_step = outcome.step
            if outcome.bad:
                self._on_nonfinite(outcome)
            elif outcome.skipped:
                self._overflows += 1
            if outcome.skipped and self._strategy.powersgd is not None:
                self._strategy.powersgd.forget()
            self._saver.approve(outcome.step)
        return outcome.stop

    def _on_nonfinite(self, outcome: Outcome) -> None:
        guilty = self._ranks.gather_floats([float(outcome.bad_here)])[:, 0].nonzero().flatten().tolist()
        where = f"step {outcome.step} (loss {outcome.loss:.4g}, gradient norm {outcome.grad_norm:.4g}), " + (
            f"not finite on rank {', '.join(map(str, guilty))}"
            if guilty
            else "the loss itself was finite on every rank"
        )
        if self._config.train.nonfinite == "stop":
            raise NonFiniteError(
                f"the loss or gradient is not a number; all ranks stopped after step {self.state.step}, step {outcome.step} was not applied",
                where,
                "lower train.optimizer.lr, lengthen train.schedule.warmup_steps, set train.clip_norm=1.0, or "
                "precision.mode=fp32; train.nonfinite=skip leaves such steps out",
            )
        if self._ranks.is_first:
            self._context.events.write(
                "warning", what="a step was left out: its loss or gradient is not a number", where=where
            )

    def _turn_profile(self) -> None:
        """Opens or closes the profiled window where it begins or ends, when the row of the steps before has been written."""
        step = self.state.step
        if not self._profile.is_border(step):
            return
        self._write_row()
        self._timer.pause()
        if self._profile.is_on:
            self._profile.end(step)
        elif self._profile.begins_after(step):
            self._profile.begin(step)
        self._timer.resume()

    def _log_window(self, pending: Pending) -> None:
        """The row of the steps since the last one, with the loss of this step; on a GPU it is written when the next step is under way."""
        self._pulse.beat(self.state.step, "log")
        is_untimed = self._profile.is_on
        if self._announcer is not None:
            self._announcer.register()
        if self._compilation is not None:
            self._compilation.announce()
            self._compilation.give_up_together()
            is_untimed |= self._compilation.has_worked()
        window = self._timer.close_window()
        if window is not None:
            state, units = dataclasses.replace(self.state), self._step.units
            self._unwritten = Unwritten(state, pending, window, units, is_untimed)
        if not self._timer.is_late:
            self._write_row()
        if self._overflows:
            steps = "1 step" if self._overflows == 1 else f"{self._overflows} steps"
            what = f"{steps} up to step {self.state.step} left out"
            self._context.events.write("note", what=what, why="fp16 gradients overflowed; the loss scale adapts")
            self._overflows = 0

    def _write_row(self) -> None:
        if self._unwritten is None:
            return
        row, self._unwritten = self._unwritten, None
        state, outcome, times = row.state, row.pending.read(), row.window.read()
        self._rank_times.write(state.step, times, is_untimed=row.is_untimed)
        self._monitor.log_window(
            state,
            self._epoch_of(state),
            outcome,
            self._learning_rate.at(outcome.step),
            times,
            row.units,
            self._step.graph_bytes,
            is_untimed=row.is_untimed,
        )

    def _epoch_of(self, state: TrainState) -> int:
        """The epoch of a state's last step, from 0."""
        return max(0, state.step - 1) // self._length.steps_per_epoch

    def _check(self, *, at_end: bool) -> None:
        every = self._config.parallel.check_every
        if (
            every
            and self._ranks.world_size > 1
            and self._strategy.keeps_replicas
            and (at_end or self.state.step % every == 0)
        ):
            self._pulse.beat(self.state.step, "check")
            self._timer.pause()
            check_parameters(self._strategy.model, self._ranks, self.state.step)
            self._timer.resume()

    def _evaluation_is_due(self) -> bool:
        return self._is_due(self._config.evaluate.every_steps, self._config.evaluate.every_epochs)

    def _evaluation_is_owed(self) -> bool:
        """Before the first step: asked for there, or due at the step where a stop came first."""
        is_wanted = self._evaluation_is_due() if self.state.step else self._config.evaluate.at_start
        return is_wanted and self.state.evaluated_step != self.state.step

    def _checkpoint_is_due(self) -> bool:
        """By the calendar, or because this is the best model so far."""
        config, state = self._config.checkpoint, self.state
        return self._is_due(config.every_steps, config.every_epochs) or state.best_step == state.step

    def _is_due(self, every_steps: int | None, every_epochs: int | None) -> bool:
        by_steps = every_steps is not None and self.state.step % every_steps == 0
        epochs, rest = divmod(self.state.step, self._length.steps_per_epoch)
        return by_steps or (every_epochs is not None and rest == 0 and epochs % every_epochs == 0)

    def _save(self) -> None:
        """Counts as time of training, unless that has to wait for it."""
        self._write_row()
        if not self._config.checkpoint.asynchronous:
            self._timer.pause()
        if self._config.checkpoint.enabled:
            self._garbage.collect(self.state.step)
        with marked(self._marks, "checkpoint"):
            self._saver.save(self.state)
        self._timer.resume()

    def _evaluate_deciding(self) -> str | None:
        """Evaluates the split that decides; 'stop' if the ranks agreed to stop meanwhile, 'early_stop' if patience ran out."""
        split = self._workload.splits[0]
        metrics = self._evaluate(split, self.state)
        if metrics is None:
            return "stop" if self._evaluator.size(split) else None
        self.state.evaluated_step = self.state.step
        value = metrics[self._objective.metric]
        if self._objective.better(value, self.state.best, self._config.stop.min_delta):
            self.state.best, self.state.best_step, self.state.stale_evaluations = value, self.state.step, 0
        else:
            self.state.stale_evaluations += 1
        return self._patience_verdict()

    def _patience_verdict(self) -> str | None:
        patience = self._config.stop.patience
        return "early_stop" if patience is not None and self.state.stale_evaluations >= patience else None

    def _evaluate(self, split: str, state: TrainState) -> dict[str, float] | None:
        """The metrics of the model, which is that of `state`; None without samples, or if the ranks agreed to stop meanwhile."""
        num_samples = self._evaluator.size(split)
        if num_samples == 0:
            return None
        self._write_row()
        self._pulse.beat(self.state.step, "evaluate")
        self._timer.pause()
        self._garbage.collect(self.state.step)
        began = time.perf_counter()
        with self._strategy.whole() as model:
            with marked(self._marks, f"evaluate {split}"):
                metrics = self._evaluator.run(split)
            if metrics is not None:
                seconds = time.perf_counter() - began
                self._monitor.log_evaluation(state, self._epoch_of(state), split, num_samples, seconds, metrics)
                if split == self._workload.splits[0]:
                    with self._evaluator.as_evaluated():
                        self._monitor.log_observation(state, model)
        self._timer.resume()
        return metrics

    def _settle(self, ending: Ending) -> Ending:
        """After the last step of a run that was not stopped: one last check, and the deciding evaluation if it is owed."""
        self._check(at_end=True)
        if self.state.evaluated_step != self.state.step and self._evaluate_deciding() == "stop":
            return Ending("stopped", self._agreed_reason(), self.state.step)
        return ending

    def _conclude(self, ending: Ending) -> Ending:
        """When all is saved: the other splits, of the model that the deciding one chose, and what to beat on them."""
        chosen = load_best(self._context, self.state, self._strategy, self._average)
        for split in self._workload.splits[1:]:
            if self._evaluate(split, chosen) is None and self._evaluator.size(split):
                return Ending("stopped", self._agreed_reason(), self.state.step)
        last = self._workload.splits[-1]
        self._monitor.log_baseline(last, self._evaluator.size(last))
        return ending

    def _agreed_reason(self) -> str:
        """Why the ranks stopped in the middle of an evaluation: the reason of the first rank that has one."""
        reason = self._context.watch.reason
        mine = STOP_REASONS.index(reason) if reason else len(STOP_REASONS)
        return STOP_REASONS[int(self._ranks.gather_floats([mine]).min())]
