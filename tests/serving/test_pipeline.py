"""Stages fail alone and are late alone; what is shown is what the plain implementation shows; four callers do not disturb each other."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from paceline.serving.batcher import Batcher
from paceline.serving.candidates import Candidates
from paceline.serving.diversity import Diversity
from paceline.serving.filters import Age, Blocked, Duplicates, OwnItems, Seen
from paceline.serving.pipeline import Pipeline, Stages
from paceline.serving.query import Query
from paceline.serving.report import Answer, StageReport
from paceline.serving.scorers import ModelScorer, Ranked, WeightedActions
from paceline.serving.selector import BestScores
from tests.serving import plain

pytestmark = pytest.mark.timeout(30)
CATEGORIES = np.arange(1000) % 7


@dataclass
class Any_:
    """A stage of any kind, of any function."""

    name: str
    do: Callable[..., Any]
    timeout_s: float | None = None
    is_strict: bool = False

    def fetch(self, query: Query) -> Candidates:
        return self.do(query)

    def hydrate(self, *given: Any) -> Mapping[str, Any]:
        return self.do(*given)

    keep = score = select = run = hydrate


def items(*numbers: int, **given: Any) -> Any_:
    return Any_(given.pop("name", "items"), lambda query: Candidates.build(numbers), **given)


def fail(*_: Any) -> Any:
    raise ConnectionError("nobody there\nsecond line")


@pytest.fixture
def hang() -> Any:
    """A stage's work that comes back when the test is over."""
    gate = threading.Event()
    yield lambda *_: gate.wait(20)
    gate.set()


def serve(query: Query | None = None, **stages: Any) -> Answer:
    pipeline = Pipeline(Stages(**{"sources": [items(3, 1, 2)], **stages}))
    answer = pipeline.serve(query or Query(top=3))
    pipeline.close()
    return answer


def report(answer: Answer, name: str) -> StageReport:
    (found,) = [each for each in answer.reports if each.name == name]
    return found


def test_stages_in_their_order() -> None:
    effects = []
    answer = serve(
        Query(top=2, user=4),
        query_hydrators=[Any_("history", lambda query: {"history": np.array([query.user])})],
        sources=[items(3, 1, name="a", timeout_s=5.0), items(1, 2, 5, name="b")],
        candidate_hydrators=[Any_("category", lambda query, found: {"category": CATEGORIES[found.item]}, 5.0)],
        filters=[Duplicates(), Any_("not history", lambda query, found: found.item != query.history[0] + 1, 5.0)],
        scorers=[Any_("worth", lambda query, found: {"score": found.item * 1.0})],
        selector=BestScores(),
        side_effects=[Any_("log", lambda query, shown: effects.append(shown.item.tolist()), 5.0)],
    )
    assert answer.shown.item.tolist() == [3, 2]
    assert answer.shown.columns["source"].tolist() == [0, 1]
    assert [(each.kind, each.name, each.status, each.count) for each in answer.reports] == [
        ("query hydrator", "history", "ok", None),
        ("source", "a", "ok", 2),
        ("source", "b", "ok", 3),
        ("candidate hydrator", "category", "ok", 5),
        ("filter", "duplicates", "ok", 1),
        ("filter", "not history", "ok", 1),
        ("scorer", "worth", "ok", 3),
        ("selector", "best scores", "ok", 3),
    ]
    (effect,) = answer.effects.wait(20)
    assert (effect.name, effect.status, effects) == ("log", "ok", [[3, 2]])
    assert answer.to_record([effect])["stages"][-1]["kind"] == "side effect"
    assert all(each.ms >= 0 for each in answer.reports)
    assert answer.ms >= max(each.ms for each in answer.reports)


def test_the_sources_are_merged_by_rank() -> None:
    assert serve(sources=[items(10, 11, name="a"), items(20, 21, name="b")]).shown.item.tolist() == [10, 20, 11]


BROKEN = {
    "query_hydrators": [3, 1, 2],
    "sources": [3, 1, 2],
    "candidate_hydrators": [3, 1, 2],
    "filters": [3, 1, 2],
    "scorers": [3, 1, 2],
    "side_effects": [3, 1, 2],
}


