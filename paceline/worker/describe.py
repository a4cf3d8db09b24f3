"""Sizes of a job as one JSON line, for `paceline explain`: parameters, samples, and what the recipe finds worth saying."""

from __future__ import annotations

import json
from dataclasses import asdict

import torch

from paceline.recipes.job import Job
from paceline.workload import Setting, Sizes


def describe_job(job: Job) -> str:
    workload = job.recipe.build(job.config)
    model = workload.build_model(Setting(torch.device("cpu"), "sdpa"))
    sizes = Sizes(
        sum(parameter.numel() for parameter in model.parameters()),
        len(workload.train_set()),
        {split: len(workload.evaluation_set(split)) for split in workload.splits},
        dict(workload.details()),
    )
    objective = {"metric": workload.objective.metric, "direction": workload.objective.direction}
    return json.dumps(asdict(sizes) | {"metrics": list(workload.metric_names), "objective": objective})
