"""Starts ranks quickly: a process that has imported torch and the worker once, and forks the ranks of each job from there.

A torchrun start costs five seconds, a fork a fifth of one. Each rank runs the real worker entry, as under a foreign launcher. Reads one
JSON job per line, {"op": "start", "ranks": 3, "argv": […], "log": "dir", "plant": "nan:rank=1,step=5"}, answers with the pids; {"op": "wait"}
answers with the exit codes (negative: a signal). With "call": "module:function" the ranks join and run that instead of the worker; with a
"script", that file. {"op": "import", "module": "deepspeed", "environment": {…}} brings in what later ranks need and others do not.
"""

from __future__ import annotations

import importlib
import json
import os
import runpy
import signal
import socket
import sys
import time
import traceback

import planted
import torch
import torch._dynamo  # noqa: F401 (the first optimizer imports it, which would cost every rank seconds)

import paceline.engine.strategies.fsdp
import paceline.recipes.sasrec.workload
import paceline.worker.describe
import paceline.worker.session  # noqa: F401
from paceline.config.sections import Parallel
from paceline.engine.ranks import join_ranks
from paceline.parentage import die_with_parent
from paceline.worker.__main__ import main


def take_port() -> int:
    """A free port that the system gives to nobody else until the next job: it stays bound, and without a listener it may be bound again."""
    global holder
    holder.close()
    holder = socket.socket()
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    holder.bind(("127.0.0.1", 0))
    return int(holder.getsockname()[1])


holder = socket.socket()


def start(job: dict) -> list[int]:
    port, parent = take_port(), os.getpid()
    pids = []
    for rank in range(job["ranks"]):
        pid = os.fork()
        if pid == 0:
            run_rank(job, rank, port, parent)
        pids.append(pid)
    return pids


def run_rank(job: dict, rank: int, port: int, parent: int) -> None:
    code = 99
    try:
        die_with_parent(parent)
        os.setpgid(0, 0)
        log = os.open(f"{job['log']}/console_{rank}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.dup2(log, 1)
        os.dup2(log, 2)
        if job["ranks"] > 1 or job.get("group"):
            size = str(job["ranks"])
            os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size}
            os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        sys.argv = ["paceline.worker", *job["argv"]]
        if job.get("plant"):
            planted.plant(job["plant"], rank)
        if job.get("script"):
            code = run_script(job["script"], job["argv"])
        else:
            code = call(job["call"]) if job.get("call") else main(job["argv"])
    except Exception:
        traceback.print_exc()  # a plant whose target has moved would end the rank without a word
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def call(name: str) -> int:
    """Joins the ranks, calls `module:function` with them; 0 if it comes back."""
    module, _, function = name.partition(":")
    try:
        ranks = join_ranks(Parallel(timeout_s=20))
        getattr(importlib.import_module(module), function)(ranks)
        ranks.close()
        return 0
    except BaseException:
        traceback.print_exc()
        return 1


def run_script(path: str, argv: list[str]) -> int:
    sys.argv = [path, *argv]
    try:
        runpy.run_path(path, run_name="__main__")
    except SystemExit as error:
        return int(error.code or 0)
    return 0


def wait(pids: list[int], timeout_s: float) -> list[int]:
    deadline = time.monotonic() + timeout_s
    codes: dict[int, int] = {}
    while len(codes) < len(pids):
        for pid in pids:
            if pid not in codes:
                done, status = os.waitpid(pid, os.WNOHANG)
                if done:
                    codes[pid] = os.waitstatus_to_exitcode(status)
        if time.monotonic() > deadline:
            for pid in set(pids) - set(codes):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)
    return [codes[pid] for pid in pids]


if __name__ == "__main__":
    die_with_parent(os.getppid())
    started: list[int] = []
    print("ready", flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        if request["op"] == "start":
            started = start(request)
            print(json.dumps(started), flush=True)
        elif request["op"] == "import":
            os.environ |= request["environment"]
            importlib.import_module(request["module"])
            print(json.dumps(None), flush=True)
        else:
            print(json.dumps(wait(started, request["timeout_s"])), flush=True)
