"""Names of a Clef backbone: which modules form a unit, which form one GEMM, and which are never quantized.

One unit is one MLP, one Gated DeltaNet (GDN) block or one attention block, and has one format.
Within a unit, the linears that a server runs as one matrix product share one input and one NVFP4 global scale.
"""

import re
from dataclasses import dataclass
from typing import Literal

UnitKind = Literal["mlp", "gdn", "attention"]

#: Block name inside a decoder layer, kind, and its fused groups (each runs as one GEMM on one input).
BLOCKS: tuple[tuple[str, UnitKind, tuple[tuple[str, ...], ...]], ...] = (
    ("mlp", "mlp", (("gate_proj", "up_proj"), ("down_proj",))),
    ("linear_attn", "gdn", (("in_proj_qkv", "in_proj_z"), ("out_proj",))),
    ("self_attn", "attention", (("q_proj", "k_proj", "v_proj"), ("o_proj",))),
)

#: What stays in BF16, and why. Patterns match a tensor's whole name.
NEVER_QUANTIZED: tuple[tuple[str, str], ...] = (
    (r"lm_head\..*", "read row by row as option vectors by the joint head, never multiplied"),
    (r"model\.language_model\.embed_tokens\..*", "a lookup, not a matrix product"),
    (r"model\.visual\..*", "small, runs once per image, and its errors reach every later token"),
    (r".*\.linear_attn\.in_proj_[ab]\..*", "16 to 48 outputs: nothing to gain, and they steer the recurrence"),
    (r".*\.linear_attn\.conv1d\..*", "four taps per channel"),
    (r".*\.linear_attn\.(A_log|dt_bias)", "decay of the recurrence, one number per head"),
    (r".*norm(\..*)?", "one number per channel"),
    (r"mtp\..*", "next-token heads are not used by a decision model and are carried along unchanged"),
)

LAYER_PREFIX = "model.language_model.layers."
_WEIGHT = re.compile(re.escape(LAYER_PREFIX) + r"(\d+)\.(mlp|linear_attn|self_attn)\.(\w+)\.weight")


@dataclass(frozen=True)
class Linear:
    """One quantizable matrix: full module name, ``weight`` of shape [out_features, in_features]."""

    name: str
    out_features: int
    in_features: int

    @property
    def weights(self) -> int:
        """Number of weights."""
        return self.out_features * self.in_features


@dataclass(frozen=True)
class Unit:
    """One MLP, GDN or attention block; ``name`` is e.g. ``layers.0.mlp``."""

    name: str
    layer: int
    kind: UnitKind
    groups: tuple[tuple[Linear, ...], ...]

    @property
    def linears(self) -> tuple[Linear, ...]:
        """All linears in the order of their fused groups."""
        return tuple(linear for group in self.groups for linear in group)

    @property
    def weights(self) -> int:
        """Number of quantizable weights."""
        return sum(linear.weights for linear in self.linears)


def find_units(shapes: dict[str, tuple[int, ...]]) -> tuple[Unit, ...]:
    """Units of a backbone from its tensor shapes, in layer order (mlp last within a layer).

    Raises ValueError when a block lacks one of its linears: the checkpoint is then not of this family.
    """
    found: dict[tuple[int, str], dict[str, Linear]] = {}
    for name, shape in shapes.items():
        if match := _WEIGHT.fullmatch(name):
            layer, block, leaf = int(match[1]), match[2], match[3]
            if len(shape) == 2:
                found.setdefault((layer, block), {})[leaf] = Linear(name.removesuffix(".weight"), shape[0], shape[1])
    units = []
    for block, kind, groups in BLOCKS:
        for (layer, name), leaves in found.items():
            if name != block:
                continue
            missing = [leaf for group in groups for leaf in group if leaf not in leaves]
            if missing:
                raise ValueError(f"layer {layer}: {block} lacks {', '.join(missing)}")
            linears = tuple(tuple(leaves[leaf] for leaf in group) for group in groups)
            units.append(Unit(f"layers.{layer}.{block}", layer, kind, linears))
    return tuple(sorted(units, key=lambda unit: (unit.layer, unit.kind == "mlp")))


def reason_kept(tensor: str) -> str | None:
    """Why a tensor is never quantized, or None when it belongs to a unit."""
    for pattern, reason in NEVER_QUANTIZED:
        if re.fullmatch(pattern, tensor):
            return reason
    return None
