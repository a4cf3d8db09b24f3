"""Entry of one rank.

    torchrun --nproc-per-node 2 -m paceline.worker sasrec train.max_steps=50 --out runs/mine

Under `paceline train` the launcher has claimed the run directory and says so with --attempt; otherwise rank 0 claims it.
"""

from __future__ import annotations

import os
import sys

from paceline.errors import Interrupted
from paceline.parentage import die_with_agent
from paceline.worker.arguments import parse_arguments
from paceline.worker.output import Output
from paceline.worker.signs import give_signs


def main(argv: list[str]) -> int:
    arguments = parse_arguments(argv)
    if "TORCHELASTIC_RUN_ID" in os.environ:
        die_with_agent()
    output = Output()
    signs = give_signs(arguments)
    try:
        from paceline.worker.session import Session  # imports torch: by now the parent's death ends us, too
    except KeyboardInterrupt:
        return Interrupted.exit_code
    session = Session(arguments, output, signs)
    try:
        from paceline.recipes.job import load_job

        job = load_job(arguments.target, arguments.overrides)
        if arguments.describe:
            from paceline.worker.describe import describe_job

            print(describe_job(job), file=output.console)
            return 0
        return session.train(job)
    except BaseException as error:
        return session.fail(error)


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    # Everything is written and closed by now. After a failure peers may be gone, and leaving the process group in order could hang;
    # after a success torch's own end takes a second or more.
    os._exit(code)
