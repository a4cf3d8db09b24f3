"""The worker's command line."""

from __future__ import annotations

import argparse
from pathlib import Path


def parse_arguments(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m paceline.worker",
        description="One rank of a run; start it with torchrun, or let `paceline train` do so.",
        allow_abbrev=False,
    )
    parser.add_argument("target", help="a recipe or a configuration file")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="changes to the configuration")
    parser.add_argument("--out", type=Path, help="the run directory")
    parser.add_argument(
        "--resume",
        default="auto",
        metavar="auto|never|PATH",
        help="go on with the run in the directory, refuse if there is one, or fork a run or checkpoint",
    )
    parser.add_argument("--init-from", metavar="PATH", help="begin with the weights of a run, checkpoint or export")
    parser.add_argument("--attempt", type=int, help=argparse.SUPPRESS)
    # What the deepspeed launcher adds; the same stands in LOCAL_RANK.
    parser.add_argument("--local_rank", "--local-rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--describe", action="store_true", help="print parameters and data sizes as JSON, and end")
    parser.add_argument("--debug", action="store_true", help="show tracebacks")
    return parser.parse_intermixed_args(argv)
