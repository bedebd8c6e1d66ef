"""The Qwen3.5 text model for training: parameters named as in a release, work cut so that few shapes are compiled.

A batch is always the same number of tokens N = rows x length, so everything that acts on single tokens or on single
chunks has one shape, whatever the length of the rows; these parts are pure functions and may be compiled. The scan over
chunks and full attention see rows and stay eager. Padding is on the right: causal layers never see it.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from training import delta_rule, shape


def rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    """RMSNorm in float32 with the zero-centred weight of Qwen3.5."""
    x32 = x.float()
    return (x32 * torch.rsqrt(x32.pow(2).mean(-1, keepdim=True) + shape.EPSILON) * (1.0 + weight)).to(x.dtype)


def linear(x: Tensor, weight: Tensor) -> Tensor:
    """``x W^T`` in the dtype of ``x``."""
    return F.linear(x, weight.to(x.dtype))


def unit(x: Tensor) -> Tensor:
    """Unit length along the last dimension, in float32."""
    x32 = x.float()
    return (x32 * torch.rsqrt(x32.pow(2).sum(-1, keepdim=True) + 1e-6)).to(x.dtype)


def mlp(x: Tensor, norm: Tensor, gate: Tensor, up: Tensor, down: Tensor) -> Tensor:
    """Residual MLP."""
    h = rms_norm(x, norm)
    return x + linear(F.silu(linear(h, gate)) * linear(h, up), down)


def linear_attention_in(
    x: Tensor, position: Tensor, norm: Tensor, qkv: Tensor, gate: Tensor, a: Tensor, b: Tensor,
    convolution: Tensor, log_a: Tensor, bias: Tensor,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Tokens [N, hidden] to the gate and the chunks' own products. ``position``: place of a token in its row."""
    h = rms_norm(x, norm)
    mixed = linear(h, qkv)
    kernel = convolution.squeeze(1).to(mixed.dtype)
    taps = shape.CONVOLUTION
    mixed_out = mixed * kernel[:, taps - 1]
    for back in range(1, taps):
        shifted = F.pad(mixed, (0, 0, back, 0))[: mixed.shape[0]]
        mixed_out = mixed_out + shifted * kernel[:, taps - 1 - back] * (position >= back).to(mixed.dtype)[:, None]
    mixed_out = F.silu(mixed_out)
    width, heads = shape.LINEAR_HEAD_DIM, shape.LINEAR_VALUE_HEADS
    query, key, value = torch.split(mixed_out, [width, width, heads * width], dim=-1)
    g = -log_a.float().exp() * F.softplus(linear(h, a).float() + bias.float())
    beta = linear(h, b).float().sigmoid()

    def chunked(t: Tensor) -> Tensor:
        return t.reshape(-1, delta_rule.CHUNK, heads, t.shape[-1] // heads).transpose(1, 2)

    chunks = delta_rule.prepare(
        unit(query).reshape(-1, delta_rule.CHUNK, width), unit(key).reshape(-1, delta_rule.CHUNK, width),
        chunked(value), chunked(g).squeeze(-1), chunked(beta).squeeze(-1),
    )  # fmt: skip
    return (linear(h, gate), *chunks)


def linear_attention_out(
    x: Tensor, gate: Tensor, chunks: delta_rule.Chunks, values: Tensor, states: Tensor, norm: Tensor, out: Tensor,
    mlp_norm: Tensor, mlp_gate: Tensor, mlp_up: Tensor, mlp_down: Tensor,
) -> Tensor:  # fmt: skip
    """The chunks' outputs, gated norm, projection, then the MLP."""
    o32 = delta_rule.read(chunks, values, states).transpose(1, 2).float()
    o32 = o32 * torch.rsqrt(o32.pow(2).mean(-1, keepdim=True) + shape.EPSILON)
    o = norm * o32.to(x.dtype)
    o = o.reshape(x.shape[0], -1) * F.silu(gate.float())
    x = x + linear(o.to(x.dtype), out)
    return mlp(x, mlp_norm, mlp_gate, mlp_up, mlp_down)


def attention_in(
    x: Tensor, cos: Tensor, sin: Tensor, norm: Tensor, q: Tensor, k: Tensor, v: Tensor, q_norm: Tensor, k_norm: Tensor
) -> tuple[Tensor, ...]:
    """Tokens to queries, keys, values [N, heads, 64] and the output gate [N, heads x 64]."""
    h = rms_norm(x, norm)
    query, gate = linear(h, q).view(x.shape[0], shape.HEADS, 2 * shape.HEAD_DIM).chunk(2, dim=-1)
    key = linear(h, k).view(x.shape[0], -1, shape.HEAD_DIM)
    value = linear(h, v).view(x.shape[0], -1, shape.HEAD_DIM)

    def rotate(t: Tensor) -> Tensor:
        turned, rest = t[..., : shape.ROTARY_DIM], t[..., shape.ROTARY_DIM :]
        first, second = turned.chunk(2, dim=-1)
        turned = turned * cos[:, None] + torch.cat((-second, first), dim=-1) * sin[:, None]
        return torch.cat((turned.to(t.dtype), rest), dim=-1)

    return rotate(rms_norm(query, q_norm)), rotate(rms_norm(key, k_norm)), value, gate.reshape(x.shape[0], -1)


def attention_out(
    x: Tensor, read: Tensor, gate: Tensor, out: Tensor, mlp_norm: Tensor, mlp_gate: Tensor, mlp_up: Tensor,
    mlp_down: Tensor,
) -> Tensor:  # fmt: skip
    """Gate, projection, then the MLP."""
    x = x + linear(read * torch.sigmoid(gate), out)
    return mlp(x, mlp_norm, mlp_gate, mlp_up, mlp_down)


def _weight(rows: int, columns: int) -> nn.Linear:
    return nn.Linear(columns, rows, bias=False)


class _Norm(nn.Module):
    def __init__(self, width: int, start: float = 0.0) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((width,), start))


