"""The whole pipeline of two stages: what it shows is what a plain loop over the catalogue would, and its parts may be missing."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from paceline.errors import PacelineError, UsageError
from paceline.recipes.job import load_job
from paceline.serving.query import Query
from paceline.serving.scorers import Ranked
from paceline.serving.tenrec import service as building
from paceline.serving.tenrec.answering import Wishes, recommend
from paceline.serving.tenrec.ranking import OUTPUTS, TenrecRanker
from paceline.serving.tenrec.service import Service, Settings, build_service, patient
from paceline.serving.tenrec.stock import Stock
from tests.serving import plain
from tests.serving.tenrec.small import opened, ranker, towers

pytestmark = pytest.mark.timeout(60)
SETTINGS = patient(Settings(candidates=50, weights={"click": 1.0, "fit": 0.5}))


def trained(model: Any, where: str = "here", retrieval: str | None = None) -> Any:
    """As `load_model` gives it, of what is looked at here."""
    kind = "towers" if type(model).__name__ == "Towers" else "ranker"
    words = [f"model.kind={kind}", *([f"evaluate.retrieval={retrieval}"] if retrieval else [])]
    job = load_job("tenrec", words, environ={})
    return SimpleNamespace(model=model, workload=SimpleNamespace(opened=opened()), where=where, job=job)


def expected(user: int, top: int) -> list[int]:
    """Plainly: the 40 best of the towers' products, ten popular ones, without what was seen; chances, worth, diversity, order."""
    stock_service = Service(opened(), ranker(), towers(), SETTINGS)
    with stock_service as service:
        stock = service.stock
        query = Query(top=top, user=user)
        query = query.having(**service.pipeline.stages.query_hydrators[0].hydrate(query))
        table, model = stock.table, towers()
        categories = torch.from_numpy(table.items.category.astype(np.int64))
        history = torch.from_numpy(query.history)[None]
        batch = {
            "history": history,
            "history_categories": categories[history],
            "genders": torch.tensor([query.attributes["gender"]]),
            "ages": torch.tensor([query.attributes["age"]]),
        }
        with torch.no_grad():
            everything = torch.arange(1, table.num_items + 1)
            products = (model.embed_items(everything, categories[1:]) @ model.embed_users(batch)[0]).tolist()
        found = sorted(range(1, 1 + table.num_items), key=lambda item: (-products[item - 1], item))[:40]
        found += stock.popular[:10].tolist()
        left = [item for item in dict.fromkeys(found) if item not in query.seen.tolist()]
        chances = TenrecRanker(ranker(), table.items.category).rank([Ranked(query, np.array(left))])[0]
        score = chances[:, OUTPUTS.index("click")] + 0.5 * chances[:, OUTPUTS.index("fit")]
        candidates = plain.Candidates.build(left, score, category=table.items.category[left])
        scores = np.array(plain.diversity(candidates, "category", 0.9, 0.5), np.float32)
        return [left[row] for row in plain.best(candidates.having(score=scores), top)]


def test_four_callers_see_what_a_plain_loop_shows() -> None:
    users = range(6)
    with Service(opened(), ranker(), towers(), SETTINGS) as service, ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda user: service.pipeline.serve(Query(top=5, user=user)), users))
        assert [answer.effects.wait(20)[0].status for answer in answers] == ["ok"] * len(users)
        assert service.shown.counts().sum() == sum(len(answer.shown) for answer in answers)
    for user, answer in zip(users, answers, strict=True):
        assert answer.lost() == []
        assert answer.shown.item.tolist() == expected(user, 5)


def test_towers_that_fail_leave_what_is_popular() -> None:
    broken = towers()
    with Service(opened(), ranker(), broken, SETTINGS) as service:
        broken.embed_users = lambda batch: 1 / 0  # type: ignore[method-assign]
        answer = service.pipeline.serve(Query(top=5, user=3))
        assert [report.name for report in answer.lost()] == ["towers"]
        assert set(answer.shown.item.tolist()) <= set(service.stock.popular[:10].tolist())


def test_a_ranker_that_fails_leaves_the_order_of_the_sources() -> None:
    broken = ranker()
    with Service(opened(), broken, towers(), SETTINGS) as service:
        broken.heads = torch.nn.Linear(3, 3)
        answer = service.pipeline.serve(Query(top=5, user=3))
        assert [report.name for report in answer.lost()] == ["model"]
        assert len(answer.shown) == 5


