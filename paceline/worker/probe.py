"""What only ranks can tell about a machine: do collectives work and how fast, how fast is a matrix product on each device?

    torchrun --nproc-per-node 2 -m paceline.worker.probe '{"backend": "auto", "ops": ["all_reduce"], "sizes": [4096], "repeats": 20, "budget_s": 0.4, "product": true}' --to FILE

Rank 0 writes one JSON object: {"backend": "gloo", "world_size": 2, "collectives": [{"op": "all_reduce", "bytes": …, "seconds": […]}, …],
"products": [{"rank": 0, "device": "cpu", "flops": …}, …], …}. Nothing of a run is touched.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import traceback
from pathlib import Path

from paceline.errors import PacelineError
from paceline.parentage import die_with_agent
from paceline.telemetry.failure import format_failure


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m paceline.worker.probe")
    parser.add_argument("wish")
    parser.add_argument("--to", type=Path, required=True)
    arguments = parser.parse_args(argv)
    if "TORCHELASTIC_RUN_ID" in os.environ:
        die_with_agent()
    try:
        from paceline.worker.measuring import probe  # imports torch: by now the parent's death ends us, too

        found = probe(json.loads(arguments.wish))
        if found is not None:
            arguments.to.write_text(json.dumps(found), encoding="utf-8")
        return 0
    except Exception as error:
        _report(error)
        return PacelineError.exit_code


def _report(error: Exception) -> None:
    """To whoever started us: the exception in its own words. `explain_exception` speaks for a training, and would leave them out."""
    from paceline.engine.failure import explain_exception

    rank = int(os.environ.get("RANK", "0"))
    _, is_secondary = explain_exception(error, Path(), rank)
    first = next(iter(str(error).splitlines()), "")
    do = "see what else the machine says: dmesg, nvidia-smi, ip addr"
    told = error if isinstance(error, PacelineError) else PacelineError(f"{type(error).__name__}: {first}", "", do)
    text = "".join(traceback.format_exception(error))[-2000:]
    record = told.to_record() | {"rank": rank, "step": None, "secondary": is_secondary, "traceback": text}
    print(format_failure(record), file=sys.stderr, flush=True)


if __name__ == "__main__":
    code = main(sys.argv[1:])
    # As the worker does: whatever threads torch still has, everything is written by now.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
