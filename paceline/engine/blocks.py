"""The blocks of a model: the elements of its lists of modules, by which it is computed again, or sharded."""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn


def find_blocks(model: nn.Module, prefix: str = "") -> Iterator[tuple[str, nn.Module]]:
    """(name, block) of the outermost elements of nn.ModuleLists; a list is never called itself, its elements are."""
    for name, child in model.named_children():
        path = f"{prefix}{name}"
        is_container = isinstance(child, nn.ModuleList | nn.ModuleDict)
        if isinstance(model, nn.ModuleList) and not is_container:
            yield path, child
        else:
            yield from find_blocks(child, f"{path}.")
