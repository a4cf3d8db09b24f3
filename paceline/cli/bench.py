"""`paceline bench`: the product's own measurements, re-runnable by anyone, one command each."""

from __future__ import annotations

from paceline.cli.arguments import Debug

COMMANDS = {
    "startup": ("paceline.cli.bench_startup", "Time to the first step, against a bare torchrun script."),
    "telemetry": ("paceline.cli.bench_telemetry", "What telemetry costs a step, on against off."),
    "supervision": ("paceline.cli.bench_supervision", "What a supervisor costs beside many ranks."),
    "checkpoint": ("paceline.cli.bench_checkpoint", "What an asynchronous save costs the training."),
    "loader": ("paceline.cli.bench_loader", "Whether the loader of a configuration keeps up with its steps."),
    "scaling": ("paceline.cli.bench_scaling", "Weak and strong efficiency over world sizes."),
    "sharding": ("paceline.cli.bench_sharding", "What each parallel.zero_stage leaves on a rank, and costs."),
    "tables": ("paceline.cli.bench_tables", "What an embedding table's gradients bring to a rank in a step."),
    "collective": ("paceline.cli.bench_collective", "All-reduce, all-gather and reduce-scatter by size."),
    "attention": ("paceline.cli.bench_attention", "Which attention runs, why not others, and their times."),
    "ranges": ("paceline.cli.bench_ranges", "Where the time of a profiled run went, by phase and branch."),
    "parity": ("paceline.cli.bench_parity", "Whether sparse attention computes here what its reference says."),
    "nsa": ("paceline.cli.bench_nsa", "Each stage of sparse attention by length, dense attention beside it."),
    "racing": ("paceline.cli.bench_racing", "Races against full grids, replayed on recorded sweeps."),
    "faults": ("paceline.cli.bench_faults", "Faults planted into real runs: noticed, how fast, and who was named."),
    "serving": ("paceline.cli.bench_serving", "Each stage of serving under concurrent callers, and its acceleration."),
    "sasrec": ("paceline.cli.bench_sasrec", "An epoch and an evaluation of SASRec, beside rivals."),
}
"""as the table in app.py"""


def group(debug: Debug = False) -> None:
    """Measure the product itself on this machine.

    Example: paceline bench checkpoint --parameters 1e7
    """
