"""Plants one fault into a rank of any PyTorch training, from outside: imports torch and the standard library alone.

    FAULT='{"kind": "loop", "place": "forward", "rank": 1, "step": 50, "log": "/tmp/fault.jsonl"}'
    PYTHONPATH=…/injected torchrun --nproc-per-node 2 train.py

Steps are counted by torch's own hooks on optimizers. The fault strikes in step `step` of this process, in rank `rank` (-1: in all of
them), once: whoever finds "began" in the log already, a restarted run, is left in peace. What it did, and when, is in the log.
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

_FOREVER_S = 1e7
_MIB = 1 << 20


class Fault:
    """One fault in one rank, from its arming to its stroke."""

    def __init__(self, wish: dict[str, Any], rank: int) -> None:
        self.wish = wish
        self.rank = rank
        self.kind = str(wish["kind"])
        self.place = str(wish.get("place", ""))
        self.step = 1
        """the optimizer step under way, counted in this process"""
        self._log = Path(wish["log"])
        self._durations: list[float] = []
        self._cpu: list[float] = []
        """seconds of all threads in each of these steps"""
        self._ended = time.perf_counter()
        self._cpu_ended = time.process_time()
        self._has_begun = False
        self._last_slowed = 0
        self._hoard: list[bytearray] = []

    @property
    def is_guilty(self) -> bool:
        return self.wish["rank"] in (-1, self.rank)

    @property
    def is_due(self) -> bool:
        return self.step >= int(self.wish["step"])

    @property
    def step_s(self) -> float:
        """What a step took before the fault."""
        return statistics.median(self._durations[-30:]) if self._durations else 0.0

    @property
    def cores(self) -> float:
        """How many cores it kept busy before the fault."""
        return sum(self._cpu[-30:]) / sum(self._durations[-30:]) if self._durations else 1.0

    def write(self, event: str, **fields: Any) -> None:
        record = {"event": event, "kind": self.kind, "place": self.place, "rank": self.rank, "pid": os.getpid()}
        line = json.dumps(record | {"step": self.step, "time": time.time()} | fields) + "\n"
        descriptor = os.open(self._log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            os.write(descriptor, line.encode())
        finally:
            os.close(descriptor)

    def begin(self, **fields: Any) -> None:
        """Says, once, that the fault has begun."""
        if not self._has_begun:
            self._has_begun = True
            self.write("began", **fields)

    def end_step(self) -> None:
        """After every optimizer step."""
        now, cpu = time.perf_counter(), time.process_time()
        if not self.is_due:
            self._durations.append(now - self._ended)
            self._cpu.append(cpu - self._cpu_ended)
        self._ended, self._cpu_ended = now, cpu
        self.step += 1
        if self.is_due and self.is_guilty:
            _AT_STEP.get(self.kind, _do_nothing)(self)

    def strike(self, place: str) -> None:
        """In the middle of a step, wherever the fault may be placed."""
        if place != self.place or not self.is_due or not self.is_guilty:
            return
        if self.kind == "loop":
            self.begin()
            while True:
                pass
        elif self.kind == "sleep":
            self.begin()
            parent = os.getppid()
            while os.getppid() == parent:
                time.sleep(0.5)
            os._exit(1)  # a loader process that sleeps would outlive its rank for ever
        elif self.kind == "slow" and self._last_slowed != self.step:
            self._last_slowed = self.step  # once a step, however many micro-steps there are
            pause_s = float(self.wish["share"]) * self.step_s
            self.begin(pause_ms=1e3 * pause_s, step_ms=1e3 * self.step_s)
            time.sleep(pause_s)

    def pause_once(self) -> None:
        """In an evaluation: once between two optimizer steps."""
        if self._last_slowed != self.step:
            self._last_slowed = self.step
            self.begin()
            time.sleep(float(self.wish["pause_s"]))

    def spoil(self, output: Any) -> Any:
        """A model's output, not a number any more; None: as it was."""
        if self.kind != "nan" or not self.is_due or not self.is_guilty or self._has_begun:
            return None
        self.begin()
        return _spoiled(output)

    def keep(self, num_mib: int) -> None:
        self.begin(mib=num_mib)
        self._hoard.append(bytearray(b"\1") * (num_mib * _MIB))  # written to, or it would take no room


