"""What computes each attention of a run, in one line: written when it begins, and held against what a profile of it shows. No torch.

    flash                                                             every attention, in training and in evaluation
    training math, evaluation flash                                   one for each phase
    compressed nsa_range, selected nsa_chosen, window torch           one for each attention of a model that has several

The last word of a part is what computes: a backend, the beginning of the names of a recipe's own kernels, or torch, for what is written in
torch's operators. The words before it say of which phase and which attention.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from paceline.engine.kernels import Seen, is_own
from paceline.workload import AttentionCall

_WRITTEN_OUT = {"math", "eager"}
_PHASES = ("training", "evaluation")


def write_promise(computed: Iterable[tuple[AttentionCall, str]]) -> str:
    """From each attention and what computes it; phases are named where they differ."""
    by_name: dict[str, dict[str, str]] = {}
    for call, kernel in computed:
        by_name.setdefault(call.name, {})[call.phase] = kernel
    parts = []
    for name, phases in by_name.items():
        kernels = set(phases.values())
        told = phases.items() if len(kernels) > 1 else [("", kernels.pop())]
        parts += [" ".join(filter(None, (phase, name, kernel))) for phase, kernel in told]
    return ", ".join(parts)


def read_promise(promised: str) -> Mapping[str, str]:
    """What computes each attention of a training, by its name; empty where it has none."""
    found = {}
    for part in promised.split(","):
        *about, kernel = part.split()
        if "evaluation" not in about:
            found[" ".join(word for word in about if word not in _PHASES)] = kernel
    return found


def name_attentions(promised: str, backend: str) -> list[str]:
    """Which attentions a backend is promised for, where they have names. Those promised to torch do not say to which of its own."""
    return [name for name, kernel in read_promise(promised).items() if name and kernel == backend]


def check_promise(promised: str, seen: Iterable[Seen]) -> str:
    """What is wrong with it as the kernels of a training show it; empty: nothing."""
    wanted = read_promise(promised)
    backends = {each.backend for each in seen}
    there = ", ".join(sorted(backends)) or "no kernel of any attention"
    missing = {name: kernel for name, kernel in wanted.items() if not _is_kept(kernel, backends)}
    if any(is_own(kernel) for kernel in wanted.values()):
        # What torch's operators write out shows nothing of its own beside other kernels.
        missing = {name: kernel for name, kernel in missing.items() if kernel != "torch"}
    if missing:
        told = ", ".join(dict.fromkeys(f"{kernel} for {name}" if name else kernel for name, kernel in missing.items()))
        was = "were" if len(missing) > 1 else "was"
        return f"{told} {was} promised for training, and the profile shows {there}"
    # A branch that fell back in silence leaves the kernels of the others to be seen.
    strangers = sorted(backend for backend in backends if not is_own(backend))
    if strangers and all(is_own(kernel) for kernel in wanted.values()):
        return f"{promised} was promised for training, and the profile shows {', '.join(strangers)} besides"
    return ""


def _is_kept(kernel: str, backends: set[str]) -> bool:
    if kernel == "torch":
        return any(not is_own(backend) for backend in backends)
    # A replayed graph shows the softmax of the math backend alone.
    return kernel in backends or (kernel in _WRITTEN_OUT and bool(backends & _WRITTEN_OUT))
