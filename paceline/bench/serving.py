"""How long each stage of serving takes under concurrent callers, on one core; what an acceleration gains; one line of JSON.

    python -m paceline.bench.serving --run runs/ranker --retrieval runs/towers --callers 4 --requests 50 --rounds 5

Without a run: the shipped small ranker and towers, untrained, on generated data: time does not depend on what was learned. Callers ask one
request after the other, as fast as they are answered. Of every figure the median over the rounds: what else the machine does for a second
spoils a round, not the figure. Requests are timed twice: by the clock on the wall, and by the CPU time of this process, which is what all
callers together computed meanwhile, and what the wall would show on a core that nobody else uses.
"""

from __future__ import annotations

import argparse
import os
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

from paceline.bench.answering import answer, end
from paceline.errors import UsageError
from paceline.recipes.job import load_job
from paceline.recipes.tenrec.config import TenrecConfig
from paceline.recipes.tenrec.opening import Opened, open_data
from paceline.recipes.tenrec.ranker import Ranker
from paceline.recipes.tenrec.towers import Towers
from paceline.serving.acceleration import Precision
from paceline.serving.candidates import Candidates
from paceline.serving.diversity import Diversity
from paceline.serving.filters import Age, Blocked, Duplicates, MutedWords, OwnItems, Seen
from paceline.serving.process import prepare_process
from paceline.serving.query import Query
from paceline.serving.report import Answer
from paceline.serving.scorers import Ranked
from paceline.serving.tenrec.service import Service, Settings, build_service, can_serve, patient
from paceline.serving.words import Vocabulary
from paceline.trained import load_model

POINTS = (50, 90, 99)
MANY = 10_000
"""candidates that filters and diversity are timed on by themselves"""
_GENERATED_ITEMS = 20_000
_WARM_UP = 10


def measure(
    run: Path | None,
    retrieval: Path | None,
    callers: int,
    candidates: int,
    requests: int,
    rounds: int,
    accelerate: bool,
) -> dict[str, Any]:
    core = _take_one_core()
    prepare_process()
    torch.set_num_threads(1)
    # Nobody is late on a busy machine: what is measured is the time, not what is left out.
    service, model = _build(run, retrieval, patient(Settings(candidates=candidates)))
    with service:
        plan = _Plan(service, callers, requests, rounds)
        found: dict[str, Any] = {
            "core": core,
            "torch": torch.__version__,
            "model": model,
            "items": service.stock.table.num_items,
            "callers": callers,
            "candidates": candidates,
            "requests": requests,
            "rounds": rounds,
            "eager": plan.measure(),
            "many": _measure_many(rounds),
            "acceleration": [],
        }
        if accelerate and service.ranker is not None:
            found["acceleration"] = [_accelerate(plan, precision) for precision in ("fp32", "bf16")]
    return found


class _Plan:
    """Rounds of requests by concurrent callers."""

    def __init__(self, service: Service, callers: int, requests: int, rounds: int) -> None:
        self.service, self.callers, self.requests, self.rounds = service, callers, requests, rounds
        self._users = np.random.default_rng(0).permutation(service.stock.table.num_users)

    def measure(self) -> dict[str, Any]:
        """{"total": …, "own": …, "stages": […], "per_s": …, "cpu_ms": …, "lost": …}; times in milliseconds."""
        for number in range(_WARM_UP):
            self.ask(number)
        rounds = [self._run_round() for _ in range(self.rounds)]
        stages = [(stage["kind"], stage["name"]) for stage in rounds[0]["stages"]]
        table = [
            {"kind": kind, "name": name} | _medians([each["stages"][number] for each in rounds])
            for number, (kind, name) in enumerate(stages)
        ]
        return {
            "total": _medians([each["total"] for each in rounds]),
            "own": _medians([each["own"] for each in rounds]),
            "stages": table,
            "scored": statistics.median(each["scored"] for each in rounds),
            "per_s": statistics.median(each["per_s"] for each in rounds),
            "cpu_ms": statistics.median(each["cpu_ms"] for each in rounds),
            "lost": sum(each["lost"] for each in rounds),
        }

    def ask(self, number: int) -> Answer:
        user = int(self._users[number % len(self._users)])
        return self.service.pipeline.serve(Query(top=10, user=user))

    def _run_round(self) -> dict[str, Any]:
        answers: list[list[Answer]] = [[] for _ in range(self.callers)]
        spans: list[float] = []

        def call(caller: int) -> None:
            for number in range(self.requests):
                began = time.process_time()
                answers[caller].append(self.ask(caller * self.requests + number))
                spans.append((time.process_time() - began) * 1e3)

        threads = [threading.Thread(target=call, args=(caller,)) for caller in range(self.callers)]
        began, busy = time.perf_counter(), time.process_time()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        took, busy = time.perf_counter() - began, time.process_time() - busy
        given = [each for every in answers for each in every]
        names = [(report.kind, report.name) for report in given[0].reports]
        times = np.array([[report.ms for report in each.reports] for each in given])
        return {
            "total": _points([each.ms for each in given]),
            "own": _points(spans),
            "stages": [
                {"kind": kind, "name": name} | _points(column)
                for (kind, name), column in zip(names, times.T, strict=True)
            ],
            "scored": statistics.median(
                report.count or 0 for each in given for report in each.reports if report.kind == "selector"
            ),
            "per_s": len(given) / took,
            "cpu_ms": busy / len(given) * 1e3,
            "lost": sum(len(each.lost()) for each in given),
        }


