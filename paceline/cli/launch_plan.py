"""What `paceline train` will start, decided before anything is: the configuration meets this machine and the run directory.

plan = plan_launch(job, Wish(resume="runs/a/checkpoints/best"))
plan.root, plan.placement.world_size, plan.origin; plan.lines(debug=False)
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from paceline.config.contradictions import Facts
from paceline.errors import UsageError
from paceline.launch.command import Group, agent_command, free_arguments, shell_line
from paceline.launch.description import RunDescription
from paceline.launch.environment import WorkerEnvironment, worker_environment
from paceline.launch.occupied import check_same_run
from paceline.launch.origin import Origin, Wish, plan_origin
from paceline.launch.placement import Placement, place_ranks
from paceline.launch.weights import find_weights
from paceline.recipes.job import Job, known_names
from paceline.telemetry.checkpoints import list_checkpoints
from paceline.telemetry.layout import RunLayout
from paceline.telemetry.run_file import load_run_file

if TYPE_CHECKING:
    from paceline.launch.hosts.place import HostPlan


@dataclass(frozen=True)
class LaunchPlan:
    """What will be started, decided before anything is."""

    job: Job
    wish: Wish
    placement: Placement
    description: RunDescription
    root: Path
    origin: Origin
    environment: WorkerEnvironment
    hosts: HostPlan | None = None
    """None: this host trains alone"""

    def lines(self, debug: bool) -> list[str]:
        """What `--dry-run` prints: the plan, and a command line that does the same when pasted."""
        num_gpus, world_size = self.placement.num_gpus, self.placement.world_size
        where = f"{num_gpus} GPU{'' if num_gpus == 1 else 's'}" if num_gpus else "the CPU"
        is_name = self.job.target in known_names()
        target = self.job.target if is_name else str(Path(self.job.target).absolute())
        arguments = free_arguments(target, self.job.overrides, self.root, debug, self.wish.arguments())
        lines = [
            f"recipe        {self.job.recipe.name}",
            f"fingerprint   {str(self.description.identity['fingerprint'])[:16]}",
            f"run directory {self.root}",
            f"begins        {self._begins()}",
            f"workers       {world_size} on {where}",
            "environment",
        ]
        for note in self.environment.notes:
            value = "(taken out)" if note.value is None else note.value
            mark = "warning: " if note.is_warning else ""
            lines.append(f"  {note.name}={value}   {note.origin}: {mark}{note.reason}")
        if self.hosts is not None:
            return [*lines, *self._host_lines(self.hosts, arguments)]
        command = agent_command(world_size, arguments)
        if self.job.recipe.foreign is not None:
            command = self.job.recipe.foreign.argv(self.job.config, self.root, world_size)
        return [*lines, "command", self._shell_line(command)]

    def _host_lines(self, hosts: HostPlan, arguments: list[str]) -> list[str]:
        """One command line for each role; those of other hosts name their own interface."""
        lines = [
            f"hosts         {hosts.count}, meeting at {hosts.endpoint}; this one is {hosts.address} ({hosts.interface})"
        ]
        for node_rank in range(hosts.count.most):
            role = "leader" if node_rank == 0 else f"member {node_rank}"
            group = Group(hosts.count.most, node_rank, hosts.endpoint.host, hosts.endpoint.port)
            command = agent_command(self.placement.world_size, arguments, rendezvous_id="paceline", group=group)
            lines += [f"command of the {role}", self._shell_line(command)]
        return lines

    def _shell_line(self, command: list[str]) -> str:
        return shell_line(command, self.environment.assigned, self.environment.removed, Path.cwd())

    def _begins(self) -> str:
        """Where the first step will be, as far as it can be told without reading every byte; raises what the real start would."""
        layout = RunLayout(self.root)
        run = load_run_file(self.root)
        if run is None:
            return str(self.origin)
        check_same_run(layout, run, self.description, self.origin)
        newest = next(iter(list_checkpoints(layout.checkpoints)), None)
        return f"after {newest.name}, if that is whole" if newest is not None else "at step 0"


def plan_launch(job: Job, wish: Wish | None = None) -> LaunchPlan:
    """Meets the configuration with this machine; everything that can be refused is refused here."""
    wish = wish or Wish()
    launch = job.config.launch
    placement = place_ranks(launch, job.origins["launch.gpus"])
    world_size, num_gpus = placement.world_size, placement.num_gpus
    job.check(Facts(world_size, num_gpus))
    hosts = _plan_hosts(job)
    if hosts is not None and job.recipe.foreign is not None:
        what = f"launch.nnodes={launch.nnodes} is for recipes: a script of its own needs a launcher of its own"
        do = "start it with torchrun on every host, and let it tell its progress with the SDK"
        raise UsageError(what, job.origins["launch.nnodes"], do)
    out = job.config.run.out
    weights = find_weights(wish.init_from, out) if wish.init_from is not None else None
    identity = job.identity(weights.digest if weights is not None else None)
    root = job.default_root(identity).absolute()
    description = job.describe_run(sys.argv, identity)
    origin = plan_origin(wish, root, bool(out), description, weights)
    recorder = root / "logs" / "flight_recorder_rank_"
    environment = worker_environment(
        launch, world_size, num_gpus, os.environ, visible=placement.visible, flight_recorder=recorder
    )
    if hosts is not None:
        hosts.assign_interface(environment, os.environ)
    return LaunchPlan(job, wish, placement, description, root, origin, environment, hosts)


def _plan_hosts(job: Job) -> HostPlan | None:
    if job.config.launch.nnodes == 1:
        return None  # without the imports that only several hosts need
    from paceline.launch.hosts.place import plan_hosts

    return plan_hosts(job.config.launch, job.origins)
