"""What is probed and under which key: the work list of a sweep."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from clefquant.recipes.formats import find_format
from clefquant.release.artefact import package_versions, sha256_json
from clefquant.release.load import LoadedRelease
from clefquant.release.units import Unit
from clefquant.sensitivity.assemble import able_formats
from clefquant.sensitivity.rounding import NEAREST, Rounding
from clefquant.sensitivity.shards import Shard
from clefquant.sensitivity.store import Probe

#: Raised when a change of ours moves logits, so that rows of two kinds are never mixed.
ENGINE_VERSION = 2
REFERENCE, NOISE = "reference", "noise"
_ENGINE_PACKAGES = ("torch", "transformers", "llmcompressor", "compressed-tensors")


@dataclass(frozen=True)
class Work:
    """One probe to do: a unit in a format over one shard (its index), and the key of its row."""

    unit: Unit
    format: str
    shard: int
    key: str


@dataclass(frozen=True)
class Keys:
    """Makes the keys of one model on one engine."""

    model: str
    engine: str

    @classmethod
    def of(cls, loaded: LoadedRelease) -> "Keys":
        """Keys of a loaded release: its files, and what computes with them."""
        parameter = next(iter(loaded.model.parameters()))
        versions = package_versions()
        engine = {
            "version": ENGINE_VERSION,
            "dtype": str(parameter.dtype),
            "device": torch.cuda.get_device_name(parameter.device)
            if parameter.device.type == "cuda"
            else parameter.device.type,
            **{name: versions.get(name, "") for name in _ENGINE_PACKAGES},
        }
        return cls(loaded.release.fingerprint, sha256_json(engine))

    def key(self, subject: str, detail: object, shard: Shard) -> str:
        """Key of a probe; ``detail``: whatever else decides its logits."""
        parts = [self.model, self.engine, shard.fingerprint, subject, detail]
        return hashlib.sha256(sha256_json(parts).encode()).hexdigest()


def unit_detail(
    unit: Unit, format_name: str, input_amax: Mapping[str, float], rounding: Rounding = NEAREST
) -> list[object]:
    """What decides a unit's quantized form besides its weights: the format, static input scales where it has them,
    and how weights are rounded."""
    static = find_format(format_name).static_input
    scales = [input_amax[linear.name] for linear in unit.linears] if static else None
    return [format_name, scales, *rounding.detail(format_name)]


def work_list(
    keys: Keys, units: Sequence[Unit], formats: Sequence[str], shards: Sequence[Shard], input_amax: Mapping[str, float],
    rounding: Rounding = NEAREST,
) -> list[Work]:  # fmt: skip
    """Every probe of a sweep, units in layer order; a format that cannot store a unit is left out."""
    return [
        Work(unit, name, index, keys.key(unit.name, unit_detail(unit, name, input_amax, rounding), shard))
        for unit in units
        for name in able_formats(unit, formats)
        for index, shard in enumerate(shards)
    ]


def make_probe(key: str, subject: str, format_name: str, shard: Shard, seconds: float, logits: torch.Tensor) -> Probe:
    """A probe of finished logits [N], its broken ones counted."""
    failed = int((~torch.isfinite(logits)).sum())
    return Probe(key, subject, format_name, shard.fingerprint, failed, seconds, logits.numpy().astype(np.float32))
