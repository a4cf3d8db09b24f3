"""What a run is limited by: data, communication or the host, with the numbers and the knob.

judge_bounds(run.metrics, {0: run.timing(0), 1: run.timing(1)})
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import median

from paceline.diagnose.finding import Finding, Witness
from paceline.diagnose.limits import STEP_PHASES
from paceline.diagnose.rows import Row, read_number
from paceline.telemetry.pulse import Pulse

DATA_SHARE = 0.2
WAIT_SHARE = 0.25
"""of a step: more than that is a limit worth lifting"""
QUEUE_SHARE = 0.1
"""of a step, that half of the ranks are ready to run and get no core: then what the others wait for is cores"""
BUSY_GPU = 60.0
"""per cent; a GPU that is used less has nothing to do most of the time"""
_LAST = 30
"""rows, the newest ones: a warm-up says nothing"""
_LEAST = 5
_LEAST_WAITS = 50


def judge_bounds(rows: Sequence[Row], timing: Mapping[int, Sequence[Row]]) -> list[Finding]:
    """`rows` of metrics.csv; `timing`: each rank's own, where they were asked for (telemetry.timing_ranks=all)."""
    recent = [row for row in rows if read_number(row, "step_ms")][-_LAST:]
    if len(recent) < _LEAST:
        return []
    found = [_judge_data(recent), _judge_communication(timing), _judge_host(recent)]
    return [finding for finding in found if finding is not None]


def _judge_data(rows: Sequence[Row]) -> Finding | None:
    share, step_ms = _share(rows, "data_ms")
    if share is None or share < DATA_SHARE:
        return None
    said = f"{share:.0%} of a step of {step_ms:.3g} ms is waiting for data"
    return Finding(
        "data_bound",
        f"the run waits for its data: {said}",
        "raise data.num_workers or data.prefetch; paceline bench loader CONFIG says what the loader can bring",
        cause="data",
        step=rows[-1]["step"],
        witnesses=(Witness("metrics", True, said),),
        numbers={"share": share, "step_ms": step_ms},
    )


def judge_pulses(pulses: Iterable[Pulse]) -> list[Finding]:
    """Whether the ranks wait for their communication, by what their pulses have added up; nothing where they do not tell."""
    shares, queued = {}, {}
    for pulse in pulses:
        spent_s = sum(pulse.spent_s.get(phase, 0.0) for phase in STEP_PHASES)
        if pulse.waits < _LEAST_WAITS or spent_s <= 0 or pulse.steps <= 0:
            return []
        step_ms = 1000 * spent_s / pulse.steps
        shares[pulse.rank] = pulse.waited_ms / pulse.waits / step_ms
        own = pulse.list_own(pulse.waits - len(pulse.recent_ms), pulse.waits)
        queued[pulse.rank] = median(queued_ms for *_, queued_ms in own) / step_ms if own else 0.0
    found = _report_communication(shares)
    if found is None:
        return []
    return [_report_cores(queued) if median(queued.values()) >= QUEUE_SHARE else found]


def _judge_communication(timing: Mapping[int, Sequence[Row]]) -> Finding | None:
    shares = {}
    for rank, rows in timing.items():
        recent = [row for row in rows if read_number(row, "step_ms")][-_LAST:]
        share, _ = _share(recent, "wait_ms")
        if share is not None and len(recent) >= _LEAST:
            shares[rank] = share
    return _report_communication(shares)


def _report_communication(shares: Mapping[int, float]) -> Finding | None:
    """Also the rank that waits least waits: that is nobody's fault, but the network's."""
    if len(shares) < 2 or min(shares.values()) < WAIT_SHARE:
        return None
    least = min(shares, key=lambda rank: shares[rank])
    said = f"even rank {least}, which waits least, waits {shares[least]:.0%} of a step for gradients to be exchanged"
    return Finding(
        "communication_bound",
        f"the run waits for its communication: {said}",
        "a larger train.global_batch or train.accumulate (fewer exchanges), parallel.compression=bf16, another parallel.bucket_mb; paceline bench collective measures the link",
        cause="communication",
        witnesses=(Witness("wait", True, said),),
        numbers={"share": shares[least]},
    )


def _report_cores(queued: Mapping[int, float]) -> Finding:
    share = median(queued.values())
    said = (
        f"half of them are ready to run and get no core for {share:.0%} of a step or more, and the others wait for them"
    )
    return Finding(
        "host_bound",
        f"the ranks wait for cores: {said}",
        "fewer ranks on this host, or fewer threads and loader processes (OMP_NUM_THREADS, data.num_workers); paceline preflight says what else runs there",
        cause="cores",
        witnesses=(Witness("kernel", True, said),),
        numbers={"share": share},
    )


def _judge_host(rows: Sequence[Row]) -> Finding | None:
    used = [value for row in rows if (value := read_number(row, "gpu_util")) is not None]
    data, step_ms = _share(rows, "data_ms")
    if len(used) < _LEAST or median(used) >= BUSY_GPU or (data or 0.0) >= DATA_SHARE:
        return None
    said = f"the GPU is busy {median(used):.0f} % of the time, and data takes {data or 0:.0%} of a step of {step_ms:.3g} ms"
    return Finding(
        "host_bound",
        f"the host does not keep the GPU busy: {said}",
        "train.graph=true or train.compile.enabled=true (fewer launches), a larger train.micro_batch",
        cause="host",
        step=rows[-1]["step"],
        witnesses=(Witness("metrics", True, said),),
        numbers={"gpu_util": median(used), "step_ms": step_ms},
    )


def _share(rows: Sequence[Row], column: str) -> tuple[float | None, float]:
    """(median share of a step, median step in ms)."""
    pairs = [(read_number(row, column), read_number(row, "step_ms")) for row in rows]
    shares = [part / step for part, step in pairs if part is not None and step]
    steps = [step for _, step in pairs if step]
    return (median(shares) if shares else None), (median(steps) if steps else math.nan)
