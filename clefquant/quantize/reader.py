"""Reading source weights ahead of the layer that runs."""

from collections.abc import Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import torch

from clefquant.quantize.model import read_tensor
from clefquant.release.release import Release
from clefquant.release.units import LAYER_PREFIX

#: Copying out of the page cache is bound by one core; a GPU waits for several of them.
_GPU_THREADS = 8


def read_prefix(release: Release, prefix: str, device: torch.device) -> dict[str, torch.Tensor]:
    """Every tensor whose full name starts with ``prefix``, as stored, on ``device``."""
    pinned = device.type == "cuda"
    return {
        name: read_tensor(info, pinned=pinned).to(device, non_blocking=True)
        for name, info in release.tensors.items()
        if name.startswith(prefix)
    }


def read_layers(
    release: Release, numbers: Sequence[int], device: torch.device
) -> Generator[tuple[int, dict[str, torch.Tensor]]]:
    """Yield (layer, its tensors by full name, as stored, on ``device``) in the order of ``numbers``.

    The next layer is read while the caller works on this one, so two layers are in memory as stored.
    """
    pinned = device.type == "cuda"
    with ThreadPoolExecutor(_GPU_THREADS if pinned else 1, thread_name_prefix="read") as pool:

        def ahead(number: int) -> dict[str, Future[torch.Tensor]]:
            prefix = f"{LAYER_PREFIX}{number}."
            return {
                name: pool.submit(read_tensor, info, pinned=pinned)
                for name, info in release.tensors.items()
                if name.startswith(prefix)
            }

        waiting = ahead(numbers[0]) if numbers else {}
        for place, number in enumerate(numbers):
            arrived = {name: tensor.result().to(device, non_blocking=True) for name, tensor in waiting.items()}
            waiting = ahead(numbers[place + 1]) if place + 1 < len(numbers) else {}
            yield number, arrived
