"""The environment of the worker processes: which variables are set, taken out or kept, and why each one.

    environment = worker_environment(config.launch, world_size=2, num_gpus=0, inherited=os.environ)
    environment.notes[0]   -> Note(name='OMP_NUM_THREADS', value='1', origin='chosen', reason='2 cores for 2 workers')

A value in `launch.env` beats an inherited one, which beats a default of ours. Names are in `variables.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from paceline.config.nearest import nearest
from paceline.config.sections import Launch
from paceline.cores import cpu_count
from paceline.errors import Problem
from paceline.launch.variables import KNOWN, LEGACY, SILENT

_LAUNCH_ENV = "launch.env"
_INHERITED = "inherited"
_FAIL_FAST = {
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": (
        "3",
        "a failed collective ends the process and leaves time for the Flight Recorder's dump",
    ),
    "TORCH_NCCL_ENABLE_MONITORING": ("1", "a stuck NCCL watchdog ends the process"),
    "TORCH_NCCL_DUMP_ON_TIMEOUT": ("1", "the Flight Recorder is written when a collective times out"),
}
_RECORDER = ("2000", "the Flight Recorder remembers this many collectives")


@dataclass(frozen=True)
class Note:
    """One variable of the workers' environment: its value (None: taken out), where it comes from, why."""

    name: str
    value: str | None
    origin: str
    reason: str
    is_warning: bool = False
    is_renamed: bool = False
    """it was given under an old name"""


@dataclass
class WorkerEnvironment:
    """What differs from the inherited environment, and notes on everything that steers the workers."""

    assigned: dict[str, str] = field(default_factory=dict)
    removed: list[str] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)

    def apply(self, inherited: Mapping[str, str]) -> dict[str, str]:
        """The whole environment for the worker processes."""
        return {name: value for name, value in inherited.items() if name not in self.removed} | self.assigned

    def assign(self, name: str, value: str, origin: str, reason: str, *, given_as: str | None = None) -> None:
        self.assigned[name] = value
        is_renamed = given_as is not None and given_as != name
        words = f"{reason}, given as {given_as}, its old name" if is_renamed else reason
        self.notes.append(Note(name, value, origin, words, is_renamed=is_renamed))

    def remove(self, name: str, origin: str, reason: str) -> None:
        self.removed.append(name)
        self.notes.append(Note(name, None, origin, reason))

    def keep(self, name: str, value: str, reason: str) -> None:
        self.notes.append(Note(name, value, _INHERITED, reason))

    def warn(self, name: str, value: str, origin: str, reason: str) -> None:
        self.notes.append(Note(name, value, origin, reason, is_warning=True))


def check_env(env: Mapping[str, object], where: str = _LAUNCH_ENV) -> list[Problem]:
    """What is wrong with the names in `launch.env`: unknown ones, and an old and a new name for the same thing."""
    problems = []
    for name in env:
        today = LEGACY.get(name)
        if today in env:
            problems.append(
                Problem(f"{name} is the old name of {today}, and launch.env has both", where, f"keep {today} only")
            )
        elif today is None and name not in KNOWN:
            near = nearest(name, sorted(KNOWN | set(LEGACY)))
            do = f"did you mean {LEGACY.get(near, near)}?" if near else "take it out, or set it in your shell"
            problems.append(Problem(f"launch.env knows no variable {name}", where, do))
    return problems


def worker_environment(
    launch: Launch,
    world_size: int,
    num_gpus: int,
    inherited: Mapping[str, str],
    *,
    visible: Sequence[str] | None = None,
    flight_recorder: Path | None = None,
) -> WorkerEnvironment:
    """The workers' environment for a checked `launch` section.

    `visible` are the CUDA_VISIBLE_DEVICES entries that `launch.gpus` selected; `flight_recorder` is where the Flight Recorder
    writes (the rank is appended).
    """
    result = WorkerEnvironment()
    _set_devices(result, launch, inherited, visible)
    _set_threads(result, launch, world_size, inherited)
    _drop_launcher_options(result, inherited)
    _set_given(result, launch, num_gpus, inherited)
    _set_defaults(result, launch, num_gpus, inherited, flight_recorder)
    return result


def _set_devices(
    result: WorkerEnvironment, launch: Launch, inherited: Mapping[str, str], visible: Sequence[str] | None
) -> None:
    if launch.gpus is None:
        if "CUDA_VISIBLE_DEVICES" in inherited:
            result.keep("CUDA_VISIBLE_DEVICES", inherited["CUDA_VISIBLE_DEVICES"], "limits which GPUs the workers see")
        return
    tokens = list(visible) if visible is not None else [str(index) for index in launch.gpus]
    reason = f"launch.gpus={launch.gpus}" if launch.gpus else "launch.gpus=[]: CPU only"
    result.assign("CUDA_VISIBLE_DEVICES", ",".join(tokens), "launch.gpus", reason)
    if tokens and "CUDA_VISIBLE_DEVICES" not in inherited and "CUDA_DEVICE_ORDER" not in inherited:
        # CUDA counts the fastest GPU first by default; people count as nvidia-smi does.
        result.assign("CUDA_DEVICE_ORDER", "PCI_BUS_ID", "chosen", "GPU indices mean the same as in nvidia-smi")