def _do_nothing(fault: Fault) -> None:
    pass


def _send(fault: Fault, number: int) -> None:
    """From a thread, a moment later: a signal from outside comes in any phase."""

    def act() -> None:
        time.sleep(float(fault.wish.get("delay_s", 0.0)))
        fault.begin()
        os.kill(os.getpid(), number)

    if fault.step == int(fault.wish["step"]):
        threading.Thread(target=act, daemon=True).start()


def _throttle(fault: Fault) -> None:
    """Another process takes CPU time away from this one; it says when it has begun, and how."""
    if fault.step != int(fault.wish["step"]):
        return
    words = [str(os.getpid()), str(fault.wish["share"]), repr(fault.cores), str(fault.wish.get("by", ""))]
    throttle = Path(__file__).with_name("fault_throttle.py")
    # It carries no mark of the run and is in no group of its own: whoever ends the run must not leave the control group behind.
    process = subprocess.Popen(
        [sys.executable, str(throttle), *words],
        env={},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )

    def tell() -> None:
        assert process.stdout is not None
        by, limit = process.stdout.readline().split()
        fault.begin(by=by, limit=float(limit), cores=fault.cores, step_ms=1e3 * fault.step_s)

    threading.Thread(target=tell, daemon=True).start()


def _grow(fault: Fault) -> None:
    if len(fault._hoard) * int(fault.wish["mib"]) < int(fault.wish.get("most_mib", 4096)):
        fault.keep(int(fault.wish["mib"]))


def _fill_disk(fault: Fault) -> None:
    if fault.step != int(fault.wish["step"]):
        return
    path = Path(fault.wish["fill"])
    disk = os.statvfs(path.parent)
    if disk.f_blocks * disk.f_frsize > 1024 * _MIB:
        fault.write("refused", why="the file system is not a small one: somebody else may need it")
        return
    with open(path, "wb", buffering=0) as file:
        try:
            while True:
                file.write(b"\0" * 65536)
        except OSError as error:
            fault.begin(error=str(error))


def _forget_compiled(fault: Fault) -> None:
    """torch.compile begins anew, and finds nothing on the disk."""
    if fault.step == int(fault.wish["step"]):
        import torch
        import torch._inductor.config

        fault.begin()
        torch._inductor.config.force_disable_caches = True
        torch._dynamo.reset_code_caches()  # not reset(), which takes everybody's callbacks away as well


_AT_STEP: dict[str, Callable[[Fault], None]] = {
    "sigstop": lambda fault: _send(fault, signal.SIGSTOP),
    "sigkill": lambda fault: _send(fault, signal.SIGKILL),
    "throttle": _throttle,
    "memory": _grow,
    "disk_full": _fill_disk,
    "recompile": _forget_compiled,
}


def _collectives(fault: Fault) -> None:
    """On every rank, before the update: collectives of the user's own, of which the guilty rank makes something else."""
    import torch
    import torch.distributed as dist

    if fault.kind not in ("order", "skip") or fault.step != int(fault.wish["step"]) or not dist.is_initialized():
        return
    if fault.is_guilty:
        fault.begin()
    # Of two kinds: gloo aborts a rank where sizes do not match, and waits forever where kinds do not.
    if fault.kind == "skip":
        if not fault.is_guilty:
            dist.barrier()
        return
    pair = [lambda: dist.all_reduce(torch.zeros(4096)), dist.barrier]
    for call in reversed(pair) if fault.is_guilty else pair:
        call()


