"""What the engine asks of a recipe, and nothing more; annotations only, so that importing it does not import torch.

A recipe is registered as a `Recipe` (no torch: its name, its configuration schema, where its workload lives, what identifies its data)
and builds a `Workload` in the worker process. A recipe's classes may inherit from `Workload` and `SampleSet`: what has a default there
then need not be written. What a workload may have besides is a protocol each. docs/recipes.md shows a whole one.

from paceline.workload import Objective, Recipe, SampleSet, Workload        # here is every name; outside of this room nobody asks for its files
"""

from paceline.workload.attention import Attends, AttentionCall
from paceline.workload.check import check_metrics, check_workload
from paceline.workload.contrast import Contrasts, Embedded
from paceline.workload.protocol import Objective, Workload
from paceline.workload.recipe import Foreign, Recipe
from paceline.workload.samples import Batch, Draw, Measured, SampleSet, Weighed
from paceline.workload.setting import Choice, Chooses, Setting, Settles
from paceline.workload.uses import Infers, Recommendation, Recommended, Recommends, Sampled, Samples

__all__ = [
    "Attends",
    "AttentionCall",
    "Batch",
    "Choice",
    "Chooses",
    "Contrasts",
    "Draw",
    "Embedded",
    "Foreign",
    "Infers",
    "Measured",
    "Objective",
    "Recipe",
    "Recommendation",
    "Recommended",
    "Recommends",
    "SampleSet",
    "Sampled",
    "Samples",
    "Setting",
    "Settles",
    "Weighed",
    "Workload",
    "check_metrics",
    "check_workload",
]
