"""The job itself: its data, and the arithmetic of its batches on these ranks."""

from __future__ import annotations

from paceline.config.arithmetic import plan_batches
from paceline.config.consequences import plan_consequences
from paceline.config.contradictions import Facts
from paceline.config.fingerprint import DATA_DIGEST
from paceline.errors import ConfigError
from paceline.preflight.check import Check, from_problems, ok, warn
from paceline.preflight.subject import Subject


def check_training(subject: Subject) -> list[Check]:
    """Empty without a job. Data that cannot be read was said when the subject was built."""
    if subject.job is None:
        return []
    return [*_data(subject), *_batches(subject)]


def _data(subject: Subject) -> list[Check]:
    if subject.identity is None:
        return []
    digest = str(subject.identity["values"][DATA_DIGEST])
    path = getattr(subject.config.data, "path", None)
    samples = f", {subject.sizes['num_train']:,} training samples" if subject.sizes else ""
    about = f"{path} ({digest[:24]}…)" if path else f"{digest[:24]}…"
    return [ok("data", about + samples, digest=digest, path=path)]


def _batches(subject: Subject) -> list[Check]:
    assert subject.job is not None
    num_samples = subject.sizes["num_train"] if subject.sizes else None
    try:
        subject.job.check(Facts(subject.world_size, subject.num_gpus, num_samples))
    except ConfigError as error:
        return from_problems("configuration", error.problems)
    train = subject.config.train
    plan = plan_batches(train.global_batch, train.micro_batch, train.accumulate, subject.world_size)
    said = {item.name: item for item in plan_consequences(subject.config, subject.world_size, num_samples)}
    about = f"{said['global batch'].text}; {said['accumulate'].text}"
    values = {"per_rank": plan.sizes(), "accumulate": plan.accumulate, "total_steps": said["total steps"].value}
    if 0 in plan.sizes():
        do = f"--nproc {train.global_batch} at most, or a larger train.global_batch"
        return [warn("batches", about, do, **values)]
    return [ok("batches", about, **values)]
