"""Sizes of a job as one JSON line, for `paceline explain`: parameters, samples, and what the recipe finds worth saying."""

from __future__ import annotations

import json

import torch

from paceline.recipes.job import Job
from paceline.workload import Setting


def describe_job(job: Job) -> str:
    workload = job.recipe.build(job.config)
    model = workload.build_model(Setting(torch.device("cpu"), "sdpa"))
    record = {
        "num_parameters": sum(parameter.numel() for parameter in model.parameters()),
        "num_train": len(workload.train_set()),
        "num_evaluate": {split: len(workload.evaluation_set(split)) for split in workload.splits},
        "details": dict(workload.details()),
        "metrics": list(workload.metric_names),
        "objective": {"metric": workload.objective.metric, "direction": workload.objective.direction},
    }
    return json.dumps(record)
