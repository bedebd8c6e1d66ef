"""Seeing what enters a layer's linears while it runs."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol, TypeVar

import torch

from clefquant.quantize.layerwise import LayerStep
from clefquant.release.units import LAYER_PREFIX, Linear


class Watcher(Protocol):
    """Takes the token vectors [T, I] that enter a fused group, batch by batch."""

    def add(self, x: torch.Tensor) -> None:
        """Take one batch."""


V = TypeVar("V")


@contextmanager
def watching(step: LayerStep, groups: Sequence[Sequence[Linear]], watchers: Sequence[Watcher]) -> Iterator[None]:
    """Show each fused group's inputs to its watcher while the layer runs; padding is left out."""
    handles = []
    for group, watcher in zip(groups, watchers, strict=True):
        module = submodule(step, group[0])

        def hook(_: torch.nn.Module, inputs: tuple[torch.Tensor, ...], watcher: Watcher = watcher) -> None:
            watcher.add(step.running().tokens(inputs[0]))

        handles.append(module.register_forward_pre_hook(hook))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def by_linear(groups: Sequence[Sequence[Linear]], values: Iterable[V]) -> dict[str, V]:
    """One value per fused group, under the full name of each of its linears: they share their input."""
    return {linear.name: value for group, value in zip(groups, values, strict=True) for linear in group}


def submodule(step: LayerStep, linear: Linear) -> torch.nn.Module:
    """The module of ``linear`` in the layer."""
    return step.module.get_submodule(linear.name.removeprefix(f"{LAYER_PREFIX}{step.number}."))