@pytest.mark.parametrize("limit", [None, 5.0])
@pytest.mark.parametrize("kind", BROKEN)
def test_one_that_fails_costs_its_own_part(kind: str, limit: float | None) -> None:
    others = {"sources": [items(3, 1, 2)]}.get(kind, [])
    answer = serve(**{kind: [Any_("broken", fail, limit), *others]})
    assert answer.shown.item.tolist() == BROKEN[kind]
    found = answer.effects.wait(20)[0] if kind == "side_effects" else report(answer, "broken")
    assert (found.status, found.note) == ("failed", "ConnectionError: nobody there")
    assert [each.name for each in answer.lost()] == ([] if kind == "side_effects" else ["broken"])


@pytest.mark.parametrize("kind", BROKEN)
def test_one_that_is_late_costs_its_own_part(kind: str, hang: Any) -> None:
    others = {"sources": [items(3, 1, 2)]}.get(kind, [])
    answer = serve(**{kind: [Any_("slow", hang, 0.02), *others]})
    assert answer.shown.item.tolist() == BROKEN[kind]
    found = answer.effects.wait(20)[0] if kind == "side_effects" else report(answer, "slow")
    assert (found.status, found.note) == ("late", "nothing within 20 ms")
    assert found.ms >= 20


def test_a_selector_that_fails_leaves_the_order_of_scores() -> None:
    for wrong in (fail, lambda query, found: np.array([0, 0]), lambda query, found: np.array([99])):
        answer = serve(selector=Any_("broken", wrong))
        assert answer.shown.item.tolist() == [3, 1, 2]
        assert report(answer, "broken").status == "failed"


def test_sources_run_at_the_same_time() -> None:
    met = threading.Barrier(2)

    def fetch(query: Query) -> Candidates:
        met.wait(20)  # alone, nobody would come
        return Candidates.build([query.top])

    answer = serve(sources=[Any_("a", fetch, 10.0), Any_("b", fetch, 10.0)])
    assert [each.status for each in answer.reports] == ["ok", "ok"]


def test_a_source_that_hangs_is_soon_not_waited_for(hang: Any) -> None:
    # Long enough for a thread to take it up on a busy machine: what nobody took up does not hang.
    pipeline = Pipeline(Stages([Any_("slow", hang, 0.5), items(1)]), width=2)
    notes = [pipeline.serve(Query(top=1)).reports[0] for _ in range(3)]
    assert [each.status for each in notes] == ["late", "late", "failed"]
    assert "hang in earlier calls" in notes[2].note
    pipeline.close()


@pytest.mark.parametrize("status", ["failed", "late"])
def test_where_a_strict_filter_is_lost_nothing_is_shown(status: str, hang: Any) -> None:
    work, limit = (fail, 20.0) if status == "failed" else (hang, 0.02)
    broken = Any_("guard", work, limit, is_strict=True)
    answer = serve(filters=[broken, Duplicates()])
    assert answer.shown.item.tolist() == []
    assert (report(answer, "guard").status, report(answer, "guard").count) == (status, 3)


@pytest.mark.parametrize(
    ("kind", "wrong", "says"),
    [
        ("filters", lambda query, found: np.ones(2, bool), "is no mask of 3"),
        ("filters", lambda query, found: np.ones(3), "float64"),
        ("scorers", lambda query, found: {"score": np.array([1, np.nan, 2])}, "finite"),
        ("scorers", lambda query, found: {"score": np.ones(4)}, "4 rows for 3"),
        ("candidate_hydrators", lambda query, found: {"category": np.ones(1)}, "1 rows for 3"),
        ("query_hydrators", lambda query: {"histroy": 1}, "histroy"),
        ("sources", lambda query: Candidates.build([-1]), "from 0"),
        ("sources", lambda query: [7, 8], "list is not Candidates"),
        ("sources", lambda query: None, "NoneType is not Candidates"),
        ("sources", lambda query: Candidates.build([7], [np.nan]), "finite"),
        ("sources", lambda query: Candidates.build([7], [[1.0, 2.0]]), "one finite number"),
    ],
)
def test_what_makes_no_sense_is_a_failure(kind: str, wrong: Callable[..., Any], says: str) -> None:
    others = [items(3, 1, 2)] if kind == "sources" else []
    answer = serve(**{kind: [Any_("wrong", wrong), *others]})
    assert answer.shown.item.tolist() == [3, 1, 2]
    assert says in report(answer, "wrong").note


