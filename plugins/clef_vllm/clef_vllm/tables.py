"""Vocabulary tables as int8 rows with one scale per row, sharded over tensor-parallel ranks.

    row v of the table = rows[v] (int8 [V, H]) * scale[v] (float32 [V]), multiplied in float32, then cast

lm_head's table may lie in host memory: only the rows of a step's option tokens are read, a few hundred of 248,320.

A rank of P holds rows [rank * ceil(V / P), (rank + 1) * ceil(V / P)) clipped to V, so V need not divide by P. A lookup
fills the rows it owns and zeros elsewhere; the sum over ranks adds zeros to exactly one value, which is exact.
"""

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor, nn


class Int8Table(nn.Module):
    """Stands in for vLLM's embedding and lm_head while a model is built; takes their constructor arguments."""

    rows: Tensor  # [rows of this rank, H] int8
    scale: Tensor  # [rows of this rank] float32
    on_host = False

    def __init__(self, num_embeddings: int, embedding_dim: int, *_: Any, **__: Any) -> None:
        super().__init__()
        from vllm.distributed import (
            get_tensor_model_parallel_rank,
            get_tensor_model_parallel_world_size,
            tensor_model_parallel_all_reduce,
        )

        self._setup(
            num_embeddings, embedding_dim, get_tensor_model_parallel_rank(), get_tensor_model_parallel_world_size(),
            tensor_model_parallel_all_reduce,
        )  # fmt: skip

    def _setup(self, vocabulary: int, hidden: int, rank: int, ranks: int, reduce: Callable[[Tensor], Tensor]) -> None:
        per_rank = -(-vocabulary // ranks)
        self.vocabulary, self.ranks, self.reduce = vocabulary, ranks, reduce
        self.start = min(rank * per_rank, vocabulary)
        self.end = min(self.start + per_rank, vocabulary)
        self.dtype = torch.get_default_dtype()
        # Buffers, not parameters: dummy loading must not fill them with floats, and no optimizer ever sees them.
        with torch.device("cpu") if self.on_host else nullcontext():
            self.register_buffer("rows", torch.zeros(self.end - self.start, hidden, dtype=torch.int8), persistent=False)
            self.register_buffer("scale", torch.zeros(self.end - self.start, dtype=torch.float32), persistent=False)

    @classmethod
    def for_rank(
        cls, vocabulary: int, hidden: int, rank: int, ranks: int, reduce: Callable[[Tensor], Tensor]
    ) -> "Int8Table":
        """A table outside of a vLLM worker, with the place among the ranks given."""
        table = cls.__new__(cls)
        nn.Module.__init__(table)
        table._setup(vocabulary, hidden, rank, ranks, reduce)
        return table

    def forward(self, ids: Tensor) -> Tensor:
        """Rows of `ids`, any shape, as [..., H] in the model's dtype."""
        local = ids.long() - self.start
        if self.ranks == 1:
            return (self.rows[local] * self.scale[local].unsqueeze(-1)).to(self.dtype)
        held = (local >= 0) & (local < self.end - self.start)
        local = torch.where(held, local, 0)
        if self.end == self.start:
            return self.reduce(torch.zeros(*ids.shape, self.rows.shape[1], dtype=self.dtype, device=ids.device))
        scale = torch.where(held, self.scale[local], 0.0)
        return self.reduce((self.rows[local] * scale.unsqueeze(-1)).to(self.dtype))

    def tie_weights(self, other: nn.Module) -> nn.Module:
        """A release with tied tables stores one; vLLM calls this to share it."""
        return other

    def load(self, path: Path, name: str) -> None:
        """Copy this rank's rows of table `name` ("embed_tokens" or "lm_head") from the int8 file, and check them."""
        with safe_open(path, framework="pt") as file:
            have = set(file.keys())
            wanted = {f"{name}.weight", f"{name}.scale"}
            if not wanted <= have:
                raise ValueError(
                    f"{path} lacks {sorted(wanted - have)}, it has {sorted(have)}; export the release again"
                )
            rows, scale = file.get_slice(f"{name}.weight"), file.get_slice(f"{name}.scale")
            expected = [self.vocabulary, self.rows.shape[1]]
            if rows.get_shape() != expected or scale.get_shape()[0] != self.vocabulary or rows.get_dtype() != "I8":
                raise ValueError(
                    f"{path}: {name} is {rows.get_dtype()} {rows.get_shape()} with scale {scale.get_shape()}, "
                    f"config.json asks for I8 {expected} with scale [{self.vocabulary}]; export the release again"
                )
            self.rows.copy_(rows[self.start : self.end])
            self.scale.copy_(scale[self.start : self.end].reshape(-1))
        if not bool((self.scale.isfinite() & (self.scale >= 0)).all()):
            raise ValueError(f"{path}: {name}.scale has negative or non-finite entries; export the release again")


class HostTable(Int8Table):
    """An int8 table whose rows stay in host memory; the rows asked for travel as int8 with their scales."""

    on_host = True

    def lookup(self, ids: Tensor, device: torch.device) -> Tensor:
        """Rows of vocabulary ids [U], both in host memory, as [U, H] on `device`; the host waits for nothing."""
        local = ids - self.start
        held = (local >= 0) & (local < self.end - self.start)
        local = torch.where(held, local, 0)
        if self.end == self.start:
            return self.reduce(torch.zeros(len(ids), self.rows.shape[1], dtype=self.dtype, device=device))
        rows = _to_device(self.rows[local], device)
        scale = _to_device(torch.where(held, self.scale[local], 0.0), device)
        part = (rows * scale.unsqueeze(-1)).to(self.dtype)
        return part if self.ranks == 1 else self.reduce(part)


def _to_device(tensor: Tensor, device: torch.device) -> Tensor:
    # Only a copy from pinned memory runs beside the host.
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)
