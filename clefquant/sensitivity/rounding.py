"""How a sweep rounds weights: to nearest, or by GPTQ with the Hessians of the unchanged model's calibration inputs."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from clefquant.calibration.stored import StoredRecord, to_line
from clefquant.errors import InputError
from clefquant.quantize.hessian import HessianCollector
from clefquant.quantize.layerwise import Layerwise
from clefquant.quantize.scales import DEFAULT_SCALES, Scales
from clefquant.quantize.unit import QuantizedLinear, quantize_unit
from clefquant.quantize.watching import by_linear, watching
from clefquant.recipes.formats import find_format
from clefquant.release.artefact import sha256_json
from clefquant.release.load import LoadedRelease
from clefquant.release.units import Unit
from clefquant.sensitivity.source import source_weights

ALGORITHMS = ("rtn", "gptq")


@dataclass(frozen=True)
class Rounding:
    """``algorithm``: ``rtn`` or ``gptq``; ``scales``: how block scales are chosen; ``records``: what GPTQ's Hessians
    are of. InputError for another algorithm, or GPTQ without records."""

    algorithm: str = "rtn"
    scales: Scales = DEFAULT_SCALES
    records: tuple[StoredRecord, ...] = field(default=(), repr=False)

    def __post_init__(self) -> None:
        if self.algorithm not in ALGORITHMS:
            raise InputError(f"a sweep cannot probe {self.algorithm!r}; allowed: {', '.join(ALGORITHMS)}")
        if self.algorithm == "gptq" and not self.records:
            raise InputError("gptq needs --calibration SET; build one with `clefquant calibrate`.")

    def named(self) -> dict[str, str]:
        """What of it is not the default, by the names of `clefquant quantize`'s options."""
        found = {
            "algorithm": self.algorithm, "nvfp4-scales": self.scales.nvfp4, "mxfp4-scales": self.scales.mxfp4
        }  # fmt: skip
        usual = {"algorithm": "rtn", "nvfp4-scales": DEFAULT_SCALES.nvfp4, "mxfp4-scales": DEFAULT_SCALES.mxfp4}
        return {name: value for name, value in found.items() if value != usual[name]}

    def detail(self, format_name: str) -> list[object]:
        """What of it decides the bits of a unit in a format; empty by default."""
        found: list[object] = []
        if (observer := self.scales.observer(find_format(format_name))) is not None:
            found.append(observer)
        if self.algorithm == "gptq":
            found += ["gptq", sha256_json([to_line(record) for record in self.records])]
        return found


NEAREST = Rounding()


class Quantizer:
    """Quantizes units of a loaded release, whose weights must be the unchanged ones then. By GPTQ they must be asked
    for in the order of the layers; going back starts the calibration pass anew."""

    def __init__(self, loaded: LoadedRelease, input_amax: Mapping[str, float], rounding: Rounding = NEAREST) -> None:
        self._loaded, self._input_amax, self._rounding = loaded, input_amax, rounding
        self._layers: Iterator[tuple[int, dict[str, torch.Tensor]]] = iter(())
        self._layer, self._hessians = -1, dict[str, torch.Tensor]()

    def __call__(self, unit: Unit, format_name: str) -> dict[str, QuantizedLinear]:
        """Every linear of ``unit``, by full name."""
        hessians = self._reach(unit) if self._rounding.algorithm == "gptq" else None
        weights = source_weights(self._loaded, unit)
        fmt = find_format(format_name)
        return quantize_unit(unit, weights, fmt, self._input_amax, hessians, self._rounding.scales)

    def _reach(self, unit: Unit) -> dict[str, torch.Tensor]:
        if self._layer < 0 or unit.layer < self._layer:
            self._layers, self._layer = hessians_by_layer(self._loaded, self._rounding.records), -1
        while self._layer < unit.layer:
            self._layer, self._hessians = next(self._layers)
        return {linear.name: self._hessians[linear.name] for linear in unit.linears}


def hessians_by_layer(
    loaded: LoadedRelease, records: Sequence[StoredRecord]
) -> Iterator[tuple[int, dict[str, torch.Tensor]]]:
    """Yield (layer, Hessian of every linear's input [I, I] float32) of the unchanged model, one layer at a time."""
    release, dtype = loaded.release, next(iter(loaded.model.parameters())).dtype
    pass_ = Layerwise(release, [record.encoded for record in records], device=loaded.device, dtype=dtype)
    for step in pass_.steps():
        groups = [group for unit in release.units if unit.layer == step.number for group in unit.groups]
        with watching(step, groups, HessianCollector) as collectors:
            step.run()
        yield step.number, by_linear(groups, (collector.result() for collector in collectors))
