"""Seeing what enters a layer's linears while it runs."""

from collections.abc import Callable, Iterable, Iterator, Sequence
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
W = TypeVar("W", bound=Watcher)


@contextmanager
def watching(step: LayerStep, groups: Sequence[Sequence[Linear]], make: Callable[[], W]) -> Iterator[list[W]]:
    """Yield one watcher per fused group of the layer; padding is left out."""
    watchers = [make() for _ in groups]
    handles = []
    for group, watcher in zip(groups, watchers, strict=True):
        module = submodule(step, group[0])

        def hook(_: torch.nn.Module, inputs: tuple[torch.Tensor, ...], watcher: W = watcher) -> None:
            watcher.add(step.running().tokens(inputs[0]))

        handles.append(module.register_forward_pre_hook(hook))
    try:
        yield watchers
    finally:
        for handle in handles:
            handle.remove()


def by_linear(groups: Sequence[Sequence[Linear]], values: Iterable[V]) -> dict[str, V]:
    """One value per fused group, under the full name of each of its linears: they share their input."""
    return {linear.name: value for group, value in zip(groups, values, strict=True) for linear in group}


def submodule(step: LayerStep, linear: Linear) -> torch.nn.Module:
    """The module of ``linear`` in the layer."""
    return step.module.get_submodule(linear.name.removeprefix(f"{LAYER_PREFIX}{step.number}."))