def test_without_any_source_nothing_is_shown() -> None:
    answer = serve(sources=[Any_("broken", fail)], filters=[Duplicates(), Seen()], scorers=[Diversity()])
    assert len(answer.shown) == 0
    assert report(answer, "category diversity").status == "skipped"


@dataclass
class StandIn:
    """A ranker whose probabilities are a function of user and item alone."""

    calls: list[int] = field(default_factory=list)

    def rank(self, requests: list[Ranked]) -> list[np.ndarray]:
        self.calls.append(len(requests))
        if any(request.query.user == 13 for request in requests):
            raise ArithmeticError("not this one")
        return [worth(request.query.user or 0, request.items) for request in requests]


def worth(user: int, numbers: np.ndarray) -> np.ndarray:
    click = ((numbers * 7919 + user * 104_729) % 1000) / 1000
    return np.stack((click, 1 - click), axis=1).astype(np.float32)


def whole(ranker: StandIn) -> tuple[Pipeline, Batcher[Ranked, np.ndarray]]:
    batcher = Batcher(ranker.rank, max_batch=4, max_wait_ms=20)

    def fetch(query: Query) -> Candidates:
        return Candidates.build(np.random.default_rng(query.user or 0).integers(1, 1000, 300))

    stages = Stages(
        query_hydrators=[Any_("seen", lambda query: {"seen": np.arange(query.user or 0, 1000, 3)}, 10.0)],
        sources=[Any_("random", fetch, 10.0), items(*range(1, 50), name="popular", timeout_s=10.0)],
        candidate_hydrators=[Any_("category", lambda query, found: {"category": CATEGORIES[found.item]})],
        filters=[Duplicates(), Age(1), Seen(), Blocked(), OwnItems()],
        scorers=[ModelScorer(batcher, wait_s=10), WeightedActions({"click": 1.0}, ("click", "like")), Diversity()],
        selector=BestScores(),
    )
    return Pipeline(stages), batcher


def expected(user: int, top: int) -> list[int]:
    """The whole pipeline, plainly."""
    found = [*np.random.default_rng(user).integers(1, 1000, 300).tolist(), *range(1, 50)]
    left = [item for item in dict.fromkeys(found) if item < user or (item - user) % 3]
    click = worth(user, np.array(left))[:, 0]
    candidates = Candidates.build(left, click, category=CATEGORIES[left])
    scores = np.array(plain.diversity(candidates, "category", 0.9, 0.5), np.float32)
    return [left[row] for row in plain.best(candidates.having(score=scores), top)]


def test_four_callers_get_what_each_would_get_alone() -> None:
    ranker = StandIn()
    pipeline, batcher = whole(ranker)
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda user: pipeline.serve(Query(top=20, user=user)), range(40)))
    for user, answer in enumerate(answers):
        if user != 13:
            assert [each.name for each in answer.lost()] == []
            assert answer.shown.item.tolist() == expected(user, 20)
    assert max(ranker.calls) > 1, "four callers, and never two in a batch"
    guilty = answers[13]
    assert report(guilty, "model").note == "ArithmeticError: not this one"
    assert report(guilty, "weighted actions").status == "skipped"
    assert len(guilty.shown) == 20, "the order of the sources"
    assert guilty.shown.columns["source"].tolist().count(1) > 0
    pipeline.close()
    batcher.close()


def test_a_model_that_is_late_leaves_the_order_of_the_sources(hang: Any) -> None:
    batcher: Batcher[Ranked, np.ndarray] = Batcher(hang)
    scorers = [ModelScorer(batcher, wait_s=0.02), WeightedActions({"a": 1.0}, ("a",))]
    answer = serve(scorers=scorers)
    assert answer.shown.item.tolist() == [3, 1, 2]
    assert [(each.status, each.note) for each in answer.reports[1:]] == [
        ("late", "no answer within 20 ms"),
        ("skipped", "there are no probabilities: scores stay those of the sources"),
    ]
