"""One int8 scale per row of a vocabulary table.

    scale[v] = amax[v] / 127, rounded up to 16 significant bits; 1 for a row of zeros
    row[v]   = round half to even of x[v] / scale[v]      int8, in -127 .. 127
    read as  row[v] * scale[v] in float32, then cast

Every step is float32, and the error is at most scale / 2 everywhere, exactly: x has 8 significant bits (BF16), a
scale 16, so both x and (k + 1/2) * scale are multiples of 2^-24 of their size and float32 division cannot move x /
scale across k + 1/2.
"""

from typing import NamedTuple

import torch
from torch import Tensor

#: Smaller rows than this are below anything a model computes with; the floor keeps the scale out of the subnormals.
_SMALLEST_SCALE = 2.0**-100


class Rows(NamedTuple):
    """``values`` int8 [R, H], ``scale`` float32 [R]."""

    values: Tensor
    scale: Tensor


class RowErrors(NamedTuple):
    """Per row, float32 [R]: norm of the row, norm of its error, cosine to its quantized form (1 for a row of zeros)."""

    norm: Tensor
    error: Tensor
    cosine: Tensor


class Workspace(NamedTuple):
    """Memory for one block of rows, so that streaming allocates nothing: fresh pages cost more than the arithmetic."""

    values: Tensor  # int8 [R, H]
    work: Tensor  # float32 [R, H]

    @classmethod
    def of(cls, rows: int, width: int) -> "Workspace":
        """For blocks of up to ``rows`` rows."""
        return cls(torch.empty(rows, width, dtype=torch.int8), torch.empty(rows, width))


def quantize_rows(x: Tensor, space: Workspace | None = None) -> Rows:
    """Quantize float32 rows [R, H] that hold BF16 values. Rows must be finite. The result lives in ``space``."""
    space = space or Workspace.of(*x.shape)
    work, values = space.work[: len(x)], space.values[: len(x)]
    amax = torch.abs(x, out=work).amax(1)
    scale = torch.where(amax == 0, 1.0, round_up(amax / 127).clamp(min=_SMALLEST_SCALE))
    values.copy_(torch.div(x, scale[:, None], out=work).round_())
    return Rows(values, scale)


def round_up(scale: Tensor) -> Tensor:
    """Positive float32 rounded up to 16 significant bits."""
    return ((scale.view(torch.int32) + 0xFF) & ~0xFF).view(torch.float32)


def dequantize_rows(rows: Rows) -> Tensor:
    """Values as a reader sees them, float32 [R, H] (exact: 7 and 16 significant bits)."""
    return rows.values.float() * rows.scale[:, None]


def row_errors(x: Tensor, rows: Rows, space: Workspace | None = None) -> RowErrors:
    """Compare rows [R, H] with their quantized form. ``x`` and ``rows`` are left as they are."""
    work = (space or Workspace.of(*x.shape)).work[: len(x)]
    read = work.copy_(rows.values).mul_(rows.scale[:, None])
    norm = torch.linalg.vector_norm(x, dim=1)
    product = norm * torch.linalg.vector_norm(read, dim=1)
    cosine = torch.where(product == 0, 1.0, torch.linalg.vecdot(x, read) / product)
    return RowErrors(norm, torch.linalg.vector_norm(read.sub_(x), dim=1), cosine)
