"""torch.compile of the model's forward, with its backward: announced while it lasts, and given up by all ranks alike.

    compilation = Compilation(context, strategy.model, dynamic=False)
    compilation.give_up_together()      # after a throw-away iteration, and whenever all ranks are at one place
    with compilation.eagerly(): …       # evaluation: the digits that `paceline evaluate` finds again

The compiled call sits inside whatever wraps the model. Where compiling fails, at the start or in the middle of a run, the same call goes on
eagerly with the same random numbers: no collective is missed, and none is made twice.
"""

from __future__ import annotations

import contextlib
import functools
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from types import CodeType
from typing import Any

import torch
import torch.distributed as dist

from paceline.config.sections import RunConfig
from paceline.engine.blocks import find_blocks
from paceline.engine.context import Context
from paceline.engine.rows import RowTable

BACKEND = "inductor"
"""What compiles; torch's own name for it."""


def choose_dynamic(requested: bool | str, device_type: str, has_static_shapes: bool) -> tuple[bool, str]:
    """(whether kernels take any shape, reason). Never torch's own "as the shapes come": after a resume they come in another order."""
    if requested != "auto":
        return bool(requested), "as requested"
    if device_type == "cuda" and has_static_shapes:
        return False, "batches keep their shapes: one set of kernels for each"
    return True, "batches change their shapes"


