"""`paceline diagnose`: what is wrong with a run, the most likely cause first; of one that lives, has ended, or came by mail.

It only reads. Of a run that is running on this host it looks at the ranks themselves for a moment, and with --stacks at their calls.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from paceline.cli.arguments import Debug, Json, RunDirectory
from paceline.cli.asking import waiting
from paceline.errors import UsageError
from paceline.files import finite, is_locked
from paceline.telemetry.layout import RunLayout

if TYPE_CHECKING:
    from paceline.diagnose.finding import Finding
    from paceline.diagnose.sight import Sight
    from paceline.diagnose.sources import Sources
    from paceline.diagnose.stacks import Cluster
    from paceline.supervise.stacks import Stacks
    from paceline.telemetry.reader import Run

_LOOKS = 4
_BETWEEN_S = 0.5
_FRAMES = 6


def command(
    run: RunDirectory,
    stacks: Annotated[bool, typer.Option("--stacks", help="Also take the stacks of all ranks, now.")] = False,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Say what is wrong with a run: the most likely cause first, who says so, and what to do next.

    Example: paceline diagnose runs/sasrec-1a2b3c4d --stacks
    """
    from paceline.diagnose.examine import examine_run
    from paceline.diagnose.sources import list_sources
    from paceline.diagnose.stacks import cluster_stacks, weigh_stacks
    from paceline.launch.weights import readable
    from paceline.telemetry.reader import read_run

    with readable(run):
        found = read_run(run)
        owned = is_locked(RunLayout(run).owner_lock)
        with waiting("looking at the ranks"):
            sights, taken = _look(found, stacks)
        findings = examine_run(found, sights, is_owned=owned)
        sources = list_sources(found)
    clusters = cluster_stacks(taken.texts) if taken is not None else []
    if taken is not None and clusters:
        # Who is odd among the ranks of one host need not be so among all: there stacks only speak about those that are here.
        findings = [
            weigh_stacks(each, clusters)
            if each.kind == "stall" and (not taken.far or each.rank in taken.texts)
            else each
            for each in findings
        ]
    if as_json:
        print(
            json.dumps(
                finite(_to_record(found, owned, findings, sources, clusters, taken)), indent=2, ensure_ascii=False
            )
        )
        return
    print(_describe_run(found, findings))
    _print_findings(findings, (*sources.read, *(["its ranks"] if sights else [])))
    if sources.gaps:
        print(("\n" if findings else "") + f"missing or damaged: {'; '.join(sources.gaps)}")
    if taken is not None:
        _print_stacks(clusters, taken)


def _look(run: Run, wants_stacks: bool) -> tuple[list[Sight], Stacks | None]:
    """Some sights of a run that is running on this host, and the stacks of its ranks; nothing of any other."""
    from paceline.supervise.settings import load_settings
    from paceline.supervise.stacks import take_stacks
    from paceline.supervise.station import find_station
    from paceline.supervise.watching import build_watch

    attempt = run.run.attempts[-1] if run.run.attempts else None
    watch = None
    if attempt is not None and run.run.state == "running" and Path(attempt.pulses).is_dir():
        watch = build_watch(run.layout, run.run, attempt, load_settings(run.layout, run.run))
    try:
        sights = []
        if watch is not None:
            for number in range(_LOOKS):
                if number:
                    watch.eye.wait(_BETWEEN_S)
                sights.append(watch.look()[0])
        if any(seen.process is not None for sight in sights for seen in sight.ranks):
            assert watch is not None
            assert attempt is not None
            here = find_station(attempt)
            far = {rank: attempt.host_of(rank) for rank in range(attempt.world_size) if not here.is_here(rank)}
            return sights, take_stacks(run.layout, watch.processes, attempt.world_size, far) if wants_stacks else None
    finally:
        if watch is not None:
            watch.close()
    if wants_stacks:
        what = "there are no stacks to take: no process of this run is on this host"
        raise UsageError(what, "flag --stacks", "leave it out, or ask on the host where the run is running")
    return [], None


def _describe_run(run: Run, findings: Sequence[Finding]) -> str:
    from paceline.diagnose.standing import name_ranks
    from paceline.diagnose.unowned import ABANDONED, UNSEEN

    causes = {finding.cause for finding in findings}
    attempt = run.run.attempts[-1] if run.run.attempts else None
    state = run.run.state + (f" ({run.run.reason})" if run.run.reason else "")
    if run.run.state == "running" and ABANDONED in causes:
        state = "running, as run.json says, but nobody runs it"
    elif run.run.state == "running" and UNSEEN in causes:
        state = "running, as run.json says"
    if attempt is None:
        return f"run {run.layout.root}: {state}, never begun"
    ranks = "1 rank" if attempt.world_size == 1 else f"{attempt.world_size} ranks"
    where = [f"{name_ranks(tuple(each.ranks))} on {each.host}" for each in attempt.hosts if each.num_ranks]
    hosts = f" ({'; '.join(where)})" if attempt.has_several_hosts else ""
    return f"run {run.layout.root}: {state}, attempt {attempt.attempt}, {ranks}{hosts}"


def _print_findings(findings: Sequence[Finding], looked: Sequence[str]) -> None:
    if not findings:
        *some, last = looked or ("run.json alone",)
        print("nothing found wrong, in " + (", ".join(some) + " and " if some else "") + last)
        return
    for number, finding in enumerate(findings, 1):
        whose = f", rank {finding.rank}" if finding.rank is not None else ""
        print(f"\n{number}. {finding.kind} ({finding.severity}{whose}): {finding.what}")
        for witness in finding.witnesses:
            print(f"   {'seen by' if witness.agrees else 'but'} {witness.name}: {witness.said}")
        print(f"   do: {finding.do}")


def _print_stacks(clusters: Sequence[Cluster], taken: Stacks) -> None:
    from paceline.diagnose.standing import name_ranks

    print(f"\nstacks, taken in {taken.taken_s:.1f} s:")
    for cluster in clusters:
        odd = ", unlike the others" if cluster.is_odd else ""
        print(f"  {name_ranks(cluster.ranks)}{odd}:")
        for frame in cluster.frames[:_FRAMES]:
            print(f"    {frame}")
        if len(cluster.frames) > _FRAMES:
            print(f"    … {len(cluster.frames) - _FRAMES} more")
    for rank, why in sorted(taken.missing.items()):
        print(f"  rank {rank}: no stack ({why})")


def _to_record(
    run: Run,
    owned: bool | None,
    findings: Sequence[Finding],
    sources: Sources,
    clusters: Sequence[Cluster],
    taken: Stacks | None,
) -> dict[str, Any]:
    record: dict[str, Any] = {
        "run": str(run.layout.root),
        "id": run.run.id,
        "state": run.run.state,
        "reason": run.run.reason,
        "is_owned": owned,
        "attempt": run.run.attempts[-1].attempt if run.run.attempts else None,
        "findings": [finding.to_record() for finding in findings],
        "read": list(sources.read),
        "gaps": list(sources.gaps),
        "stacks": None,
    }
    if taken is not None:
        told = [
            {"ranks": list(each.ranks), "frames": list(each.frames), "is_odd": each.is_odd, "place": each.place}
            for each in clusters
        ]
        missing = {str(rank): why for rank, why in taken.missing.items()}
        record["stacks"] = {"taken_s": taken.taken_s, "clusters": told, "missing": missing}
    return record
