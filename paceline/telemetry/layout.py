"""Where everything lies in a run directory; the only file that knows the names.

run.json  config.yaml  origins.json  env.json  metrics.csv  validation.csv  events.jsonl
heartbeat/rank_00000.jsonl  logs/rank_00000.log  logs/launcher.log  ledger/rank_00000.jsonl  memory/rank_00000.json  tensorboard/
checkpoints/step_00001000/  checkpoints/latest  report.html  report.md
timing/rank_00000.csv  profile/attempt_1/rank_00000.csv  profile/attempt_1/rank_00000.trace.json.gz
incidents/0001-stall-rank3/  logs/stacks_rank_00000.txt  logs/supervisor.log  logs/supervisor_1.log
env_1.json  logs/launcher_1.log   (of each host but the leader's)
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

SCHEMA = 1
"""Version of every record in a run directory; a reader refuses a newer one and still reads every older one."""


@dataclass(frozen=True)
class RunLayout:
    """The paths of one run directory."""

    root: Path

    @property
    def run(self) -> Path:
        return self.root / "run.json"

    @property
    def config(self) -> Path:
        return self.root / "config.yaml"

    @property
    def origins(self) -> Path:
        return self.root / "origins.json"

    @property
    def environment(self) -> Path:
        return self.root / "env.json"

    @property
    def metrics(self) -> Path:
        return self.root / "metrics.csv"

    @property
    def validation(self) -> Path:
        return self.root / "validation.csv"

    @property
    def events(self) -> Path:
        return self.root / "events.jsonl"

    @property
    def tensorboard(self) -> Path:
        return self.root / "tensorboard"

    @property
    def checkpoints(self) -> Path:
        return self.root / "checkpoints"

    @property
    def launcher_log(self) -> Path:
        return self.root / "logs" / "launcher.log"

    def member_log(self, index: int) -> Path:
        """What the agent of another host than the leader's printed."""
        return self.root / "logs" / f"launcher_{index}.log"

    def member_environment(self, index: int) -> Path:
        return self.root / f"env_{index}.json"

    @property
    def supervisor_log(self) -> Path:
        return self.supervisor_log_of(0)

    @property
    def incidents(self) -> Path:
        return self.root / "incidents"

    @property
    def report_page(self) -> Path:
        return self.root / "report.html"

    @property
    def report_text(self) -> Path:
        return self.root / "report.md"

    @property
    def owner_lock(self) -> Path:
        """Held exclusively by whoever started the run: the launcher, or rank 0 under a foreign launcher."""
        return self.root / ".owner.lock"

    @property
    def workers_lock(self) -> Path:
        """Shared by every living worker process of the run."""
        return self.root / ".workers.lock"

    @property
    def attempt_lock(self) -> Path:
        """Held for a moment by whoever begins an attempt, and by whoever makes a checkpoint visible as part of one."""
        return self.root / ".attempt.lock"

    @property
    def supervisor_lock(self) -> Path:
        """Held by whoever supervises the run: it needs one on each host."""
        return self.supervisor_lock_of(0)

    @property
    def rendezvous(self) -> Path:
        """There while several hosts train together: by it they know that they see the same directory."""
        return self.root / ".rendezvous"

    @property
    def stop_request(self) -> Path:
        return self.root / "stop_request.json"

    @property
    def policy_requests(self) -> Path:
        """One file per watcher that wishes for another policy."""
        return self.root / "policy_requests"

    def supervisor_lock_of(self, host_index: int) -> Path:
        return self.root / (".supervisor.lock" if host_index == 0 else f".supervisor_{host_index}.lock")

    def supervisor_log_of(self, host_index: int) -> Path:
        return self.root / "logs" / ("supervisor.log" if host_index == 0 else f"supervisor_{host_index}.log")

    def log(self, rank: int) -> Path:
        return self.root / "logs" / f"rank_{rank:05d}.log"

    def stacks(self, rank: int) -> Path:
        """Where a rank writes its stacks when it is asked to."""
        return self.root / "logs" / f"stacks_rank_{rank:05d}.txt"

    def heartbeat(self, rank: int) -> Path:
        return self.root / "heartbeat" / f"rank_{rank:05d}.jsonl"

    def memory(self, rank: int) -> Path:
        """What a rank that ran out of memory knew about it."""
        return self.root / "memory" / f"rank_{rank:05d}.json"

    def ledger(self, rank: int) -> Path:
        return self.root / "ledger" / f"rank_{rank:05d}.jsonl"

    def timing(self, rank: int) -> Path:
        return self.root / "timing" / f"rank_{rank:05d}.csv"

    def profile_trace(self, attempt: int, rank: int) -> Path:
        return self.root / "profile" / f"attempt_{attempt}" / f"rank_{rank:05d}.trace.json.gz"

    def profile_table(self, attempt: int, rank: int) -> Path:
        return self.root / "profile" / f"attempt_{attempt}" / f"rank_{rank:05d}.csv"