def _set_threads(result: WorkerEnvironment, launch: Launch, world_size: int, inherited: Mapping[str, str]) -> None:
    name = "OMP_NUM_THREADS"
    if launch.omp_threads != "auto":
        result.assign(name, str(launch.omp_threads), "launch.omp_threads", f"launch.omp_threads={launch.omp_threads}")
    elif name in inherited:
        result.keep(name, inherited[name], "launch.omp_threads=auto takes the inherited value")
    else:
        cores = cpu_count()
        threads = max(1, cores // world_size)
        result.assign(name, str(threads), "chosen", f"{_count(cores, 'core')} for {_count(world_size, 'worker')}")


def _drop_launcher_options(result: WorkerEnvironment, inherited: Mapping[str, str]) -> None:
    """torchrun reads PET_… as defaults of its own flags: a setting nobody would see."""
    for name in sorted(inherited):
        if name.startswith("PET_"):
            result.remove(
                name, _INHERITED, "torchrun would take it for one of its flags; Paceline sets them all itself"
            )


def _set_given(result: WorkerEnvironment, launch: Launch, num_gpus: int, inherited: Mapping[str, str]) -> None:
    """Variables that somebody gave, in `launch.env` or in the shell, under today's names."""
    given = {LEGACY.get(name, name): (name, str(value)) for name, value in launch.env.items()}
    for today, (name, value) in sorted(given.items()):
        result.assign(today, value, _LAUNCH_ENV, "set by the configuration", given_as=name)
        if num_gpus == 0 and today.startswith(("NCCL_", "TORCH_NCCL_")):
            result.warn(today, value, _LAUNCH_ENV, "has no effect here: there is no GPU, and gloo does not read it")
    for name, value in sorted(inherited.items()):
        older = LEGACY.get(name)
        if older is not None:
            _rename_inherited(result, name, older, value, given, inherited)
        elif name in KNOWN and name not in given:
            result.keep(name, value, "set in the shell")
        elif name.startswith(("NCCL_", "TORCH_NCCL_")) and name not in KNOWN | SILENT:
            near = nearest(name, sorted(KNOWN))
            hint = f"; did you mean {near}?" if near else ""
            result.warn(name, value, _INHERITED, f"not a variable Paceline knows, so it may have no effect{hint}")
    mode = result.assigned.get("TORCH_NCCL_ASYNC_ERROR_HANDLING") or inherited.get("TORCH_NCCL_ASYNC_ERROR_HANDLING")
    if mode in ("1", "2"):
        origin = _LAUNCH_ENV if "TORCH_NCCL_ASYNC_ERROR_HANDLING" in given else _INHERITED
        reason = "aborts the communicators first, which defeats the Flight Recorder's dump; 3 keeps it"
        result.warn("TORCH_NCCL_ASYNC_ERROR_HANDLING", mode, origin, reason)


def _rename_inherited(
    result: WorkerEnvironment,
    name: str,
    today: str,
    value: str,
    given: Mapping[str, object],
    inherited: Mapping[str, str],
) -> None:
    """The old name has to go in any case: torch prefers PYTORCH_CUDA_ALLOC_CONF to the new name where both are set."""
    if today in given:
        result.remove(name, _INHERITED, f"launch.env sets {today}, its name today")
        return
    result.remove(name, _INHERITED, f"old name of {today}")
    if today in inherited and inherited[today] != value and name != "PYTORCH_CUDA_ALLOC_CONF":
        result.warn(name, value, _INHERITED, f"set beside {today}={inherited[today]}, which is its name today and wins")
    else:
        result.assign(today, value, _INHERITED, "set in the shell", given_as=name)


def _set_defaults(
    result: WorkerEnvironment, launch: Launch, num_gpus: int, inherited: Mapping[str, str], flight_recorder: Path | None
) -> None:
    defaults: dict[str, tuple[str, str]] = {}
    if num_gpus:
        defaults |= _FAIL_FAST
    if "TORCH_NCCL_TRACE_BUFFER_SIZE" not in inherited.keys() | result.assigned.keys():
        defaults["TORCH_FR_BUFFER_SIZE"] = _RECORDER
    if flight_recorder is not None and num_gpus:
        defaults["TORCH_FR_DUMP_TEMP_FILE"] = (
            str(flight_recorder),
            "the Flight Recorder writes into the run directory",
        )
    for name, (value, reason) in defaults.items():
        if name not in result.assigned and name not in inherited:
            result.assign(name, value, "default", reason)
    if launch.debug:
        _set_debug(result, num_gpus)


def _set_debug(result: WorkerEnvironment, num_gpus: int) -> None:
    wanted = {"TORCH_DISTRIBUTED_DEBUG": "DETAIL"} | ({"NCCL_DEBUG": "INFO"} if num_gpus else {})
    for name, value in wanted.items():
        if name not in result.assigned:
            result.assign(name, value, "launch.debug", "launch.debug=true: collectives check shapes and order")


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
