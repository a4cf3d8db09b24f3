"""Starts ranks that measure the machine, as a training would start them, and brings back what they found.

    found = probe(subject, ops=["all_reduce"], sizes=[1 << 20], repeats=20, product=True)      # RankLostError, or the rank's own error, where they fail
    found["collectives"][0]   -> {"op": "all_reduce", "bytes": 1048576, "seconds": [0.0012, …]}

The ranks are torchrun's, with the workers' environment, on the GPUs of the placement; none is left, whatever happens.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from paceline.errors import PacelineError, RankLostError, error_from_record
from paceline.launch.command import agent_command, new_rendezvous_id
from paceline.launch.process import Agent
from paceline.preflight.subject import Subject

PROBE_MODULE = "paceline.worker.probe"
BUDGET_S = 0.4
"""for the repetitions of one collective of one size, where nobody says how many"""
_TIMEOUT_S = 60.0


def probe(
    subject: Subject,
    *,
    ops: Sequence[str],
    sizes: Sequence[int],
    repeats: int,
    budget_s: float | None = BUDGET_S,
    product: bool,
    timeout_s: float = _TIMEOUT_S,
) -> dict[str, Any]:
    """What rank 0 wrote; the error of the rank that failed first otherwise."""
    wish = {
        "backend": subject.config.parallel.backend,
        "ops": list(ops),
        "sizes": list(sizes),
        "repeats": repeats,
        "budget_s": budget_s,
        "product": product,
    }
    with tempfile.TemporaryDirectory(prefix="paceline-probe-") as scratch:
        answer = Path(scratch) / "answer.json"
        rendezvous_id = new_rendezvous_id()
        command = agent_command(
            subject.world_size,
            [json.dumps(wish), "--to", str(answer)],
            rendezvous_id=rendezvous_id,
            scratch=Path(scratch) / "torchelastic",
            module=PROBE_MODULE,
        )
        agent = Agent(command, subject.environment, Path(os.devnull), rendezvous_id)
        try:
            exit_code = agent.wait(timeout_s)
        finally:
            agent.kill_all()
        if exit_code == 0 and answer.exists():
            found: dict[str, Any] = json.loads(answer.read_text(encoding="utf-8"))
            return found
        raise _failure(agent, exit_code, timeout_s)


def bus_bytes_per_s(record: dict[str, Any], seconds: float, world_size: int) -> float:
    """What crosses each link per second, whatever the number of ranks: the figure to compare with the link's own."""
    times = 2 if record["op"] == "all_reduce" else 1  # there and back, as in a ring
    return float(times * record["bytes"] * (world_size - 1) / world_size / seconds)


def _failure(agent: Agent, exit_code: int | None, timeout_s: float) -> PacelineError:
    first = [record for record in agent.failures if not record.get("secondary")] or agent.failures
    if first:
        return error_from_record(first[0])
    if exit_code is None:
        what = f"the ranks did not come back within {timeout_s:g} s"
        return RankLostError(what, "", "NCCL_DEBUG=INFO, or GLOO_SOCKET_IFNAME=lo, may tell more")
    last = next((line for line in reversed(agent.tail) if line.strip()), "they said nothing")
    died = [f"rank {left.rank} with exit code {left.exit_code}" for left in agent.exits()]
    return RankLostError(f"the ranks ended without an answer ({', '.join(died) or last})", "", "see what they printed")
