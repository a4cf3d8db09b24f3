"""What the records of cells come to: pure, records in, rows out.

score(record)      -> Score(fault="sigstop", is_noticed=True, latency_s=1.2, culprit=True, cause=True, alarms=(), …)
summarize(scores)  -> one row per fault;   confusion(scores) -> fault × what was said first
"""

from __future__ import annotations

import itertools
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from paceline.bench.faults.catalogue import CATALOGUE, Fault

STACKS_S = 5.0
_LOUD = ("warning", "critical")
_HANGS = ("stall", "stopped")
NOTHING = "nothing"


@dataclass(frozen=True)
class Score:
    """One cell that was run."""

    fault: str
    cell: str
    is_valid: bool
    """the fault struck, or the clean run came to its end"""
    said: str = NOTHING
    """the kind of the first loud notice"""
    by: str = ""
    is_noticed: bool = False
    """something loud was said after it began"""
    latency_s: float | None = None
    latency_steps: float | None = None
    is_in_time: bool = False
    culprit: bool | None = None
    """the right rank and no other was named; None: nobody is to be named"""
    cause: bool = False
    alarms: tuple[str, ...] = ()
    """loud notices of which there was no reason: before the fault began, or in a clean run"""
    accused: tuple[str, ...] = ()
    """kinds of loud notices after it began that name another rank"""
    stacks: bool | None = None
    """everybody's, in time; None: there was no hang to take them in"""
    why: str = ""
    """what is wrong with it, in words"""

    @property
    def is_right(self) -> bool:
        is_understood = CATALOGUE[self.fault].answer is None or (self.cause and self.culprit is not False)
        return self.is_valid and is_understood and not self.alarms and self.stacks is not False


def score(record: Mapping[str, Any]) -> Score:
    """What one record says of its fault."""
    cell, fault = record["cell"], CATALOGUE[record["cell"]["fault"]]
    name = f"{fault.name}-{cell['number']:03d}"
    loud = [notice for notice in record["notices"] if notice["severity"] in _LOUD]
    began = record["began"]
    if fault.answer is None:
        alarms = tuple(notice["kind"] for notice in loud)
        is_valid = record["status"] == "ended" and record["exit_code"] == 0
        why = "; ".join(notice["what"] for notice in loud) or ("" if is_valid else _last_words(record))
        return Score(fault.name, name, is_valid or bool(alarms), alarms=alarms, why=why, said=_first(loud))
    if began is None:
        return Score(fault.name, name, False, why=f"{record['status']}: {_last_words(record)}")
    after = [notice for notice in loud if notice["time"] >= began]
    alarms = tuple(notice["kind"] for notice in loud if notice["time"] < began)
    felt = _slowed_down(record["pace"], began)
    if fault.wish["kind"] == "throttle" and not after and felt is not None and felt < fault.wish["share"] / 2:
        # From outside one can only hope: a limit that the rank never reached is no fault.
        return Score(fault.name, name, False, alarms=alarms, why=f"it had no effect: steps changed by {felt:+.0%}")
    if not after:
        why = f"nothing was said for {record['ended'] - began:.0f} s"
        return Score(fault.name, name, True, alarms=alarms, why=why, culprit=_blank(fault))
    told = next((notice for notice in after if notice["kind"] in fault.answer.kinds), after[0])
    latency_s = told["time"] - began
    is_in_time, steps = latency_s <= fault.limit_s, None
    if fault.limit_steps is not None:
        steps = _step_at(record["pace"], told["time"]) - _step_at(record["pace"], began)
        is_in_time = steps <= fault.limit_steps
    wrong = [notice for notice in after if notice is not told and _accuses_another(notice, cell["rank"])]
    culprit = None
    if fault.answer.names_rank:
        culprit = told["rank"] == cell["rank"] and not wrong
    cause, stacks = is_understood(fault, told), _has_stacks(told, cell["nproc"])
    return Score(
        fault=fault.name,
        cell=name,
        is_valid=True,
        said=_first(after),
        by=told["by"],
        is_noticed=True,
        latency_s=latency_s,
        latency_steps=steps,
        is_in_time=is_in_time,
        culprit=culprit,
        cause=cause,
        alarms=alarms,
        accused=tuple(notice["kind"] for notice in after if _accuses_another(notice, cell["rank"])),
        stacks=stacks,
        why=_explain(cell, told, (culprit is not False) and cause, stacks, wrong),
    )


def is_understood(fault: Fault, notice: Mapping[str, Any]) -> bool:
    answer = fault.answer
    assert answer is not None
    words = {notice["cause"], notice["phase"]}
    return notice["kind"] in answer.kinds and (not answer.causes or bool(words & set(answer.causes)))


def summarize(scores: Iterable[Score]) -> list[dict[str, Any]]:
    """A row for each fault, in the order of the catalogue; counts, and what they are out of."""
    by_fault: dict[str, list[Score]] = {name: [] for name in CATALOGUE}
    for each in scores:
        by_fault[each.fault].append(each)
    return [_row(name, found) for name, found in by_fault.items() if found]