class _LinearAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        key = shape.LINEAR_KEY_HEADS * shape.LINEAR_HEAD_DIM
        value = shape.LINEAR_VALUE_HEADS * shape.LINEAR_HEAD_DIM
        self.conv1d = nn.Conv1d(2 * key + value, 2 * key + value, shape.CONVOLUTION, groups=2 * key + value, bias=False)
        self.dt_bias = nn.Parameter(torch.ones(shape.LINEAR_VALUE_HEADS))
        # Decay from slow to fast: exp(-A softplus(1)) per token is 0.94 for the smaller A.
        self.A_log = nn.Parameter(torch.tensor([0.05, 0.5]).repeat(shape.LINEAR_VALUE_HEADS // 2).log())
        self.norm = _Norm(shape.LINEAR_HEAD_DIM, 1.0)
        self.in_proj_qkv = _weight(2 * key + value, shape.HIDDEN)
        self.in_proj_z = _weight(value, shape.HIDDEN)
        self.in_proj_b = _weight(shape.LINEAR_VALUE_HEADS, shape.HIDDEN)
        self.in_proj_a = _weight(shape.LINEAR_VALUE_HEADS, shape.HIDDEN)
        self.out_proj = _weight(shape.HIDDEN, value)


class _FullAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q_proj = _weight(2 * shape.HEADS * shape.HEAD_DIM, shape.HIDDEN)
        self.k_proj = _weight(shape.KEY_VALUE_HEADS * shape.HEAD_DIM, shape.HIDDEN)
        self.v_proj = _weight(shape.KEY_VALUE_HEADS * shape.HEAD_DIM, shape.HIDDEN)
        self.o_proj = _weight(shape.HIDDEN, shape.HEADS * shape.HEAD_DIM)
        self.q_norm, self.k_norm = _Norm(shape.HEAD_DIM), _Norm(shape.HEAD_DIM)


class _Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate_proj = _weight(shape.INTERMEDIATE, shape.HIDDEN)
        self.up_proj = _weight(shape.INTERMEDIATE, shape.HIDDEN)
        self.down_proj = _weight(shape.HIDDEN, shape.INTERMEDIATE)


class _Layer(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        if kind == "linear_attention":
            self.linear_attn = _LinearAttention()
        else:
            self.self_attn = _FullAttention()
        self.mlp = _Mlp()
        self.input_layernorm, self.post_attention_layernorm = _Norm(shape.HIDDEN), _Norm(shape.HIDDEN)

    def mlp_weights(self) -> tuple[Tensor, ...]:
        m = self.mlp
        return self.post_attention_layernorm.weight, m.gate_proj.weight, m.up_proj.weight, m.down_proj.weight


class Backbone(nn.Module):
    """Token ids [rows, length] to final hidden states; parameters are named as below ``model.language_model``."""

    def __init__(self) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(shape.VOCABULARY, shape.HIDDEN)
        self.layers = nn.ModuleList(_Layer(kind) for kind in shape.LAYER_TYPES)
        self.norm = _Norm(shape.HIDDEN)
        self.parts: dict[str, Callable[..., Any]] = {
            f.__name__: f for f in (linear_attention_in, linear_attention_out, attention_in, attention_out)
        }
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:
                # Projections into the residual stream start smaller, by depth.
                deep = name.endswith(("out_proj.weight", "o_proj.weight", "down_proj.weight"))
                scale = shape.HIDDEN**-0.5 * (0.35 if deep else 1.0)
                nn.init.normal_(parameter, std=0.02 if "embed" in name else scale)

    def compile_parts(self) -> None:
        """Compile the parts whose shapes never change."""
        self.parts = {name: torch.compile(part, dynamic=False) for name, part in self.parts.items()}

    def forward(self, ids: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        """Final hidden states [rows, length, hidden]; length is a multiple of 64."""
        rows, length = ids.shape
        position = torch.arange(length, device=ids.device).repeat(rows)
        frequency = shape.ROTARY_BASE ** (
            -torch.arange(0, shape.ROTARY_DIM, 2, device=ids.device, dtype=torch.float32) / shape.ROTARY_DIM
        )
        angle = torch.outer(position.float(), frequency).repeat(1, 2)
        cos, sin = angle.cos(), angle.sin()
        x = F.embedding(ids.reshape(-1), self.embed_tokens.weight).to(dtype)
        for layer in self.layers:
            if hasattr(layer, "linear_attn"):
                x = self._linear(layer, x, position, rows)
            else:
                x = self._full(layer, x, cos, sin, rows)
        return rms_norm(x, self.norm.weight).view(rows, length, -1)

    def _linear(self, layer: Any, x: Tensor, position: Tensor, rows: int) -> Tensor:
        a = layer.linear_attn
        gate, *chunked = self.parts["linear_attention_in"](
            x, position, layer.input_layernorm.weight, a.in_proj_qkv.weight, a.in_proj_z.weight, a.in_proj_a.weight,
            a.in_proj_b.weight, a.conv1d.weight, a.A_log, a.dt_bias,
        )  # fmt: skip
        chunks = delta_rule.Chunks(*chunked)
        values, states = delta_rule.ChunkScan.apply(
            chunks.new_values, chunks.read_keys, chunks.write_keys, chunks.decay, rows
        )
        out: Tensor = self.parts["linear_attention_out"](
            x, gate, chunks, values, states, a.norm.weight, a.out_proj.weight, *layer.mlp_weights(),
        )  # fmt: skip
        return out

    def _full(self, layer: Any, x: Tensor, cos: Tensor, sin: Tensor, rows: int) -> Tensor:
        a = layer.self_attn
        query, key, value, gate = self.parts["attention_in"](
            x, cos, sin, layer.input_layernorm.weight, a.q_proj.weight, a.k_proj.weight, a.v_proj.weight,
            a.q_norm.weight, a.k_norm.weight,
        )  # fmt: skip
        groups = shape.HEADS // shape.KEY_VALUE_HEADS
        q, k, v = (
            t.view(rows, -1, t.shape[1], shape.HEAD_DIM).transpose(1, 2)
            for t in (query, key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1))
        )
        read = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(x.shape[0], -1)
        out: Tensor = self.parts["attention_out"](x, read, gate, a.o_proj.weight, *layer.mlp_weights())
        return out
