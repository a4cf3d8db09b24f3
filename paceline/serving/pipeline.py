"""A request from the query to what is shown: stages in the order of their kinds, each on its own.

    pipeline = Pipeline(Stages(sources=[towers, popular], filters=[Duplicates(), Seen()], scorers=[model, weights, diversity]))
    answer = pipeline.serve(Query(top=10, user=17))
    answer.shown.item, answer.reports

Query hydrators, sources, candidate hydrators and filters of one request run side by side, each seeing what the kind before it left;
scorers run one after the other. What becomes of a request when one of them fails or is late: `stages.py`. `serve` itself raises
nothing of theirs, and may be called from many threads at once.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.serving.attempts import Attempts, describe
from paceline.serving.candidates import Candidates, join
from paceline.serving.lanes import Lane, StuckError
from paceline.serving.ordering import descending
from paceline.serving.query import Query
from paceline.serving.report import Answer, Effects, StageReport
from paceline.serving.stages import (
    CandidateHydrator,
    Columns,
    Filter,
    QueryHydrator,
    Scorer,
    Selector,
    SideEffect,
    Source,
    Stage,
)


@dataclass(frozen=True)
class Stages:
    """What a pipeline is made of; no two stages of a kind have the same name."""

    sources: Sequence[Source]
    """by priority: of an item that two of them bring, the earlier one's row is kept"""
    query_hydrators: Sequence[QueryHydrator] = ()
    candidate_hydrators: Sequence[CandidateHydrator] = ()
    filters: Sequence[Filter] = ()
    scorers: Sequence[Scorer] = ()
    selector: Selector | None = None
    """None: the best scores"""
    side_effects: Sequence[SideEffect] = ()

    def all(self) -> list[Stage]:
        selector = [self.selector] if self.selector else []
        before = (*self.query_hydrators, *self.sources, *self.candidate_hydrators, *self.filters, *self.scorers)
        return [*before, *selector, *self.side_effects]


@dataclass
class _Request:
    """One request on its way."""

    query: Query
    reports: list[StageReport] = field(default_factory=list)

    def note(self, report: StageReport, count: int | None = None) -> None:
        self.reports.append(dataclasses.replace(report, count=count))


