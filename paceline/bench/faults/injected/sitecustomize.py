"""Python imports this by itself at its start, where its directory is on PYTHONPATH: it plants the fault that the environment asks for.

Only ranks are touched: processes with RANK in their environment. Another sitecustomize further down the path is not run.
"""

from __future__ import annotations

import importlib
import os

if "FAULT" in os.environ and "RANK" in os.environ:
    importlib.import_module("fault_injector").plant()
