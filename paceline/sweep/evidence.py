"""What trials say and what is made of it, as plain data: the words between whoever runs trials and whoever judges them.

A driver asks the racer for an `Assignment`, runs it, and hands a `TrialResult` back; `Verdict`s come out. Nothing here knows a
clock, a file or a process, so recorded and simulated trials go the same way as real ones.
    TrialResult("bucket_mb=25", round=1, status="ok", samples_per_s=1030.0, windows=(1021.0, 1038.0), device_s=31.5, startup_s=5.2)
"""

from __future__ import annotations

from dataclasses import dataclass

ENDED = ("ok", "stopped")
"""statuses whose numbers count: "stopped" was ended early by the race"""


@dataclass(frozen=True)
class TrialResult:
    """One execution of a case."""

    case: str
    """the case's name: "bucket_mb=25 num_workers=0\""""
    round: int
    """of the interleaved order, from 1; trials of one round are neighbours in time"""
    status: str
    """"ok", "failed", "oom", "diverged", "timeout" or "stopped" """
    samples_per_s: float | None = None
    """in the recipe's unit over true wall time, after warm-up; the trial is the unit of evidence"""
    step_ms_p50: float | None = None
    step_ms_p90: float | None = None
    memory_gib: float | None = None
    data_ms: float | None = None
    rank_spread_ms: float | None = None
    losses: tuple[tuple[int, float], ...] = ()
    """(samples, loss) of its windows, for the quality guard at matched samples"""
    windows: tuple[float, ...] = ()
    """samples_per_s of its non-overlapping windows; never taken for independent evidence"""
    device_s: float = 0.0
    """what it cost, start-up included: seconds × devices"""
    devices: int = 1
    """how many it had"""
    startup_s: float = 0.0
    """from its start to the first counted step: import, data, compilation, warm-up"""
    metric: float | None = None
    """the validation metric, where the objective is one"""
    steps: int = 0
    """counted ones, without warm-up; 0: not known, taken for what was assigned"""
    time_s: float | None = None
    """the middle of its counted steps, on any clock that goes on from trial to trial; None: not known"""
    samples: int = 0
    """seen from its start to its end, whether their loss was told or not; 0: not known"""


@dataclass(frozen=True)
class RaceSettings:
    """What a plan asks of the comparison."""

    racing: bool = True
    """false: the full grid, every case in every round"""
    repeats: int | None = None
    """rounds of the full grid; None: as many as the noise asks for"""
    steps: int = 300
    """counted steps of a whole trial"""
    warmup_steps: int = 20
    window: int = 50
    """steps per window"""
    objective: str = "throughput"
    """or the name of a validation metric"""
    direction: str = "max"
    """of that metric: "max" or "min" """
    loss_tolerance: float | None = 0.02
    """relative, at matched samples, against the baseline; None: the loss is not looked at"""
    margin: float = 0.01
    """relative difference that does not matter: closer cases are tied"""
    confidence: float = 0.95
    """of all verdicts of a sweep together"""
    effect: float = 0.03
    """relative difference that `repeats: auto` must be able to see"""
    power: float = 0.8
    """with which it sees it"""
    budget_share: float = 0.2
    """of the full grid's device-seconds: what a race may cost; a quarter is the promise, and both are guesses"""
    most_share: float = 0.5
    """of the same: what it may cost where its share is too little for a few trials of each front-runner"""
    max_rounds: int = 30


@dataclass(frozen=True)
class Assignment:
    """The next trial to run."""

    case: str
    round: int
    steps: int
    """counted steps, to be run after `warmup_steps`"""
    why: str = ""
    """for the log and the history of the race"""


@dataclass(frozen=True)
class Verdict:
    """What is known about a case in the end, or so far."""

    verdict: str
    """"winner", "leads", "tied", "slower", "does not fit", "diverges", "failed" or "undecided" """
    value: float | None = None
    """the objective, as in the middle of the rounds it was compared in"""
    low: float | None = None
    high: float | None = None
    """the interval that holds it at the sweep's confidence"""
    ratio: float | None = None
    """against the winner, or who leads: 0.97 is 3 % worse"""
    ratio_low: float | None = None
    ratio_high: float | None = None
    trials: int = 0
    """whose numbers count"""
    complete: bool = True
    """no trial of it failed"""
    evidence: str = ""
    """in words"""