class Pipeline:
    """Stages that stay where they are while requests pass through them."""

    def __init__(self, stages: Stages, width: int = 8) -> None:
        self.stages = stages
        self._attempts = Attempts(width)
        self._attempts.add(stages.all())
        self._effects = Lane("side-effects", width)

    def serve(self, query: Query) -> Answer:
        began = time.perf_counter()
        request = _Request(query)
        self._hydrate_query(request)
        candidates = self._fetch(request)
        candidates = self._hydrate_candidates(request, candidates)
        candidates = self._filter(request, candidates)
        candidates = self._score(request, candidates)
        shown = self._select(request, candidates)
        effects = Effects(len(self.stages.side_effects))
        answer = Answer(request.query, shown, tuple(request.reports), (time.perf_counter() - began) * 1e3, effects)
        self._begin_effects(answer)
        return answer

    def close(self) -> None:
        self._attempts.close()
        self._effects.close()

    def _hydrate_query(self, request: _Request) -> None:
        query = request.query

        def work(hydrator: QueryHydrator) -> Mapping[str, Any]:
            fields = hydrator.hydrate(query)
            query.having(**fields)  # a field that there is not is the failure of who gave it
            return fields

        for _, fields, report in self._attempts.run_all("query hydrator", self.stages.query_hydrators, work):
            request.note(report)
            request.query = request.query.having(**(fields or {}))

    def _fetch(self, request: _Request) -> Candidates:
        query = request.query
        parts = []
        found = self._attempts.run_all("source", self.stages.sources, lambda source: _checked_part(source.fetch(query)))
        for number, (_, part, report) in enumerate(found):
            request.note(report, len(part) if part is not None else 0)
            if part is not None:
                parts.append(part.having(source=np.full(len(part), number, np.int16)))
        return join(parts)

    def _hydrate_candidates(self, request: _Request, candidates: Candidates) -> Candidates:
        query = request.query

        def work(hydrator: CandidateHydrator) -> Columns:
            return _checked(hydrator.hydrate(query, candidates), len(candidates))

        hydrated = candidates
        hydrators = self.stages.candidate_hydrators
        for _, columns, report in self._attempts.run_all("candidate hydrator", hydrators, work):
            request.note(report, len(candidates))
            hydrated = hydrated.having(**(columns or {}))
        return hydrated

    def _filter(self, request: _Request, candidates: Candidates) -> Candidates:
        """Every filter looks at all candidates; what one removes and an earlier one had removed is the earlier one's."""
        query, count = request.query, len(candidates)

        def work(each: Filter) -> NDArray[np.bool_]:
            keep = each.keep(query, candidates)
            if keep.dtype != np.bool_ or keep.shape != (count,):
                raise ValueError(f"{keep.dtype} {keep.shape} is no mask of {count} candidates")
            return keep

        kept = np.ones(count, np.bool_)
        num_left = count
        for each, keep, report in self._attempts.run_all("filter", self.stages.filters, work):
            if keep is not None:
                kept &= keep
            elif each.is_strict and report.status != "skipped":
                kept[:] = False
            num_before, num_left = num_left, int(np.count_nonzero(kept))
            request.note(report, num_before - num_left)
        return candidates if num_left == count else candidates.take(kept)

    def _score(self, request: _Request, candidates: Candidates) -> Candidates:
        for scorer in self.stages.scorers:
            candidates = self._score_once(request, scorer, candidates)
        return candidates

    def _score_once(self, request: _Request, scorer: Scorer, candidates: Candidates) -> Candidates:
        query = request.query

        def work(each: Scorer) -> Columns:
            return _checked(each.score(query, candidates), len(candidates))

        columns, report = self._attempts.run("scorer", scorer, work)
        request.note(report, len(candidates))
        return candidates.having(**(columns or {}))

    def _select(self, request: _Request, candidates: Candidates) -> Candidates:
        query, selector, rows = request.query, self.stages.selector, None
        if selector is not None:
            rows, report = self._attempts.run(
                "selector", selector, lambda each: _checked_rows(each.select(query, candidates), len(candidates))
            )
            request.note(report, len(candidates))
        if rows is None:
            rows = descending(candidates.score)
        return candidates.take(rows[: query.top])

    def _begin_effects(self, answer: Answer) -> None:
        effects = self.stages.side_effects

        def work(effect: SideEffect) -> None:
            effect.run(answer.query, answer.shown)

        def run() -> None:
            for _, _, report in self._attempts.run_all("side effect", effects, work):
                answer.effects.add(dataclasses.replace(report, count=len(answer.shown)))

        if not effects:
            return
        try:
            self._effects.start(run)
        except StuckError as error:
            for effect in effects:
                answer.effects.add(StageReport("side effect", effect.name, "failed", 0.0, note=describe(error)))


def _checked_part(part: Candidates) -> Candidates:
    if not isinstance(part, Candidates):
        raise TypeError(f"{type(part).__name__} is not Candidates")
    return part.having(**_checked({"score": part.score}, len(part)))


def _checked(columns: Columns, count: int) -> Columns:
    """The same; ValueError where they are not columns of these candidates."""
    for name, column in columns.items():
        if len(column) != count:
            raise ValueError(f"the column {name} has {len(column)} rows for {count} candidates")
    score = columns.get("score")
    if score is None:
        return columns
    if score.ndim != 1 or not np.isfinite(score).all():
        raise ValueError("scores must be one finite number for each candidate")
    return {**columns, "score": score.astype(np.float32, copy=False)}


def _checked_rows(rows: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    inside = (rows >= 0) & (rows < count)
    if not inside.all() or len(np.unique(rows)) != len(rows):
        raise ValueError(f"rows must be different numbers from 0 to {count - 1}")
    return rows
