"""Measuring joint layouts: the whole model as a checkpoint of the layout would answer, against the unchanged one."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch

from clefquant.calibration.stored import StoredRecord
from clefquant.progress import SILENT, Progress
from clefquant.quantize.simulate import simulated
from clefquant.quantize.unit import QuantizedLinear
from clefquant.recipes.formats import BF16
from clefquant.release.load import DEFAULT_BATCH_TOKENS, LoadedRelease
from clefquant.release.release import Release
from clefquant.release.units import Unit
from clefquant.sensitivity.continuation import in_record_order, prepare, run_layers
from clefquant.sensitivity.probe import Keys, make_probe, unit_detail
from clefquant.sensitivity.rounding import NEAREST, Quantizer, Rounding
from clefquant.sensitivity.shards import DEFAULT_SHARD_TOKENS, Shard, make_shards
from clefquant.sensitivity.store import Probe, ProbeStore
from clefquant.sensitivity.table import Entry
from clefquant.sensitivity.tabulate import Questions, tabulate
from clefquant.sensitivity.walk import reference_probe

LAYOUT = "layout"
#: Quantized units kept between candidates, which differ in a few units.
_KEPT_BYTES = 4 << 30


@dataclass
class Measurer:
    """Measures layouts of one loaded release; finished measurements come from the store."""

    loaded: LoadedRelease
    store: ProbeStore
    input_amax: Mapping[str, float]
    batch_tokens: int = DEFAULT_BATCH_TOKENS
    shard_tokens: int = DEFAULT_SHARD_TOKENS
    progress: Progress = SILENT
    rounding: Rounding = NEAREST
    _units: dict[tuple[str, str], dict[str, QuantizedLinear]] = field(default_factory=dict)
    _kept: int = 0
    _quantizer: Quantizer = field(init=False)

    def __post_init__(self) -> None:
        self._quantizer = Quantizer(self.loaded, self.input_amax, self.rounding)

    def in_order(self, records: Sequence[StoredRecord]) -> tuple[StoredRecord, ...]:
        """The records as their sums lie in an entry of :meth:`measure`."""
        shards = make_shards(records, self.batch_tokens, self.shard_tokens)
        return tuple(record for shard in shards for record in shard.records)

    def measure(self, layouts: Sequence[Mapping[str, str]], records: Sequence[StoredRecord], title: str) -> list[Entry]:
        """One entry per layout (``unit`` empty, ``format`` ``layout``): its metrics on ``records``."""
        shards = make_shards(records, self.batch_tokens, self.shard_tokens)
        keys = Keys.of(self.loaded)
        questions = Questions(self.in_order(records))
        with self.progress.task(title, len(layouts) + 1, "layouts") as task:
            before = [reference_probe(self.store, self.loaded, keys, shard) for shard in shards]
            task.advance()
            self._round_ahead([layout for layout in layouts if self._missing(keys, shards, layout)])
            found = []
            for layout in layouts:
                after = self._layout(keys, shards, layout)
                found.append(tabulate("", LAYOUT, questions, before, after))
                task.advance()
        return found

    @torch.inference_mode()
    def _layout(self, keys: Keys, shards: Sequence[Shard], layout: Mapping[str, str]) -> list[Probe]:
        if missing := self._missing(keys, shards, layout):
            units = _quantized_units(self.loaded.release, layout)
            linears = {n: linear for unit in units for n, linear in self._quantized(unit, layout[unit.name]).items()}
            for key, shard in missing.items():
                start = time.monotonic()
                with simulated(self.loaded, linears):
                    parts = [
                        (batch, run_layers(self.loaded, batch, hidden, 0))
                        for batch, hidden in prepare(self.loaded, shard)
                    ]
                logits = in_record_order(shard, parts)
                self.store.add(make_probe(key, LAYOUT, LAYOUT, shard, time.monotonic() - start, logits))
        return [self.store.get(key) for key in self._wanted(keys, shards, layout)]

    def _wanted(self, keys: Keys, shards: Sequence[Shard], layout: Mapping[str, str]) -> dict[str, Shard]:
        detail = {
            unit.name: unit_detail(unit, layout[unit.name], self.input_amax, self.rounding)
            for unit in _quantized_units(self.loaded.release, layout)
        }
        return {keys.key(LAYOUT, detail, shard): shard for shard in shards}

    def _missing(self, keys: Keys, shards: Sequence[Shard], layout: Mapping[str, str]) -> dict[str, Shard]:
        wanted = self._wanted(keys, shards, layout)
        done = self.store.have(wanted)
        return {key: shard for key, shard in wanted.items() if key not in done}

    @torch.inference_mode()
    def _round_ahead(self, layouts: Sequence[Mapping[str, str]]) -> None:
        """GPTQ goes down the layers once for all layouts instead of once for each."""
        if self.rounding.algorithm == "gptq":
            for unit in self.loaded.release.units:
                for name in sorted({layout[unit.name] for layout in layouts} - {BF16.name}):
                    self._quantized(unit, name)

    def _quantized(self, unit: Unit, format_name: str) -> dict[str, QuantizedLinear]:
        if (unit.name, format_name) in self._units:
            return self._units[unit.name, format_name]
        found = self._quantizer(unit, format_name)
        dtype = next(iter(self.loaded.model.parameters())).dtype
        for linear in found.values():
            # the cached value in the model's dtype: in float32 a 9B layout would take 36 GB beside its 18
            vars(linear)["weight"] = linear.weight.to(dtype)
        size = sum(linear.weight.nbytes + sum(t.nbytes for t in linear.tensors.values()) for linear in found.values())
        if self._kept + size <= _KEPT_BYTES or self.rounding.algorithm == "gptq":
            self._units[unit.name, format_name] = found
            self._kept += size
        return found


def _quantized_units(release: Release, layout: Mapping[str, str]) -> list[Unit]:
    return [unit for unit in release.units if layout[unit.name] != BF16.name]
