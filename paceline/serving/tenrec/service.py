"""Two-stage recommendation, ready to be asked: towers and popularity find candidates, the ranker orders what the filters leave.

    with build_service(load_model("runs/ranker"), "runs/towers") as service:
        answer = service.pipeline.serve(Query(top=10, user=service.stock.find_user("17")))

A run of towers alone serves what they find, in their order; a run of the ranker without towers looks at what is popular.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, TypeVar

from paceline.errors import UsageError
from paceline.recipes.tenrec.columns import ACTIONS
from paceline.recipes.tenrec.config import TenrecConfig
from paceline.recipes.tenrec.opening import Opened
from paceline.recipes.tenrec.ranker import Ranker
from paceline.recipes.tenrec.retriever import load_towers
from paceline.recipes.tenrec.towers import Towers
from paceline.serving.batcher import Batcher
from paceline.serving.diversity import Diversity
from paceline.serving.effects import ShownCounts
from paceline.serving.filters import Age, Blocked, Duplicates, MutedWords, OwnItems, Seen
from paceline.serving.pipeline import Pipeline, Stages
from paceline.serving.scorers import ModelScorer, WeightedActions
from paceline.serving.selector import BestScores
from paceline.serving.stages import Filter, Scorer, Source
from paceline.serving.tenrec.ranking import OUTPUTS, TenrecRanker
from paceline.serving.tenrec.sources import PopularSource, TowerIndex, TowersSource
from paceline.serving.tenrec.stock import ItemColumns, Profile, Stock
from paceline.serving.words import Vocabulary
from paceline.trained import Trained

T = TypeVar("T")
R = TypeVar("R")

_FILLER = 1e-6
"""Without a ranker to judge them, popular items stand behind whatever the towers found."""


@dataclass(frozen=True)
class Settings:
    """How a service is built; the same for all requests."""

    candidates: int = 1000
    """that the sources find together: a fifth of them by popularity, the rest by the towers, where there are towers"""
    weights: Mapping[str, float] = field(default_factory=lambda: dict.fromkeys(ACTIONS, 1.0))
    """what each action is worth: a click, and as much again for what may follow it"""
    decay: float = 0.9
    floor: float = 0.5
    """of diversity: at these, lists of the shipped generated data have 2.4 categories in place of 1.9, for 1.5 % of their NDCG (2026-11)"""
    most_age_s: float = float("inf")
    keep_seen: bool = False
    max_batch: int = 4
    max_wait_ms: float = 0.0
    """nobody waits for company: a batch is whatever came while the model was busy; of sizes 1 to 8, 4 had the lowest p99 on one core"""
    profile_s: float | None = 0.1
    """limits: of looking a user up, of the towers, of the ranker"""
    source_s: float = 0.2
    model_s: float = 0.5


def patient(settings: Settings) -> Settings:
    """The same for somebody who would rather wait than see less: a first request in a new process."""
    return dataclasses.replace(settings, profile_s=60.0, source_s=60.0, model_s=60.0)


class Service:
    """A pipeline, and everything that it is made of."""

    def __init__(
        self,
        opened: Opened,
        ranker: Ranker | None,
        towers: Towers | None,
        settings: Settings | None = None,
    ) -> None:
        self.settings = settings or Settings()
        self.stock = Stock(opened.table, opened.split.item_counts()[1])
        self.has_towers = towers is not None
        self.ranker = TenrecRanker(ranker, self.stock.categories) if ranker else None
        self.shown = ShownCounts(opened.table.num_items + 1)
        self._batchers: list[Batcher[Any, Any]] = []
        self.pipeline = Pipeline(
            Stages(
                query_hydrators=[Profile(self.stock, self.settings.profile_s)],
                sources=self._build_sources(towers),
                candidate_hydrators=[ItemColumns(self.stock)],
                filters=self._build_filters(),
                scorers=self._build_scorers(),
                selector=BestScores(),
                side_effects=[self.shown],
            )
        )

    def __enter__(self) -> Service:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.pipeline.close()
        for batcher in self._batchers:
            batcher.close()

    def _build_sources(self, towers: Towers | None) -> list[Source]:
        settings = self.settings
        if towers is None:
            return [PopularSource(self.stock.popular, settings.candidates)]
        num_popular = settings.candidates // 5
        index = TowerIndex(towers, self.stock.table, settings.candidates - num_popular)
        found = self._batch(index.find)
        popular = PopularSource(self.stock.popular, num_popular, share=1.0 if self.ranker else _FILLER)
        return [TowersSource(found, settings.source_s), popular]

    def _build_filters(self) -> list[Filter]:
        # The data has no authors, titles or times: these filters wait for data that has them, and keep everything until then.
        seen = [] if self.settings.keep_seen else [Seen()]
        return [Duplicates(), Age(self.settings.most_age_s), *seen, Blocked(), MutedWords(Vocabulary()), OwnItems()]

    def _build_scorers(self) -> list[Scorer]:
        settings = self.settings
        diversity = [Diversity(column, settings.decay, settings.floor) for column in ("author", "category")]
        if self.ranker is None:
            return [*diversity]
        ranked = self._batch(self.ranker.rank)
        return [ModelScorer(ranked, wait_s=settings.model_s), WeightedActions(settings.weights, OUTPUTS), *diversity]

    def _batch(self, answer: Callable[[Sequence[T]], Sequence[R]]) -> Batcher[T, R]:
        batcher = Batcher(answer, max_batch=self.settings.max_batch, max_wait_ms=self.settings.max_wait_ms)
        self._batchers.append(batcher)
        return batcher


def can_serve(trained: Trained) -> bool:
    return isinstance(trained.model, Ranker | Towers)


def build_service(trained: Trained, retrieval: str | None = None, settings: Settings | None = None) -> Service:
    """Of a run of the ranker, or of towers alone. A ranker's candidates are found by the towers of `retrieval`, or of those that it was
    evaluated with; where there are neither, by popularity. UsageError for what is no run of towers, or one of other data."""
    opened = getattr(trained.workload, "opened", None)
    config = trained.job.config
    assert isinstance(opened, Opened)
    assert isinstance(config, TenrecConfig)
    if isinstance(trained.model, Towers):
        if retrieval is not None:
            what = "a run of towers finds its own candidates"
            raise UsageError(what, trained.where, "give a run of the ranker, or leave --retrieval out")
        return Service(opened, None, trained.model, settings)
    assert isinstance(trained.model, Ranker)
    evaluate = config.evaluate.model_copy(update={"retrieval": retrieval} if retrieval else {})
    has_towers = evaluate.retrieval is not None
    towers = load_towers(config.model_copy(update={"evaluate": evaluate}), opened.sizes) if has_towers else None
    return Service(opened, trained.model, towers, settings)