def _spoiled(value: Any) -> Any:
    import torch

    if isinstance(value, torch.Tensor):
        return value * float("nan") if value.is_floating_point() else value
    if isinstance(value, dict):
        return {name: _spoiled(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_spoiled(item) for item in value)
    return value


def plant() -> None:
    """Hooks torch, so that the fault of the environment strikes when its step comes."""
    # Taken out: what this rank starts, such as a compiler's processes, is no rank.
    wish = json.loads(os.environ.pop("FAULT"))
    log = Path(wish["log"])
    if log.exists() and '"began"' in log.read_text():
        return
    fault = Fault(wish, int(os.environ["RANK"]))
    fault.write("planted")
    _hook_optimizers(fault)
    _hook_modules(fault)
    _hook_backward(fault)
    _hook_data(fault)
    _hook_files(fault)


def _hook_optimizers(fault: Fault) -> None:
    from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

    register_optimizer_step_pre_hook(lambda *_: _collectives(fault))
    register_optimizer_step_post_hook(lambda *_: fault.end_step())


def _hook_modules(fault: Fault) -> None:
    """The outermost module that is called is the model."""
    import torch
    from torch.nn.modules import module as modules

    depth = 0

    def enter(module: Any, inputs: Any) -> None:
        nonlocal depth
        depth += 1
        if depth == 1:
            if torch.is_grad_enabled():
                fault.strike("forward")
            elif fault.kind == "long_evaluation":
                fault.pause_once()

    def leave(module: Any, inputs: Any, output: Any) -> Any:
        nonlocal depth
        depth -= 1
        return fault.spoil(output) if depth == 0 and torch.is_grad_enabled() else None

    # A hook costs every module a microsecond, and compiled code must not see any.
    if (fault.place == "forward" or fault.kind in ("nan", "long_evaluation")) and fault.is_guilty:
        modules.register_module_forward_pre_hook(enter)
        modules.register_module_forward_hook(leave, always_call=True)


def _hook_backward(fault: Fault) -> None:
    import torch

    run_backward = torch.autograd.backward

    def backward(tensors: Any, *arguments: Any, **options: Any) -> None:
        first = tensors if isinstance(tensors, torch.Tensor) else tensors[0]
        if fault.is_due:
            first.register_hook(lambda gradient: fault.strike("backward"))
        run_backward(tensors, *arguments, **options)

    if fault.place == "backward" and fault.is_guilty:
        torch.autograd.backward = backward


def _hook_data(fault: Fault) -> None:
    """Every class of data sets that is defined from now on: fetching is the first thing that a step does."""
    from torch.utils import data

    if fault.place not in ("data", "loader") or not fault.is_guilty:
        return
    depth = num_fetched = 0

    def watched(fetch: Callable[..., Any]) -> Callable[..., Any]:
        def get(self: Any, *arguments: Any) -> Any:
            nonlocal depth, num_fetched
            depth += 1
            try:
                if depth == 1 and data.get_worker_info() is None:
                    fault.strike("data")
                elif depth == 1:  # a loader process sees no optimizer: it counts what it fetches
                    num_fetched += 1
                    fault.step = num_fetched // int(fault.wish.get("fetches_per_step", 1))
                    fault.strike("loader")
                return fetch(self, *arguments)
            finally:
                depth -= 1

        return get

    def begin_class(cls: Any, /, **options: Any) -> None:
        super(data.Dataset, cls).__init_subclass__(**options)
        if "__getitem__" in vars(cls):
            cls.__getitem__ = watched(vars(cls)["__getitem__"])

    data.Dataset.__init_subclass__ = classmethod(begin_class)  # type: ignore[assignment]


def _hook_files(fault: Fault) -> None:
    """A file system that does not answer (stuck_save), or slowly (long_save)."""
    if fault.kind not in ("stuck_save", "long_save") or not fault.is_guilty:
        return
    fsync = os.fsync

    def slow_fsync(fd: Any) -> None:
        if fault.is_due:
            fault.begin()
            time.sleep(_FOREVER_S if fault.kind == "stuck_save" else float(fault.wish["pause_s"]))
        fsync(fd)

    os.fsync = slow_fsync