class Compilation:
    """The compiled forward of one model on one rank."""

    def __init__(self, context: Context, model: torch.nn.Module, dynamic: bool) -> None:
        config = context.config.train.compile
        self._context = context
        self._pulse = context.pulse
        self._eager: Callable[..., Any] = model._call_impl
        options: dict[str, Any] = {"backend": BACKEND, "dynamic": dynamic}
        if BACKEND == "inductor":
            options["mode"] = config.mode

        self._is_compiled = False
        """in a forward whose blocks are the compiled ones"""
        blocks = dict(find_blocks(model)) if config.scope == "blocks" else {}
        self._compiled = self._compile_blocks(blocks, options) if blocks else _compile(model, options)
        if config.scope == "blocks":
            reason = f"{len(blocks)} of them" if blocks else "the model has none: no nn.ModuleList"
            context.events.choice("train.compile.scope", config.scope, "blocks" if blocks else "model", reason)
        for table in model.modules():
            if isinstance(table, RowTable):
                # Compilers are made for dense gradients: a table is looked up between two parts.
                vars(table)["forward"] = torch.compiler.disable(table.forward)  # type: ignore[no-untyped-call]
        self._device = context.ranks.device
        self._is_paused = False
        self._is_given_up = False
        """by all ranks"""
        self._failure: str | None = None
        """why this rank runs eagerly"""
        self._interrupted: tuple[int, str] = (0, "start")
        self._began = 0.0
        self._seconds = 0.0
        self._num_graphs = 0
        self._has_compiled = False
        self._has_worked = False
        _configure(context.config)
        self.announce()
        # Where nn.Module.compile puts it: names, state and wrappers stay as they are.
        model._compiled_call_impl = self._call

    @contextlib.contextmanager
    def eagerly(self) -> Iterator[None]:
        """Calls of the model inside run as written."""
        self._is_paused = True
        try:
            yield
        finally:
            self._is_paused = False

    def settle(self) -> None:
        """After a throw-away iteration: whether there is anything compiled to go on with, the same on every rank, and recorded."""
        self.give_up_together()
        self._has_worked = False  # no step has begun yet
        if self._is_given_up:
            return
        if self._has_compiled:
            self._context.events.choice("train.compile.enabled", True, True, "as requested")
        else:
            why = "the loss never called the model itself, or TORCHDYNAMO_DISABLE is set"
            self._context.events.write("warning", what="nothing was compiled", why=why)
            self._context.events.choice("train.compile.enabled", True, False, why)

    def announce(self) -> None:
        """Has what compiles tell us of it: from the start, and again if torch._dynamo.reset() has forgotten that it should."""
        from torch._dynamo.callback import callback_handler

        if self._on_start not in callback_handler.start_callbacks:
            callback_handler.register_start_callback(self._on_start)
            callback_handler.register_end_callback(self._on_end)

    def has_worked(self) -> bool:
        """Whether anything was compiled, or tried to be, since this was last asked."""
        worked, self._has_worked = self._has_worked, False
        return worked

    def give_up_together(self) -> None:
        """Where compiling failed on one rank, all of them go on eagerly from here; the same call on every rank, a collective."""
        if self._is_given_up:
            return
        failed = (
            self._context.ranks.gather_floats([float(self._failure is not None)])[:, 0].nonzero().flatten().tolist()
        )
        if not failed:
            return
        self._is_given_up = True
        why = self._failure or f"compiling failed on rank {', '.join(map(str, failed))}, whose log has the reason"
        self._context.events.write("warning", what="training goes on without torch.compile", why=why)
        self._context.events.choice("train.compile.enabled", True, False, why)

    def close(self) -> None:
        """Takes the announcements back: another run in this process has its own."""
        from torch._dynamo.callback import callback_handler

        with contextlib.suppress(ValueError):  # torch._dynamo.reset() has forgotten them already
            callback_handler.remove_start_callback(self._on_start)
            callback_handler.remove_end_callback(self._on_end)

    def _compile_blocks(self, blocks: Mapping[str, torch.nn.Module], options: dict[str, Any]) -> Callable[..., Any]:
        """The forward of the model as it is written, in which every block is a compiled one."""
        for name, block in blocks.items():
            compiled = _compile(block, options, of=name.rpartition(".")[0])
            block._compiled_call_impl = functools.partial(self._call_block, block._call_impl, compiled)

        def forward(*args: Any, **kwargs: Any) -> Any:
            self._is_compiled = True
            try:
                return self._eager(*args, **kwargs)
            finally:
                self._is_compiled = False

        return forward

    def _call_block(self, eager: Callable[..., Any], compiled: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return (compiled if self._is_compiled else eager)(*args, **kwargs)

    def _call(self, *args: Any, **kwargs: Any) -> Any:
        if self._is_paused or self._is_given_up or self._failure is not None:
            return self._eager(*args, **kwargs)
        try:
            return self._compiled(*args, **kwargs)
        except (torch.OutOfMemoryError, MemoryError):
            raise
        except Exception as error:
            # Whatever is raised in a call that compiled something: if it is the model's own mistake, it is raised again.
            if not (self._num_graphs or _is_of_compiler(error)):
                raise
            self._failure = _reason(error)
            # Whole, in this rank's log: an assertion inside the compiler says nothing but where it stands.
            print(f"torch.compile failed, step {self._pulse.step}: {traceback.format_exc()}", flush=True)
            self._reseed()
            return self._eager(*args, **kwargs)
        finally:
            self._report()

    def _reseed(self) -> None:
        """What was drawn before the failure is drawn again: the generators were seeded right before this forward."""
        generators = [torch.default_generator]
        if self._device.type == "cuda":
            generators.append(torch.cuda.default_generators[self._device.index])
        for generator in generators:
            generator.manual_seed(generator.initial_seed())

    def _on_start(self, _: Any) -> None:
        self._interrupted, self._began = (self._pulse.step, self._pulse.phase), time.perf_counter()
        self._pulse.beat(self._pulse.step, "compile")

    def _on_end(self, _: Any) -> None:
        self._seconds += time.perf_counter() - self._began
        self._num_graphs += 1
        self._has_worked = True
        self._pulse.beat(*self._interrupted)

    def _report(self) -> None:
        """One event for all the parts of one forward."""
        if self._num_graphs:
            self._has_compiled = True
            fields = {"seconds": round(self._seconds, 3), "parts": self._num_graphs}
            self._context.events.write("compile", step=self._pulse.step, **fields)
            self._seconds, self._num_graphs = 0.0, 0


def _compile(module: torch.nn.Module, options: dict[str, Any], of: str = "") -> Callable[..., Any]:
    """The compiled call of a module; what is compiled of one serves all others with the same `of` that are built alike."""

    # A function of ours around it: the compiler passes over frames of torch itself, such as the forward of an nn.Sequential.
    def forward(*args: Any, **kwargs: Any) -> Any:
        return module._call_impl(*args, **kwargs)  # type: ignore[no-untyped-call]

    # By its code the compiler knows a function again, and counts the versions of it: each list of blocks has one of its own.
    forward.__code__ = _CODES.setdefault(of, forward.__code__.replace(co_name=f"forward of {of or 'the model'}"))
    compiled: Callable[..., Any] = torch.compile(forward, **options)
    return compiled


_CODES: dict[str, CodeType] = {}


def _configure(config: RunConfig) -> None:
    import torch._dynamo.config
    import torch._functorch.config

    # More shapes than these are not worth compiling for; said, rather than left to a line in a log.
    torch._dynamo.config.fail_on_recompile_limit_hit = True
    # Cuts at the borders of DDP's buckets, so that gradients travel before backward has ended; not smaller ones than its first, and not
    # what is computed again in backward.
    is_large = config.parallel.bucket_mb * 2**20 >= dist._DEFAULT_FIRST_BUCKET_BYTES  # type: ignore[attr-defined]
    torch._dynamo.config.optimize_ddp = is_large and not config.train.activation_checkpointing
    # Together with the forward: a backward that cannot be compiled must be known before any gradient has travelled.
    torch._functorch.config.force_non_lazy_backward_lowering = True


def _is_of_compiler(error: Exception) -> bool:
    from torch._dynamo.exc import FailOnRecompileLimitHit, TorchDynamoException

    return isinstance(error, FailOnRecompileLimitHit | TorchDynamoException)


def _reason(error: Exception) -> str:
    from torch._dynamo.exc import FailOnRecompileLimitHit

    if isinstance(error, FailOnRecompileLimitHit):
        return (
            f"a part of the model was compiled {torch._dynamo.config.recompile_limit} times, and met yet another shape"
        )
    # The first line names the backend, the second what went wrong there.
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {' '.join(lines[:2])}"[:300]
