"""The gated delta rule in chunks of 64 tokens, in plain torch, with a backward pass written by hand.

Per head, with decay a_t = exp(g_t), keys k_t of unit length and write strength b_t, the state S [D, E] follows
``S_t = a_t (I - b_t k_t k_t^T) S_{t-1} + b_t k_t v_t^T`` and the output is ``o_t = q_t^T S_t``. In a chunk the 64
updates are one triangular system ``(I + L) u = b v`` with ``L_ij = b_i d_ij k_i.k_j`` (i > j, d_ij: decay from j to i);
only one product per chunk is left in sequence (:class:`ChunkScan`).

Shapes: n chunks (rows x chunks per row), H value heads, C = 64 tokens, D key width, E value width. The state and the
triangular inverse are float32, the other products have the dtype of their inputs.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

CHUNK = 64
_BASE = 8


def _invert(lower: Tensor) -> Tensor:
    """(I + lower)^-1 of strictly lower triangular blocks [..., m, m], m a power of two.

    Blocks of 8 by the Neumann product (I - L)(I + L^2)(I + L^4), exact as L^8 = 0; larger ones from their halves.
    The Neumann product alone would be exact for 64 too, but its powers grow like binomials and cancel badly.
    """
    size = lower.shape[-1]
    if size <= _BASE:
        eye = torch.eye(size, device=lower.device, dtype=lower.dtype)
        square = lower @ lower
        product: Tensor = (eye - lower) @ (eye + square) @ (eye + square @ square)
        return product
    half = size // 2
    inverse = _invert(torch.stack((lower[..., :half, :half], lower[..., half:, half:])))
    corner = -(inverse[1] @ lower[..., half:, :half] @ inverse[0])
    top = torch.cat((inverse[0], torch.zeros_like(corner)), dim=-1)
    return torch.cat((top, torch.cat((corner, inverse[1]), dim=-1)), dim=-2)


class UnitLowerInverse(torch.autograd.Function):
    """(I + L)^-1 for strictly lower triangular L; the gradient is -T^T dT T^T, its strictly lower part."""

    @staticmethod
    def forward(ctx: Any, lower: Tensor) -> Tensor:
        """Invert [..., 64, 64] in float32."""
        inverse = _invert(lower)
        ctx.save_for_backward(inverse)
        return inverse

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        """Two products with the inverse."""
        transposed = ctx.saved_tensors[0].mT
        back: Tensor = -(transposed @ grad @ transposed).tril(-1)
        return back


class Chunks(NamedTuple):
    """What one chunk contributes, whatever came before it. Names as in the module's text."""

    new_values: Tensor  # u [n, H, C, E]
    read_keys: Tensor  # w [n, H, C, D]: what the old state predicts is read with these
    write_keys: Tensor  # [n, H, C, D], decayed to the chunk's end
    decay: Tensor  # [n, H] float32, over the whole chunk
    queries: Tensor  # [n, H, C, D], decayed from the chunk's start
    attention: Tensor  # [n, H, C, C], inside the chunk


def prepare(query_nCD: Tensor, key_nCD: Tensor, value_nHCE: Tensor, g_nHC: Tensor, beta_nHC: Tensor) -> Chunks:
    """All of a chunk's own products. One key head serves every value head; query and key already have unit length."""
    dtype = query_nCD.dtype
    total = g_nHC.cumsum(-1)
    pair = total.unsqueeze(-1) - total.unsqueeze(-2)
    causal = torch.ones(CHUNK, CHUNK, dtype=torch.bool, device=pair.device).tril()
    pair = pair.masked_fill(~causal, float("-inf")).exp()
    gram = (key_nCD @ key_nCD.mT).float().unsqueeze(1)
    lower = (gram * pair * beta_nHC.unsqueeze(-1)).tril(-1)
    inverse: Tensor = UnitLowerInverse.apply(lower).to(dtype)
    scale = query_nCD.shape[-1] ** -0.5
    attention = ((query_nCD @ key_nCD.mT).float().unsqueeze(1) * pair * scale).to(dtype)
    key, query = key_nCD.unsqueeze(1), query_nCD.unsqueeze(1)
    grown = total.exp()
    return Chunks(
        new_values=inverse @ (value_nHCE * beta_nHC.unsqueeze(-1)).to(dtype),
        read_keys=inverse @ (key * (beta_nHC * grown).unsqueeze(-1)).to(dtype),
        write_keys=(key * (total[..., -1:] - total).exp().unsqueeze(-1)).to(dtype),
        decay=total[..., -1].exp(),
        queries=(query * (grown * scale).unsqueeze(-1)).to(dtype),
        attention=attention,
    )


