"""Hidden states at one layer boundary, for every batch of a set: on the GPU while it has room, then in host memory up
to a limit, beyond it on disk.
"""

import shutil
import tempfile
from collections.abc import Hashable
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
import torch

from clefquant.release.abandoned import SUFFIX, in_use, remove_abandoned

#: Hidden states kept in host memory unless told otherwise; a 9B model needs 0.5 GB for 128 records of 512 tokens.
DEFAULT_CACHE_BYTES = 4 << 30
#: Share of a GPU's free memory that states may take; copying them to the host and back costs more than a layer.
_DEVICE_SHARE = 0.25
_PREFIX = "hidden-states-"


class States:
    """Tensors by key. A context manager: leaving it removes what was written to disk."""

    def __init__(self, cache_bytes: int, folder: Path | None = None) -> None:
        self._limit = cache_bytes
        self._memory: dict[Hashable, torch.Tensor] = {}
        self._disk: dict[Hashable, tuple[Path, torch.dtype, torch.Size]] = {}
        self._folder = folder or Path(tempfile.gettempdir())
        self._temporary: Path | None = None
        self._opened = ExitStack()
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
        self._opened.close()

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
            remove_abandoned(self._folder, f"{_PREFIX}*{SUFFIX}")
            made = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=self._folder))
            self._temporary = self._opened.enter_context(in_use(made))
            self._opened.callback(shutil.rmtree, self._temporary)
        path = self._temporary / str(self._written)
        self._written += 1
        # not torch.save, which hides why a write failed
        path.write_bytes(tensor.cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
        self._disk[key] = path, tensor.dtype, tensor.shape

    def get(self, key: Hashable, device: torch.device) -> torch.Tensor:
        """The tensor of ``key``, on ``device``."""
        if key in self._memory:
            return self._memory[key].to(device)
        path, dtype, shape = self._disk[key]
        return torch.from_numpy(np.fromfile(path, np.uint8)).view(dtype).view(shape).to(device)

    def drop(self, key: Hashable) -> None:
        """Forget ``key``; nothing happens when it is unknown."""
        if (tensor := self._memory.pop(key, None)) is not None:
            if tensor.is_cuda:
                self._device_room = self._room(tensor.device) + tensor.nbytes
            else:
                self._used -= tensor.nbytes
        elif (stored := self._disk.pop(key, None)) is not None:
            stored[0].unlink()

    def _room(self, device: torch.device) -> int:
        """Bytes of GPU memory that states may still take."""
        if self._device_room is None:
            self._device_room = int(_DEVICE_SHARE * torch.cuda.mem_get_info(device)[0])
        return self._device_room
