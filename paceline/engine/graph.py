"""Forward and backward of a micro-step as one CUDA graph: recorded once per shape of its batch, replayed with one launch.

Small models wait for kernels to be launched, hundreds a step, and not for what these compute.

    graphs = Graphs(compute, model, Recorder(device), events, "auto")
    graph = graphs.find(batch)               # None: compute(batch) as ever
    loss_sum, weight = graph.replay(batch)
    graph.leave_gradients(is_last=True)      # they are where backward leaves them

Whether a micro-step is replayed follows from the names, shapes and types of its batch, from their first sight on: a resumed run replays
what the uninterrupted one did. Random numbers follow torch's generator as it is seeded before the replay.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeVar

import torch

from paceline.config.sections import Train
from paceline.telemetry.events import EventLog

Sums = tuple[torch.Tensor, torch.Tensor]
"""(sum of losses, weight) of a micro-batch"""
Result = TypeVar("Result")
Signature = tuple[tuple[str, tuple[int, ...], torch.dtype], ...]

_WARM_UPS = 3
"""Before recording: libraries set themselves up, and kernels are chosen and compiled, none of which can be recorded."""
_MOST = 8
"""A full batch and the last one of an epoch, each cut into parts of two sizes at most, need half of these."""


def choose_graph(
    train: Train,
    device_type: str,
    has_group: bool,
    precision: str,
    has_static_shapes: bool,
    draws_numbers: bool = True,
    contrasts: bool = False,
    has_tables: bool = False,
) -> tuple[bool, str]:
    """(whether to use graphs, reason)."""
    requested = train.graph
    if requested is False:
        return False, "as requested"
    if device_type != "cuda":
        return False, "no GPU"
    if has_group:
        return False, "gradients travel between ranks during backward"
    if precision == "fp16":
        return False, "fp16 changes the scale of its loss from step to step"
    if train.compile.enabled and draws_numbers:
        return False, "recorded, a compiled model with dropout did not repeat itself from one start to the next"
    if train.activation_checkpointing:
        return False, "activation checkpointing asks for the generator's state, which cannot be recorded"
    if contrasts:
        return False, "between forward and backward comes the loss of the whole step"
    if has_tables:
        return False, "how many rows of its tables a step touches differs from step to step"
    if not has_static_shapes:
        return False, "batches of this recipe change their shapes"
    return (
        True,
        "as requested" if requested is True else "batches keep their shapes, and one launch takes hundreds' place",
    )


def signature_of(batch: Mapping[str, torch.Tensor]) -> Signature:
    """What has to be equal for one recording to serve two batches."""
    return tuple((name, tuple(value.shape), value.dtype) for name, value in sorted(batch.items()))


def add_gradients(
    parameters: Sequence[torch.nn.Parameter], gradients: Sequence[torch.Tensor], *, is_last: bool
) -> None:
    """Adds a replay's gradients to those that the micro-steps before it left, as backward does.

    The next replay, of whichever graph, overwrites `gradients`: only after the last micro-step of a step may they be used as they are.
    """
    sums, terms = [], []
    for parameter, gradient in zip(parameters, gradients, strict=True):
        if parameter.grad is None:
            parameter.grad = gradient if is_last else gradient.clone()
        else:
            sums.append(parameter.grad)
            terms.append(gradient)
    if sums:
        torch._foreach_add_(sums, terms)


class Records(Protocol):
    """Runs work on a stream of its own, and records it there."""

    @property
    def scratch_bytes(self) -> int:
        """Memory that recordings keep for what they compute on the way; no allocator counts it as allocated."""
        ...

    def warm_up(self, compute: Callable[[], object]) -> None: ...

    def record(self, compute: Callable[[], Result]) -> tuple[Callable[[], None], Result]:
        """What runs the recorded work again, and the tensors that it leaves its results in. Nothing has run yet."""
        ...


class Recorder:
    """Records on CUDA. All recordings share one pool of memory: one replay at a time, its results used before the next."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._pool = torch.cuda.graph_pool_handle()
        self.scratch_bytes = 0

    def warm_up(self, compute: Callable[[], object]) -> None:
        current = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            compute()
        current.wait_stream(self._stream)

    def record(self, compute: Callable[[], Result]) -> tuple[Callable[[], None], Result]:
        graph = torch.cuda.CUDAGraph()
        current = torch.cuda.current_stream(self._device)
        try:
            # Other threads (a save, the loader's pinning) go on meanwhile: what they ask of CUDA is no reason to fail.
            with torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"):
                unused_bytes = self._unused_bytes()
                result = compute()
        except RuntimeError:
            # What a failed recording leaves behind in torch: its stream as the current one, and a generator that refuses to draw.
            torch.cuda.set_stream(current)
            generator = torch.cuda.default_generators[current.device_index]
            generator.graphsafe_set_state(generator.clone_state())
            raise
        self.scratch_bytes += self._unused_bytes() - unused_bytes
        return graph.replay, result

    def _unused_bytes(self) -> int:
        return torch.cuda.memory_reserved(self._device) - torch.cuda.memory_allocated(self._device)