def _in_sequence(tensor: Tensor, rows: int) -> Tensor:
    """[rows x chunks, H, ...] to [chunks, rows x H, ...], contiguous."""
    n, heads = tensor.shape[:2]
    split = tensor.reshape(rows, n // rows, heads, *tensor.shape[2:]).transpose(0, 1).contiguous()
    return split.view(n // rows, rows * heads, *tensor.shape[2:])


def _by_row(tensor: Tensor, rows: int) -> Tensor:
    """The inverse of :func:`_in_sequence`."""
    chunks, both = tensor.shape[:2]
    split = tensor.view(chunks, rows, both // rows, *tensor.shape[2:]).transpose(0, 1)
    return split.reshape(rows * chunks, both // rows, *tensor.shape[2:])


class ChunkScan(torch.autograd.Function):
    """The sequential part: ``v_i = u_i - w_i S_i``, ``S_{i+1} = c_i S_i + k_i^T v_i``; returns every v_i and S_i."""

    @staticmethod
    def forward(ctx: Any, u: Tensor, w: Tensor, k: Tensor, c: Tensor, rows: int) -> tuple[Tensor, Tensor]:
        """Tensors of :class:`Chunks` in row order; the state is carried in float32."""
        u, w, k, c = (_in_sequence(x, rows) for x in (u, w, k, c))
        values, states = torch.empty_like(u), u.new_empty(*u.shape[:2], k.shape[-1], u.shape[-1])
        state = torch.zeros(states.shape[1:], device=u.device)
        for i in range(len(u)):
            states[i] = state
            values[i] = torch.baddbmm(u[i], w[i], states[i], alpha=-1)
            if i + 1 < len(u):
                state = torch.addcmul(torch.bmm(k[i].mT, values[i]).float(), state, c[i][:, None, None])
        ctx.save_for_backward(w, k, c, values, states)
        ctx.rows = rows
        return _by_row(values, rows), _by_row(states, rows)

    @staticmethod
    def backward(ctx: Any, dvalues: Tensor, dstates: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, None]:
        """Backwards over the chunks for dv and dS; the gradients of w, k and c are then single products."""
        w, k, c, values, states = ctx.saved_tensors
        dvalues, dstates = (_in_sequence(x, ctx.rows) for x in (dvalues, dstates))
        du, after = torch.empty_like(values), torch.empty_like(states)
        grad = torch.zeros(states.shape[1:], device=w.device)
        for i in range(len(w) - 1, -1, -1):
            after[i] = grad
            du[i] = torch.baddbmm(dvalues[i], k[i], after[i])
            back = torch.baddbmm(dstates[i], w[i].mT, du[i], alpha=-1)
            grad = torch.addcmul(back.float(), grad, c[i][:, None, None])
        dw = -(du @ states.mT)
        dk = values @ after.mT
        dc = (states.float() * after.float()).sum((-1, -2))
        rows = ctx.rows
        return _by_row(du, rows), _by_row(dw, rows), _by_row(dk, rows), _by_row(dc, rows), None


def read(chunks: Chunks, values: Tensor, states: Tensor) -> Tensor:
    """Outputs [n, H, C, E]: the state before the chunk and the chunk itself, both seen by the queries."""
    return chunks.queries @ states + chunks.attention @ values
