"""From trials to verdicts: which case won, which are tied with it, which are slower, and how certain that is.

Every case is compared with the leader, the fastest that trains well and completely. With `d` the difference and its interval
at the sweep's confidence, shared out over all ordered pairs of cases (Bonferroni: the leader is whoever the data say, so any pair
may be the one that is compared) and over all looks (look n gets 1 / n(n+1) of the error):
- tied: it lies within the margin on both sides, so the difference does not matter, whatever it is;
- slower: it lies below zero, and accidents of the machine would not explain that as well (mishap.py);
- undecided: neither yet. When nothing more will run, a case with at least two trials is tied then, "not told apart" and with the
  interval: no difference was found, which is not to say that there is none. What lies below zero and accidents may explain stays so.
The leader is the winner when nothing more will run and every case that could still beat it is slower or within the margin by its
interval. Until then, and if the trials end with a case that was not told apart or hardly tried, it leads.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from paceline.sweep.comparison import Comparison, compare
from paceline.sweep.evidence import ENDED, RaceSettings, TrialResult, Verdict
from paceline.sweep.guard import Curve, Quality, check_soundness, compare_losses, mean_curve
from paceline.sweep.mishap import count_mishaps, evidence_of_slowness
from paceline.sweep.observation import Observation, observe_trials, value_of
from paceline.sweep.scale import Scale, choose_scale

_EXCLUDED = {"oom": "does not fit", "diverged": "diverges"}
TRIES = 2
"""failed trials of a case that has never succeeded, after which it is not tried again"""
_WITNESSES = 2
"""trials without which no case is out: one may be an accident of the machine"""
_ACCIDENTS = 0.5
"""of the error, once more, for cases that are called slower because they were struck"""
_STEADIER = 1.25
"""by how much deviations of tied cases must differ to decide between them"""
_FARTHEST = 20.0
"""no interval of logs is wider: e²⁰ says as well as any number that nothing is known"""
_UNKNOWN = 10.0
"""an interval that reaches so many times as far as the leader says nothing, and is not told"""


@dataclass(frozen=True)
class Ranking:
    """All cases, the best first."""

    order: tuple[str, ...]
    verdicts: Mapping[str, Verdict]
    leader: str | None
    contenders: tuple[str, ...]
    """that are neither slower nor tied yet; the leader is not among them"""
    suspects: tuple[str, ...]
    """that are behind by trials that may all have been accidents"""
    comparison: Comparison | None
    ordinary: tuple[Observation, ...] = ()
    """the trials as one would compare them without a look at their windows and their time"""
    rivals: tuple[str, ...] = ()
    """that may be better than the leader, as far as is known; while there are any, it only leads"""


def rank_cases(
    cases: Sequence[str],
    results: Sequence[TrialResult],
    baseline: str,
    settings: RaceSettings,
    looks: int = 1,
    lengths: Mapping[int, int] | None = None,
    field: Collection[str] | None = None,
    is_final: bool = False,
) -> Ranking:
    """`lengths`: counted steps of each round, where they differ; `field`: among whom the leader is sought (all).

    `is_final`: nothing more will run, so what was compared and could not be told apart is tied.
    """
    reference = reference_curve(results, baseline)
    lengths = lengths or {}
    excluded = {
        case: verdict
        for case in cases
        if (verdict := exclude(case, results, reference, case == baseline, settings, lengths, 1 if is_final else TRIES))
    }
    counted = [r for r in results if r.status in ENDED and value_of(r, settings) is not None]
    is_lower_better = settings.objective != "throughput" and settings.direction == "min"
    scale = choose_scale([value for r in counted if (value := value_of(r, settings)) is not None], is_lower_better)
    observations = observe_trials(counted, settings, scale, lengths)
    are_paces = settings.objective == "throughput"
    comparison = compare(observations.sharp, are_paces=are_paces)
    if comparison is None:
        verdicts = {case: excluded.get(case, Verdict("undecided", evidence="no trial yet")) for case in cases}
        return Ranking(tuple(cases), verdicts, None, (), (), None)
    incomplete = {r.case for r in results if r.status in ("failed", "timeout")}
    eligible = [case for case in cases if case in comparison.effects and case not in excluded]
    best = [c for c in eligible if c not in incomplete and (field is None or c in field)]
    best = best or [c for c in eligible if c not in incomplete] or eligible
    leader = max(best, key=lambda case: comparison.effects[case], default=None)
    # The data choose the leader: it is the largest of all, by luck, too. So every ordered pair has its share of the error.
    error = (1 - settings.confidence) / max(len(cases) * (len(cases) - 1), 1)
    # A grid is looked at once, when it is whole; what is shown before is not acted on.
    reach = comparison.reach(error / (looks * (looks + 1)) if settings.racing else error)
    verdicts = dict(excluded)
    contenders, suspects, unknown = list[str](), list[str](), list[str]()
    for case in cases:
        if case in excluded:
            continue
        if leader is None or case not in comparison.effects:
            verdicts[case] = Verdict("undecided", complete=case not in incomplete, evidence="no trial has numbers yet")
            unknown.append(case)
            continue
        verdict = _judge(case, leader, comparison, settings, scale, reach)
        weight = _weigh(case, leader, comparison) if verdict.verdict == "slower" and are_paces else math.inf
        is_alone = verdict.verdict in ("slower", "tied") and verdict.trials < _WITNESSES and settings.racing
        # As many cases may be struck as there are, so each has its share of the error; there are no looks to share it with.
        if is_alone or weight < len(cases) / (_ACCIDENTS * (1 - settings.confidence)):
            why = "one trial may be an accident" if is_alone else "accidents may explain that"
            said = f"{verdict.evidence}: {why}"
            verdicts[case] = replace(verdict, verdict="undecided", evidence=said, complete=case not in incomplete)
            suspects.append(case)
            continue
        verdicts[case] = replace(verdict, complete=case not in incomplete)
        if verdict.verdict == "undecided" and case not in incomplete:
            contenders.append(case)
        if verdict.verdict == "undecided" and verdict.trials >= _WITNESSES and is_final:
            said = f"not told apart from the leader: {verdict.evidence}"
            verdicts[case] = replace(verdicts[case], verdict="tied", evidence=said)
    if leader is not None and not contenders:
        winner = _break_tie(leader, verdicts, comparison, results, settings)
        if winner != leader:
            was = verdicts[winner]
            verdicts[leader] = replace(
                verdicts[leader], verdict="tied", evidence=f"tied with {winner}, which is steadier or smaller"
            )
            verdicts[winner] = replace(was, verdict="leads", evidence=f"tied with {leader}, and steadier or smaller")
            leader = winner
    rivals = [*contenders, *(case for case in suspects if verdicts[case].complete), *unknown]
    if leader is not None and is_final and not rivals:
        verdicts[leader] = replace(verdicts[leader], verdict="winner")
    order = _order(cases, leader, verdicts, comparison)
    return Ranking(
        tuple(order),
        verdicts,
        leader,
        tuple(contenders),
        tuple(suspects),
        comparison,
        observations.ordinary,
        tuple(case for case in order if case in rivals),
    )


def exclude(
    case: str,
    results: Sequence[TrialResult],
    reference: Curve,
    is_baseline: bool,
    settings: RaceSettings,
    lengths: Mapping[int, int],
    tries: int = TRIES,
) -> Verdict | None:
    """Why a case cannot win, however fast it is; `tries`: so many failures and nothing else are a verdict."""
    own = [r for r in results if r.case == case]
    ended = [r for r in own if r.status in ENDED]
    for result in own:
        if result.status in _EXCLUDED:
            what = "out of memory" if result.status == "oom" else "its loss was not a number or grew without bound"
            return Verdict(_EXCLUDED[result.status], trials=len(ended), evidence=f"{what} in round {result.round}")
    if len(own) >= tries and not any(value_of(r, settings) is not None for r in ended):
        statuses = ", ".join(f"{r.status} in round {r.round}" for r in own)
        silent = f" without a number for {settings.objective}" if ended else ""
        return Verdict("failed", complete=False, evidence=statuses + silent)
    for result in ended if settings.loss_tolerance is not None else ():
        broken = check_soundness(result.losses, result.samples)
        if broken is not None:
            said = f"{broken} in round {result.round}"
            return Verdict("diverges", trials=len(ended), evidence=said)
    quality = None if is_baseline else check_quality(ended, reference, settings, lengths)
    if quality is not None and quality.is_worse:
        return Verdict("diverges", trials=len(ended), evidence=quality.evidence)
    return None


def reference_curve(results: Sequence[TrialResult], baseline: str) -> Curve:
    """The baseline's losses, over all its trials."""
    return mean_curve([r.losses for r in results if r.case == baseline and r.status in ENDED and r.losses])


