"""One question, answered in the data's own names: for `paceline recommend`.

recommend(trained, Wishes(user="17", top=10))      -> Recommendation, and the record of every stage

What is asked for and cannot be had is said: an unknown user or item is an error; a user without history is served by attributes and
popularity, with a note; so is whoever gets fewer items than asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from paceline.errors import PacelineError
from paceline.recipes.tenrec.table import NONE
from paceline.serving.query import Query
from paceline.serving.report import Answer
from paceline.serving.tenrec.service import Service, Settings, build_service, patient
from paceline.serving.tenrec.stock import Stock
from paceline.trained import Trained
from paceline.workload import Recommendation, Recommended

_EFFECTS_S = 10.0


@dataclass(frozen=True)
class Wishes:
    """What somebody asks for, in the data's names."""

    top: int
    user: str | None = None
    history: Sequence[str] | None = None
    keep_seen: bool = False
    retrieval: str | None = None
    """a run of towers; None: the one that the ranker was evaluated with, if there is one"""
    candidates: int = Settings.candidates
    block: Sequence[str] = ()
    """items"""
    block_category: Sequence[int] = ()


def recommend(trained: Trained, wishes: Wishes) -> tuple[Recommendation, dict[str, Any]]:
    """What is shown, and what each stage did."""
    settings = patient(Settings(candidates=max(wishes.candidates, wishes.top), keep_seen=wishes.keep_seen))
    with build_service(trained, wishes.retrieval, settings) as service:
        query = _build_query(service.stock, wishes)
        answer = service.pipeline.serve(query)
        effects = answer.effects.wait(_EFFECTS_S)
    if not len(answer.shown) and answer.lost():
        first = answer.lost()[0]
        what = f"nothing can be shown: {first.kind} {first.name} {first.status}: {first.note}"
        raise PacelineError(what, trained.where, "see --explain for every stage")
    note = "; ".join(_notes(service, answer, wishes))
    return _name(service, answer, wishes, note), answer.to_record(effects)


def _build_query(stock: Stock, wishes: Wishes) -> Query:
    blocked = np.array([stock.find_item(name, "--block") for name in wishes.block], np.int64)
    categories = np.array([stock.find_category(number) for number in wishes.block_category], np.int64)
    query = Query(top=wishes.top, blocked_items=blocked, blocked_categories=categories)
    if wishes.user is not None:
        return query.having(user=stock.find_user(wishes.user))
    history = stock.type_in(list(wishes.history or ()))
    return query.having(history=history, seen=history[history != NONE])


def _notes(service: Service, answer: Answer, wishes: Wishes) -> list[str]:
    notes = [f"{report.kind} {report.name} {report.status}: {report.note}" for report in answer.lost()]
    if not service.has_towers:
        notes.append("no towers: candidates are the most popular items (--retrieval names a run of towers)")
    if wishes.user is not None and not answer.query.history.any():
        notes.append(f"user {wishes.user} has no history: what is shown follows from attributes and popularity")
    if len(answer.shown) < wishes.top:
        notes.append(f"only {len(answer.shown)} items were left of {wishes.top} asked for")
    return notes


def _name(service: Service, answer: Answer, wishes: Wishes, note: str) -> Recommendation:
    stock = service.stock

    def name_of(item: int, score: float | None) -> Recommended:
        category = int(stock.table.items.category[item])
        return Recommended(stock.name_of(item), f"category {category - 1}" if category else None, score)

    past = [item for item in answer.query.history.tolist() if item != NONE][::-1]
    shown = zip(answer.shown.item.tolist(), answer.shown.score.tolist(), strict=True)
    return Recommendation(
        wishes.user, [name_of(item, None) for item in past], [name_of(item, score) for item, score in shown], note
    )
