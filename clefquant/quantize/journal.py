"""What running layer by layer asks of the record of its own progress."""

from collections.abc import Callable, Iterable
from typing import Protocol

import torch


class Journal(Protocol):
    """What the layer runner needs of it. ``layer``: the first that is not finished."""

    layer: int

    def state(self, batch: int) -> torch.Tensor:
        """Hidden states [B, L, H] of a batch that enter ``layer``."""

    def finish(self, layer: int, states: Callable[[], Iterable[tuple[int, torch.Tensor]]]) -> None:
        """Everything of ``layer`` is written; ``states``: number and tensor of each batch that enters the
        next one."""


class _Forgetful:
    layer = 0

    def state(self, batch: int) -> torch.Tensor:
        raise AssertionError("nothing was kept")

    def finish(self, layer: int, states: Callable[[], Iterable[tuple[int, torch.Tensor]]]) -> None: ...


NO_JOURNAL: Journal = _Forgetful()
