"""A rank of the plain script with a fault planted: faulted.py FAULT STEPS DIR [WORKERS]."""

from __future__ import annotations

import faulthandler
import importlib
import os
import signal
import sys
from pathlib import Path

import paceline.bench.faults

FAULTS = Path(paceline.bench.faults.__file__).parent

os.environ["FAULT"] = sys.argv.pop(1)
sys.path[:0] = [str(FAULTS / "injected"), str(FAULTS)]
importlib.import_module("fault_injector").plant()  # what sitecustomize does in a new interpreter; this one was forked
stacks = open(f"{sys.argv[2]}/stacks_{os.environ['RANK']}.txt", "w")  # noqa: SIM115 (faulthandler writes into it)
faulthandler.register(signal.SIGUSR1, file=stacks)
importlib.import_module("plain").main()