def test_towers_alone_stand_before_what_is_popular() -> None:
    with build_service(trained(towers()), None, SETTINGS) as service:
        sources = service.pipeline.serve(Query(top=120, user=3)).shown.columns["source"].tolist()
    assert sources == sorted(sources)
    assert set(sources) == {0, 1}


def test_seen_may_be_kept() -> None:
    kept = patient(Settings(candidates=50, keep_seen=True))
    with Service(opened(), ranker(), towers(), kept) as service:
        answer = service.pipeline.serve(Query(top=50, user=3))
        assert set(answer.shown.item.tolist()) & set(service.stock.seen_by(3).tolist())


def test_towers_need_no_other_towers() -> None:
    with pytest.raises(UsageError, match="finds its own candidates"):
        build_service(trained(towers()), "there")


class TestAnswers:
    """In the data's own names."""

    @pytest.fixture(autouse=True)
    def _loads_towers(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(building, "load_towers", lambda config, sizes: towers())

    def test_a_user(self) -> None:
        found, stages = recommend(trained(ranker()), Wishes(top=4, user="17", retrieval="towers", candidates=50))
        assert len(found.items) == 4
        assert found.user == "17"
        assert found.note == ""
        table = opened().table
        had = Stock(table, opened().split.item_counts()[1]).history_of(16)
        assert [int(each.item) for each in found.history] == had[had > 0][::-1].tolist(), "oldest first"
        first = int(found.items[0].item)
        assert found.items[0].title == f"category {table.items.category[first] - 1}"
        assert [stage["kind"] for stage in stages["stages"]][-1] == "side effect"
        assert stages["ms"] > 0

    def test_blocked_items_and_categories_are_not_shown(self) -> None:
        wishes = Wishes(top=100, history=["5", "6"], retrieval="towers", candidates=100)
        free, _ = recommend(trained(ranker()), wishes)
        item, category = free.items[0].item, int((free.items[1].title or "").split()[1])
        wishes = Wishes(
            top=100, history=["5", "6"], retrieval="towers", candidates=100, block=[item], block_category=[category]
        )
        less, _ = recommend(trained(ranker()), wishes)
        shown = {each.item for each in less.items}
        assert shown < {each.item for each in free.items}
        assert item not in shown
        assert f"category {category}" not in {each.title for each in less.items}
        assert not {"5", "6"} & shown

    def test_without_towers_it_is_said(self) -> None:
        found, _ = recommend(trained(ranker()), Wishes(top=2, user="2"))
        assert "no towers: candidates are the most popular" in found.note
        found, _ = recommend(trained(ranker(), retrieval="towers"), Wishes(top=2, user="2"))
        assert found.note == ""

    def test_a_user_without_history_has_a_note(self) -> None:
        found, _ = recommend(trained(towers()), Wishes(top=3, user="1"))
        assert len(found.items) == 3
        assert found.history == []
        assert "has no history" in found.note

    def test_more_than_there_are(self) -> None:
        found, _ = recommend(trained(towers()), Wishes(top=5000, user="2"))
        assert 0 < len(found.items) < 120
        assert f"only {len(found.items)} items were left of 5000" in found.note

    @pytest.mark.parametrize(
        ("wishes", "says"),
        [
            (Wishes(top=3, user="1000"), "there is no user '1000'"),
            (Wishes(top=3, history=["5", "x"]), "there is no item 'x'"),
            (Wishes(top=3, user="1", block=["0"]), "there is no item '0'"),
            (Wishes(top=3, user="1", block_category=[3, 9 * 10**18]), "there is no category 9000000000000000000"),
            (Wishes(top=-3, user="1"), "-3 items"),
        ],
    )
    def test_mistakes(self, wishes: Wishes, says: str) -> None:
        with pytest.raises(UsageError, match=says):
            recommend(trained(towers()), wishes)

    def test_nothing_at_all_is_an_error_that_names_the_stage(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("paceline.serving.filters.Blocked.keep", lambda *_: 1 / 0)
        with pytest.raises(PacelineError, match="filter blocked failed: ZeroDivisionError"):
            recommend(trained(towers()), Wishes(top=3, user="1"))