def _build(run: Path | None, retrieval: Path | None, settings: Settings) -> tuple[Service, dict[str, Any]]:
    if run is not None:
        trained = load_model(run)
        if not can_serve(trained):
            what = f"the recipe {trained.job.recipe.name} has no pipeline to measure"
            raise UsageError(what, trained.where, "name a run of tenrec, or none")
        service = build_service(trained, str(retrieval) if retrieval is not None else None, settings)
        config = trained.job.config
        assert isinstance(config, TenrecConfig)
        return service, {"where": trained.where, **_describe(config)}
    config = load_job("tenrec", [f"data.items={_GENERATED_ITEMS}"], environ={}).config
    assert isinstance(config, TenrecConfig)
    opened = open_data(config.data)
    torch.manual_seed(0)
    service = Service(opened, Ranker(opened.sizes, config.model), _untrained_towers(opened), settings)
    return service, {"where": "untrained", **_describe(config)}


def _untrained_towers(opened: Opened) -> Towers:
    config = load_job("tenrec-retrieval", environ={}).config
    assert isinstance(config, TenrecConfig)
    return Towers(opened.sizes, config.model)


def _describe(config: TenrecConfig) -> dict[str, Any]:
    model = config.model
    return {"kind": model.kind, "mixer": model.mixer, "layers": model.layers, "width": model.width}


def _accelerate(plan: _Plan, precision: Precision) -> dict[str, Any]:
    """The proof, and the latencies with the program in place."""
    service = plan.service
    assert service.ranker is not None
    random = np.random.default_rng(1)
    size, num_items = service.settings.candidates, service.stock.table.num_items
    asked = [plan.ask(number).query for number in range(4)]
    requests = [Ranked(query, random.integers(1, num_items + 1, size)) for query in asked]
    proof = service.ranker.accelerate(requests, size, precision)
    found = asdict(proof) | {"speed_up": proof.speed_up}
    return found | ({} if proof.why else plan.measure())


def _measure_many(rounds: int) -> dict[str, float]:
    """Medians over rounds of all filters, and of both diversities, on MANY candidates that have every column."""
    random = np.random.default_rng(0)
    num_items, num_authors = 3_300_000, 200_000
    candidates = Candidates.build(
        random.integers(1, num_items, MANY),
        random.random(MANY),
        category=random.integers(0, 300, MANY).astype(np.uint16),
        author=random.integers(0, num_authors, MANY),
        age_s=random.random(MANY),
        words=random.integers(0, 50_000, (MANY, 8)).astype(np.int32),
    )
    query = Query(
        top=10,
        seen=random.integers(1, num_items, 1000),
        blocked_items=random.integers(1, num_items, 100),
        blocked_authors=random.integers(0, num_authors, 100),
        blocked_categories=np.array([3]),
        muted_words=("first", "second"),
        own_items=random.integers(1, num_items, 10),
        own_author=5,
    )
    vocabulary = Vocabulary({"first": 1, "second": 2})
    filters = (Duplicates(), Age(0.99), Seen(), Blocked(), MutedWords(vocabulary), OwnItems())

    def run_filters() -> Candidates:
        keep = np.ones(MANY, np.bool_)
        for each in filters:
            keep &= each.keep(query, candidates)
        return candidates.take(keep)

    left = run_filters()

    def diversify() -> None:
        scored = left
        for column in ("author", "category"):
            scored = scored.having(**Diversity(column).score(query, scored))

    filters_ms, diversity_ms = (_time(work, rounds) for work in (run_filters, diversify))
    return {"candidates": MANY, "filters_ms": filters_ms, "diversity_ms": diversity_ms, "ms": filters_ms + diversity_ms}


def _time(work: Callable[[], object], rounds: int) -> float:
    """The median over rounds of the median of a round."""
    medians = []
    for _ in range(rounds):
        spans = []
        for _ in range(30):
            began = time.perf_counter()
            work()
            spans.append((time.perf_counter() - began) * 1e3)
        medians.append(statistics.median(spans))
    return statistics.median(medians)


def _points(spans: Sequence[float] | np.ndarray[Any, Any]) -> dict[str, float]:
    found = np.percentile(spans, POINTS)
    return {f"p{point}_ms": float(value) for point, value in zip(POINTS, found, strict=True)}


def _medians(rounds: Sequence[dict[str, Any]]) -> dict[str, float]:
    return {f"p{point}_ms": statistics.median(each[f"p{point}_ms"] for each in rounds) for point in POINTS}


def _take_one_core() -> int | None:
    """The last of those that this process may use; None where the system cannot be told."""
    if not hasattr(os, "sched_setaffinity"):
        return None
    core = max(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {core})
    return core


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m paceline.bench.serving", allow_abbrev=False)
    parser.add_argument("--run", type=Path)
    parser.add_argument("--retrieval", type=Path)
    parser.add_argument("--callers", type=int, default=4)
    parser.add_argument("--candidates", type=int, default=1000)
    parser.add_argument("--requests", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--no-accelerate", action="store_true")
    given = parser.parse_args(argv)
    return answer(
        lambda: measure(
            given.run,
            given.retrieval,
            given.callers,
            given.candidates,
            given.requests,
            given.rounds,
            not given.no_accelerate,
        )
    )


if __name__ == "__main__":
    end(main)
