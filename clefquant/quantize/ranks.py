"""Several processes that calibrate together, one per GPU: started by ``torchrun``, as llm-compressor's are.

Batches of the set are dealt to the processes, so that each runs the very batches one process would run; partial
results are put together, and every process then knows the same. Alone, everything here does nothing.
"""

import atexit
import os
from typing import Any, NamedTuple

import torch


class Ranks(NamedTuple):
    """``rank`` of this process among ``size``."""

    rank: int
    size: int

    @property
    def first(self) -> bool:
        """Whether this process does what is done once."""
        return self.rank == 0

    def owns(self, number: int) -> bool:
        """Whether item ``number`` (a batch, a unit) falls to this process."""
        return number % self.size == self.rank


def ranks() -> Ranks:
    """This process among its fellows; joins them on the first call."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        return Ranks(0, 1)
    import torch.distributed as dist

    if not dist.is_initialized():
        cuda = torch.cuda.is_available()
        if cuda:
            torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        dist.init_process_group("nccl" if cuda else "gloo")
        atexit.register(dist.destroy_process_group)
    return Ranks(dist.get_rank(), size)


def maximum(tensor: torch.Tensor) -> torch.Tensor:
    """The elementwise maximum over the processes."""
    return _reduced(tensor, "MAX")


def total(tensor: torch.Tensor) -> torch.Tensor:
    """The sum over the processes, added in their order, so that it is the same in every run."""
    return torch.stack(_each(tensor)).sum(0)


def joined(tensor: torch.Tensor) -> torch.Tensor:
    """The one-dimensional tensors of all processes, one after another."""
    if ranks().size == 1:
        return tensor
    lengths = torch.stack(_each(torch.tensor(len(tensor), device=tensor.device))).tolist()
    padded = tensor.new_zeros(max(lengths))
    padded[: len(tensor)] = tensor
    return torch.cat([part[:length] for part, length in zip(_each(padded), lengths, strict=True)])


def of_first(value: Any) -> Any:
    """What the first process says (any picklable value); the others' ``value`` is ignored. Waits for all."""
    if ranks().size == 1:
        return value
    import torch.distributed as dist

    box = [value]
    dist.broadcast_object_list(box, src=0)
    return box[0]


def _reduced(tensor: torch.Tensor, operation: str) -> torch.Tensor:
    if ranks().size == 1:
        return tensor
    import torch.distributed as dist

    found = tensor.clone()
    dist.all_reduce(found, getattr(dist.ReduceOp, operation))
    return found


def _each(tensor: torch.Tensor) -> list[torch.Tensor]:
    if ranks().size == 1:
        return [tensor]
    import torch.distributed as dist

    parts = [torch.empty_like(tensor) for _ in range(ranks().size)]
    dist.all_gather(parts, tensor.contiguous())
    return parts
