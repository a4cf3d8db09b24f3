"""The quick preflight checks of a start, made while its ranks import torch: warnings become events, a failure becomes a refusal.

Data, batches and the directory are not among them: the start has refused those already, before it claimed anything.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping

from paceline.cli.launch_plan import LaunchPlan
from paceline.errors import PreflightError
from paceline.launch.claim import Claim
from paceline.telemetry.events import EventLog


def examine_machine(plan: LaunchPlan, claim: Claim, environment: Mapping[str, str]) -> PreflightError | None:
    """What stands against training on this machine, if anything does; everything that was found is recorded."""
    # Here and not at the top: nobody waits for these imports any more.
    from paceline.preflight.runner import MACHINE, run_families
    from paceline.preflight.subject import Subject

    subject = Subject(
        plan.job.config, plan.placement, plan.root, environment, plan.job.origins, plan.job, plan.description.identity
    )
    report = run_families(MACHINE, subject)
    with contextlib.suppress(OSError):  # a full disk is reported by the workers
        events = EventLog(claim.layout.events, "launcher", claim.attempt)
        events.write("preflight", **report.to_record())
        for check in report.having("warn"):
            events.write("warning", what=f"{check.name}: {check.found}", do=check.remedy)
        events.close()
    return report.error()
