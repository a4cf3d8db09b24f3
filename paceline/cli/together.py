"""`paceline train --nnodes … --rdzv …` on one of several hosts: as their leader, or as a member that follows one.

The host that can listen at the address of --rdzv leads. Where the port is taken on that host, its leader is there already: a second
terminal of one machine is a member.
"""

from __future__ import annotations

import functools
import os
import socket
import sys
from pathlib import Path

from paceline.cli.attempt import part_command, supervise_part
from paceline.cli.attempts import run_attempts
from paceline.cli.launch_plan import LaunchPlan
from paceline.cli.launching import conclude, print_finished
from paceline.errors import error_from_record
from paceline.launch.claim import AlreadyFinished, find_finished, reserve_run
from paceline.launch.command import LAUNCH_MARK
from paceline.launch.hosts.endpoint import open_listener
from paceline.launch.hosts.joining import Door
from paceline.launch.hosts.leader import Leader
from paceline.launch.hosts.member import Member
from paceline.launch.hosts.message import Begin, Bye, Hello
from paceline.launch.hosts.place import HostPlan
from paceline.launch.hosts.roll import Roll
from paceline.launch.hosts.share import Share
from paceline.launch.signals import OperatorSignals
from paceline.launch.warm import WarmAgent
from paceline.telemetry.layout import RunLayout


def train_together(plan: LaunchPlan, hosts: HostPlan, debug: bool, warm: WarmAgent | None) -> int:
    """The exit code, the same on every host."""
    listener = open_listener(hosts.endpoint)
    placement, backend = plan.placement, plan.job.config.parallel.backend
    identity = plan.description.identity
    hello = hosts.greet(placement.world_size, placement.num_gpus, backend, identity, str(plan.root))
    with OperatorSignals() as signals:
        if listener is None:
            return _follow(plan, hosts, hello, signals, warm)
        with listener:
            return _lead(plan, hosts, hello, listener, signals, debug, warm)


def _lead(
    plan: LaunchPlan,
    hosts: HostPlan,
    hello: Hello,
    listener: socket.socket,
    signals: OperatorSignals,
    debug: bool,
    warm: WarmAgent | None,
) -> int:
    reserved = reserve_run(plan.root, plan.description, plan.origin)
    if isinstance(reserved, AlreadyFinished):
        print_finished(reserved)
        return 0
    roll = Roll(hosts.count, hello, hosts.timeout_s)
    can_resize = plan.job.config.checkpoint.enabled
    try:
        with Leader(
            listener, roll, reserved.layout, lost_after_s=hosts.lost_after_s, can_resize=can_resize, say=_say
        ) as leader:
            _say(f"leading at {hosts.endpoint}; run {plan.root}")
            leader.gather(signals)
            seats = leader.seat()
            claim = reserved.begin(leader.world_size, seats)
            last, verdict = run_attempts(plan, claim, signals, debug, warm, leader)
            record = verdict.error.to_record() if verdict.error is not None else None
            leader.dismiss(Bye(verdict.state, verdict.reason, verdict.step, verdict.exit_code, record))
            return conclude(last, verdict, debug)
    finally:
        reserved.release()


def _follow(plan: LaunchPlan, hosts: HostPlan, hello: Hello, signals: OperatorSignals, warm: WarmAgent | None) -> int:
    def start(begin: Begin, index: int, root: Path) -> Share:
        def command(pulses: Path) -> list[str]:
            return part_command(plan, root, begin.attempt, pulses, begin.rendezvous_id, begin.debug, begin)

        layout = RunLayout(root)
        environment = plan.environment.apply(os.environ) | {LAUNCH_MARK: begin.rendezvous_id}
        supervise = functools.partial(supervise_part, plan, layout, begin.attempt, begin, index)
        is_supervised = plan.job.config.supervise.enabled
        return Share(layout, begin, index, command, environment, warm, supervise if is_supervised else None)

    def is_over() -> Bye | None:
        finished = find_finished(plan.root, plan.description)
        return Bye("finished", "finished", finished.run.attempts[-1].step, 0) if finished is not None else None

    door = Door(hosts.endpoint, hello, timeout_s=hosts.timeout_s, signals=signals, say=_say, is_over=is_over)
    member = Member(door, start, lost_after_s=hosts.lost_after_s, signals=signals, say=_say)
    _say(f"{hosts.host} ({hosts.address}, {hosts.interface}) joins the leader at {hosts.endpoint}")
    bye = member.run()
    at = f" at step {bye.step:,}" if bye.step is not None else ""
    if bye.error is not None:
        print(error_from_record(bye.error).render(), file=sys.stderr)
    why = f" ({bye.reason})" if bye.error is None and bye.reason != bye.state else ""
    print(f"the leader says: {bye.state}{at}{why}")
    return bye.exit_code


def _say(text: str) -> None:
    print(text, flush=True)
