"""How a sweep rounds weights: to nearest, or by GPTQ with the Hessians of the unchanged model's calibration inputs."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import torch

from clefquant.calibration.stored import StoredRecord, to_line
from clefquant.errors import InputError
from clefquant.quantize.hessian import HessianCollector
from clefquant.quantize.layerwise import LayerStep, Layerwise
from clefquant.quantize.scales import DEFAULT_SCALES, Scales
from clefquant.quantize.unit import QuantizedLinear, quantize_unit
from clefquant.quantize.watching import by_linear, watching
from clefquant.recipes.formats import Format, find_format
from clefquant.release.artefact import sha256_json
from clefquant.release.load import LoadedRelease
from clefquant.release.release import Release
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
        self._steps: Iterator[LayerStep] = iter(())
        self._step: LayerStep | None = None
        self._hessians: dict[str, dict[str, torch.Tensor]] = {}  # of the step's layer, by how inputs are rounded

    def __call__(self, unit: Unit, format_name: str) -> dict[str, QuantizedLinear]:
        """Every linear of ``unit``, by full name."""
        fmt = find_format(format_name)
        hessians = self._hessians_of(unit, fmt) if self._rounding.algorithm == "gptq" else None
        weights = source_weights(self._loaded, unit)
        return quantize_unit(unit, weights, fmt, self._input_amax, hessians, self._rounding.scales)

    def _hessians_of(self, unit: Unit, fmt: Format) -> dict[str, torch.Tensor]:
        step = self._reach(unit.layer)
        rounded = fmt.name if fmt.input else ""  # formats with 16-bit inputs share theirs
        if rounded not in self._hessians:
            self._hessians[rounded] = layer_hessians(self._loaded.release, step, fmt)
        return {linear.name: self._hessians[rounded][linear.name] for linear in unit.linears}

    def _reach(self, layer: int) -> LayerStep:
        """The step of ``layer`` in a pass of the unchanged model."""
        if self._step is None or layer < self._step.number:
            dtype = next(iter(self._loaded.model.parameters())).dtype
            encoded = [record.encoded for record in self._rounding.records]
            self._steps = Layerwise(self._loaded.release, encoded, device=self._loaded.device, dtype=dtype).steps()
            self._step, self._hessians = next(self._steps), {}
        while self._step.number < layer:
            if not self._hessians:
                self._step.run()
            self._step, self._hessians = next(self._steps), {}
        return self._step


def layer_hessians(release: Release, step: LayerStep, fmt: Format) -> dict[str, torch.Tensor]:
    """Run the set through the layer; the Hessian [I, I] float32 of every linear's input as ``fmt`` rounds it."""
    groups = [group for unit in release.units if unit.layer == step.number for group in unit.groups]
    collectors = [HessianCollector(fmt) for _ in groups]
    with watching(step, groups, collectors):
        step.run()
    return by_linear(groups, (collector.result() for collector in collectors))