def check_quality(
    ended: Sequence[TrialResult], reference: Curve, settings: RaceSettings, lengths: Mapping[int, int]
) -> Quality | None:
    """How the trials of a case train beside the baseline; None: nobody asked, or there is nothing to compare."""
    curves = [result.losses for result in ended if result.losses]
    if settings.loss_tolerance is None or not curves or not reference:
        return None
    # A short trial ends in the steepest part of the curve, where little shifts a loss by much. Its steps say whether it was one:
    # with a small batch, a whole trial has seen few samples, too.
    is_whole = any(
        result.steps >= settings.steps
        or (result.status == "ok" and lengths.get(result.round, settings.steps) >= settings.steps)
        for result in ended
        if result.losses
    )
    tolerance = settings.loss_tolerance if is_whole else 3 * settings.loss_tolerance
    return compare_losses(mean_curve(curves), reference, tolerance)


def _weigh(case: str, leader: str, comparison: Comparison) -> float:
    """How much better a slower case explains its trials than accidents do."""
    level = comparison.effects[leader]
    trials = [(value - level, deviation) for value, deviation in comparison.steadied[case]]
    return evidence_of_slowness(trials, count_mishaps(comparison))


def _judge(
    case: str, leader: str, comparison: Comparison, settings: RaceSettings, scale: Scale, reach: float
) -> Verdict:
    effect = comparison.effects[case]
    alone = min(comparison.reach((1 - settings.confidence) / 2) * comparison.error_of(case), _FARTHEST)
    ends = sorted(scale.value(effect + side * alone) for side in (-1, 1))
    verdict = Verdict(
        "leads",
        value=scale.value(effect),
        low=ends[0],
        high=ends[1],
        ratio=1.0,
        ratio_low=1.0,
        ratio_high=1.0,
        trials=comparison.trials[case],
        evidence=f"{comparison.trials[case]} trials, noise {comparison.noise:.1%} each",
    )
    if case == leader:
        return verdict
    difference, deviation = comparison.difference(case, leader)
    width = min(reach * deviation, _FARTHEST)
    low, high = difference - width, difference + width
    margin = scale.distance(settings.margin)
    is_within = -margin < low and high < margin
    word = "tied" if is_within else "slower" if high < 0 else "undecided"
    ratios = (scale.ratio(difference), scale.ratio(low), scale.ratio(high))
    between = f"between {ratios[1] - 1:+.1%} and {ratios[2] - 1:+.1%}"
    if ratios[2] > _UNKNOWN:
        between = "which may be chance"
    trials = comparison.trials[case]
    said = f"{ratios[0] - 1:+.1%} against the leader, {between} ({trials} trial{'s' if trials != 1 else ''})"
    return replace(verdict, verdict=word, ratio=ratios[0], ratio_low=ratios[1], ratio_high=ratios[2], evidence=said)