class Graph:
    """One recording, with the places that it reads its batch from and leaves its results in."""

    def __init__(
        self,
        replay: Callable[[], None],
        inputs: Mapping[str, torch.Tensor],
        sums: Sums,
        parameters: Sequence[torch.nn.Parameter],
        gradients: Sequence[torch.Tensor],
    ) -> None:
        self._replay = replay
        self._inputs = inputs
        self.sums = sums
        """of the last replay; good until the next one, of whichever graph"""
        self._parameters = parameters
        self._gradients = gradients

    def replay(self, batch: Mapping[str, torch.Tensor]) -> Sums:
        """Forward and backward of a batch, wherever that is."""
        for name, place in self._inputs.items():
            place.copy_(batch[name], non_blocking=True)
        self._replay()
        return self.sums

    def leave_gradients(self, *, is_last: bool) -> None:
        """The last replay's gradients, to the parameters."""
        add_gradients(self._parameters, self._gradients, is_last=is_last)

    def drop_gradients(self) -> None:
        for parameter in self._parameters:
            parameter.grad = None


class Graphs:
    """The graphs of one run, by the signatures of their batches."""

    def __init__(
        self,
        compute: Callable[[Mapping[str, torch.Tensor]], Sums],
        model: torch.nn.Module,
        recorder: Records,
        events: EventLog,
        requested: bool | str,
    ) -> None:
        self._compute = compute
        self._model = model
        self._device = next(model.parameters()).device
        self._recorder = recorder
        self._events = events
        self._requested = requested
        self._graphs: dict[Signature, Graph] = {}
        self._is_off = False
        self._is_full = False

    @property
    def scratch_bytes(self) -> int:
        return 0 if self._is_off else self._recorder.scratch_bytes

    def find(self, batch: Mapping[str, torch.Tensor]) -> Graph | None:
        """The graph for such batches, recorded if they are new; None where there is none, which is told."""
        if self._is_off:
            return None
        signature = signature_of(batch)
        graph = self._graphs.get(signature)
        if graph is None and len(self._graphs) < _MOST:
            graph = self._record(batch)
            if graph is not None:
                self._graphs[signature] = graph
        elif graph is None and not self._is_full:
            self._is_full = True
            self._events.write(
                "warning",
                what="some steps run without a CUDA graph",
                why=f"batches of more than {_MOST} shapes, though the recipe says that they keep theirs",
            )
        return graph

    def _record(self, batch: Mapping[str, torch.Tensor]) -> Graph | None:
        """Leaves weights, buffers and gradients as they were; draws random numbers: seed afterwards."""
        parameters = [p for p in self._model.parameters() if p.requires_grad]
        gradients = [p.grad for p in parameters]
        buffers = [(buffer, buffer.clone()) for buffer in self._model.buffers()]
        inputs = {name: value.to(self._device, copy=True) for name, value in batch.items()}

        def compute() -> Sums:
            for parameter in parameters:
                parameter.grad = None
            return self._compute(inputs)

        try:
            for _ in range(_WARM_UPS):
                self._recorder.warm_up(compute)
            try:
                replay, sums = self._recorder.record(compute)
            except RuntimeError as error:
                self.give_up(f"the step cannot be recorded: {error}")
                return None
            # A parameter without a gradient has no part in this loss, and stays without.
            found = [(p, p.grad) for p in parameters if p.grad is not None]
            return Graph(replay, inputs, sums, [p for p, _ in found], [gradient for _, gradient in found])
        finally:
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter.grad = gradient
            with torch.no_grad():
                for buffer, before in buffers:
                    buffer.copy_(before)

    def give_up(self, reason: str) -> None:
        """No half measures: graphs recorded before the failure no longer follow the generator."""
        self._is_off = True
        self._graphs = {}
        why = reason.strip().splitlines()[0]
        self._events.write("warning", what="training goes on without CUDA graphs", why=why)
        self._events.choice("train.graph", self._requested, False, why)