def summarize_all(scores: Sequence[Score]) -> dict[str, Any]:
    """The figures that the targets are about."""
    faulty = [each for each in scores if each.is_valid and CATALOGUE[each.fault].answer is not None]
    clean = [each for each in scores if each.is_valid and CATALOGUE[each.fault].answer is None]
    named = [each for each in faulty if each.culprit is not None]
    with_stacks = [each for each in faulty if each.stacks is not None]
    return {
        "faulty": len(faulty),
        "noticed": sum(each.is_noticed for each in faulty),
        "in_time": sum(each.is_in_time for each in faulty),
        "culprit_right": sum(each.culprit is True for each in named),
        "culprit_asked": len(named),
        "cause_right": sum(each.cause for each in faulty),
        "clean": len(clean),
        "clean_with_alarm": sum(bool(each.alarms) for each in clean),
        "straggler_alarms": sum("straggler" in (*each.alarms, *each.accused) for each in scores if each.is_valid),
        "alarms_before": sum(bool(each.alarms) for each in faulty),
        "stacks_right": sum(each.stacks is True for each in with_stacks),
        "stacks_asked": len(with_stacks),
        "invalid": sum(not each.is_valid for each in scores),
    }


def confusion(scores: Iterable[Score]) -> dict[str, Counter[str]]:
    """fault -> how often each kind was said first."""
    rows: dict[str, Counter[str]] = {name: Counter() for name in CATALOGUE}
    for each in scores:
        if each.is_valid:
            rows[each.fault][each.said] += 1
    return {name: counts for name, counts in rows.items() if counts}


def _row(name: str, found: list[Score]) -> dict[str, Any]:
    valid = [each for each in found if each.is_valid]
    in_steps = CATALOGUE[name].limit_steps is not None
    latencies = [each.latency_steps if in_steps else each.latency_s for each in valid]
    known = [latency for latency in latencies if latency is not None]
    named = [each for each in valid if each.culprit is not None]
    with_stacks = [each for each in valid if each.stacks is not None]
    return {
        "fault": name,
        "is_clean": CATALOGUE[name].answer is None,
        "runs": len(valid),
        "invalid": len(found) - len(valid),
        "noticed": sum(each.is_noticed for each in valid),
        "in_time": sum(each.is_in_time for each in valid),
        "latency_unit": "steps" if in_steps else "s",
        "latency": statistics.median(known) if known else None,
        "latency_most": max(known, default=None),
        "culprit_right": sum(each.culprit is True for each in named),
        "culprit_asked": len(named),
        "cause_right": sum(each.cause for each in valid),
        "alarms": sum(bool(each.alarms) for each in valid),
        "stacks_right": sum(each.stacks is True for each in with_stacks),
        "stacks_asked": len(with_stacks),
    }


def _accuses_another(notice: Mapping[str, Any], rank: int) -> bool:
    return notice["rank"] is not None and notice["rank"] != rank


def _has_stacks(notice: Mapping[str, Any], nproc: int) -> bool | None:
    if notice["kind"] not in _HANGS or notice["by"] != "incident":
        return None
    # A stopped process answers nobody; without py-spy its stack cannot be had, and the incident says so.
    beyond = sum("py-spy is not installed" in why for _, why in notice["missing"])
    return notice["stacks"] + beyond == nproc and notice["stacks_s"] is not None and notice["stacks_s"] <= STACKS_S


def _step_at(pace: Sequence[Sequence[float]], moment: float) -> float:
    """Between two logged steps by the time between them, behind the last one by its pace."""
    if len(pace) < 2:
        return float(pace[0][0]) if pace else 0.0
    rows = list(itertools.pairwise(pace))
    (step, at), (later, later_at) = next((pair for pair in rows if pair[1][1] >= moment), rows[-1])
    return step + (later - step) * (moment - at) / max(later_at - at, 1e-9)


def _slowed_down(pace: Sequence[Sequence[float]], began: float) -> float | None:
    """By which share steps took longer afterwards, in the median of what was logged; None: too little was."""
    rows = [((later - step), (later_at - at), at) for (step, at), (later, later_at) in itertools.pairwise(pace)]
    before = [seconds / steps for steps, seconds, at in rows if at < began and steps > 0]
    after = [seconds / steps for steps, seconds, at in rows if at >= began and steps > 0]
    if len(before) < 3 or len(after) < 3:
        return None
    return statistics.median(after) / statistics.median(before) - 1


def _first(loud: Sequence[Mapping[str, Any]]) -> str:
    return str(loud[0]["kind"]) if loud else NOTHING


def _blank(fault: Fault) -> bool | None:
    return False if fault.answer is not None and fault.answer.names_rank else None


def _explain(
    cell: Mapping[str, Any],
    told: Mapping[str, Any],
    is_understood: bool,
    stacks: bool | None,
    wrong: Sequence[Mapping[str, Any]],
) -> str:
    words = []
    if not is_understood:
        others = "".join(f"; and {notice['kind']} of rank {notice['rank']}" for notice in wrong)
        where = f"rank {cell['rank']} of {cell['nproc']}, step {cell['step']}"
        words.append(f"{where}: {told['kind']} ({told['cause']}): {told['what']}{others}")
    if stacks is False:
        words.append(f"stacks of {told['stacks']} of {cell['nproc']} ranks, {told['stacks_s']} s after the notice")
    return "; ".join(words)


def _last_words(record: Mapping[str, Any]) -> str:
    return str((record.get("tail") or [""])[-1])