def _order(
    cases: Sequence[str], leader: str | None, verdicts: Mapping[str, Verdict], comparison: Comparison
) -> list[str]:
    """The leader; then those that may win before those that may not, complete before incomplete, and by value."""
    may_win = ("winner", "leads", "tied", "slower", "undecided")

    def key(case: str) -> tuple[bool, bool, bool, float]:
        verdict = verdicts[case]
        effect = comparison.effects.get(case, -math.inf)
        return case != leader, verdict.verdict not in may_win, not verdict.complete, -effect

    return sorted(cases, key=key)


def _break_tie(
    leader: str,
    verdicts: Mapping[str, Verdict],
    comparison: Comparison,
    results: Sequence[TrialResult],
    settings: RaceSettings,
) -> str:
    """The steadiest of those certainly within the margin of the leader, then the smallest."""
    tied = [leader]
    for case, verdict in verdicts.items():
        if (
            verdict.verdict == "tied"
            and verdict.complete
            and verdict.ratio_low is not None
            and verdict.ratio_low > 1 / (1 + settings.margin)
        ):
            tied.append(case)
    if len(tied) == 1:
        return leader
    spreads = {case: _spread(case, results, settings) for case in tied}
    steadiest = min(spreads.values())
    steady = [case for case in tied if spreads[case] <= steadiest * _STEADIER]
    memory = {case: max((r.memory_gib or 0.0 for r in results if r.case == case), default=0.0) for case in steady}
    least = min(memory.values())
    small = [case for case in steady if memory[case] <= least * (1 + settings.margin)]
    return leader if leader in small else max(small, key=lambda case: comparison.effects[case])


def _spread(case: str, results: Sequence[TrialResult], settings: RaceSettings) -> float:
    """Between the trials of a case, relative; too few of them say nothing, so the same for all."""
    values = [v for r in results if r.case == case and r.status in ENDED and (v := value_of(r, settings)) is not None]
    size = statistics.fmean(abs(value) for value in values) if values else 0.0
    return statistics.stdev(values) / size if len(values) >= 5 and size else math.inf
