"""Hidden states at one layer boundary, for every batch of a set: on the GPU while it has room, then in host memory up
to a limit, beyond it on disk.
"""

import tempfile
from collections.abc import Hashable
from pathlib import Path
from types import TracebackType
from typing import Self

import torch

#: Hidden states kept in host memory unless told otherwise; a 9B model needs 0.5 GB for 128 records of 512 tokens.
DEFAULT_CACHE_BYTES = 4 << 30
#: Share of a GPU's free memory that states may take; copying them to the host and back costs more than a layer.
_DEVICE_SHARE = 0.25


class States:
    """Tensors by key. A context manager: leaving it removes what was written to disk."""

    def __init__(self, cache_bytes: int, folder: Path | None = None) -> None:
        self._limit = cache_bytes
        self._memory: dict[Hashable, torch.Tensor] = {}
        self._disk: dict[Hashable, Path] = {}
        self._folder = folder
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        self._used, self._written = 0, 0
        self._device_room: int | None = None

    def __enter__(self) -> Self:
        """Nothing is allocated before the first tensor arrives."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Forget every tensor."""
        self._memory.clear()
        if self._temporary is not None:
            self._temporary.cleanup()

    @property
    def spilled(self) -> int:
        """How many tensors lie on disk now."""
        return len(self._disk)

    def put(self, key: Hashable, tensor: torch.Tensor) -> None:
        """Keep ``tensor`` under ``key`` (replacing what was there)."""
        self.drop(key)
        size = tensor.nbytes
        if tensor.is_cuda and size <= self._room(tensor.device):
            self._memory[key] = tensor
            self._device_room = self._room(tensor.device) - size
            return
        if self._used + size <= self._limit:
            self._memory[key] = tensor.cpu()
            self._used += size
            return
        if self._temporary is None:
            self._temporary = tempfile.TemporaryDirectory(prefix="hidden-states-", dir=self._folder)
        self._disk[key] = Path(self._temporary.name) / f"{self._written}.pt"
        self._written += 1
        torch.save(tensor.cpu(), self._disk[key])

    def get(self, key: Hashable, device: torch.device) -> torch.Tensor:
        """The tensor of ``key``, on ``device``."""
        if key in self._memory:
            return self._memory[key].to(device)
        tensor: torch.Tensor = torch.load(self._disk[key], map_location=device)
        return tensor

    def drop(self, key: Hashable) -> None:
        """Forget ``key``; nothing happens when it is unknown."""
        if (tensor := self._memory.pop(key, None)) is not None:
            if tensor.is_cuda:
                self._device_room = self._room(tensor.device) + tensor.nbytes
            else:
                self._used -= tensor.nbytes
        elif (path := self._disk.pop(key, None)) is not None:
            path.unlink()

    def _room(self, device: torch.device) -> int:
        """Bytes of GPU memory that states may still take."""
        if self._device_room is None:
            self._device_room = int(_DEVICE_SHARE * torch.cuda.mem_get_info(device)[0])
        return self._device_room
