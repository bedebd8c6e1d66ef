"""Doing probes: down the layers once, everything before the probed unit taken from the states of the unchanged
model."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path

import torch

from clefquant.quantize.model import read_weight
from clefquant.quantize.simulate import simulated
from clefquant.quantize.unit import quantize_unit
from clefquant.recipes.formats import find_format
from clefquant.release.load import LoadedRelease
from clefquant.release.units import Unit
from clefquant.sensitivity.continuation import PreparedBatch, in_record_order, prepare, run_layers, run_mixer, run_mlp
from clefquant.sensitivity.probe import NOISE, REFERENCE, Keys, Work, make_probe
from clefquant.sensitivity.shards import Shard
from clefquant.sensitivity.states import States
from clefquant.sensitivity.store import Probe


@dataclass
class _Walk:
    """Where a walk is: prepared batches per shard, and their states at the layer it has reached."""

    loaded: LoadedRelease
    shards: Sequence[Shard]
    states: States
    batches: dict[int, list[PreparedBatch]] = field(default_factory=dict)

    def each(self, shard: int) -> Iterator[tuple[int, PreparedBatch, torch.Tensor]]:
        for number, batch in enumerate(self.batches[shard]):
            yield number, batch, self.states.get((shard, number), self.loaded.device)

    def enter(self, shard: int) -> None:
        self.batches[shard] = []
        for number, (batch, hidden) in enumerate(prepare(self.loaded, self.shards[shard])):
            self.batches[shard].append(batch)
            self.states.put((shard, number), hidden)

    def step(self, run: Callable[[PreparedBatch, torch.Tensor], torch.Tensor]) -> None:
        """Move every state half a layer on."""
        for shard in self.batches:
            for number, batch, hidden in self.each(shard):
                self.states.put((shard, number), run(batch, hidden))


@torch.inference_mode()
def reference_probe(loaded: LoadedRelease, keys: Keys, shard: Shard, *, regrouped: bool = False) -> Probe:
    """The unchanged model over a shard; ``regrouped``: in other batches, which shows the noise of the computation
    itself."""
    start = time.monotonic()
    used, name = (shard.regrouped(), NOISE) if regrouped else (shard, REFERENCE)
    parts = [(batch, run_layers(loaded, batch, hidden, 0)) for batch, hidden in prepare(loaded, used)]
    logits = in_record_order(used, parts)
    return make_probe(keys.key(name, None, shard), name, name, shard, time.monotonic() - start, logits)


@torch.inference_mode()
def probes(
    loaded: LoadedRelease,
    shards: Sequence[Shard],
    work: Sequence[Work],
    input_amax: Mapping[str, float],
    *,
    cache_bytes: int,
    spill_folder: Path | None = None,
) -> Iterator[Probe]:
    """Do ``work`` and yield each probe as it is finished, layer by layer, all formats of a unit in one visit.

    Every weight that is changed is put back before the next probe starts, also when one fails.
    """
    with States(cache_bytes, spill_folder) as states:
        walk = _Walk(loaded, shards, states)
        for shard in sorted({item.shard for item in work}):
            walk.enter(shard)
        ordered = sorted(work, key=lambda item: (item.unit.layer, item.unit.kind == "mlp"))
        halves = 0
        for unit, items in groupby(ordered, key=lambda item: item.unit):
            target = 2 * unit.layer + (unit.kind == "mlp")
            for half in range(halves, target):
                walk.step(_half_step(loaded, half // 2, mlp=half % 2 == 1))
            halves = target
            yield from _visit(walk, unit, list(items), input_amax)


def _half_step(
    loaded: LoadedRelease, layer: int, *, mlp: bool
) -> Callable[[PreparedBatch, torch.Tensor], torch.Tensor]:
    if mlp:
        return lambda _, middle: run_mlp(loaded, middle, layer)
    return lambda batch, hidden: run_mixer(loaded, batch, hidden, layer)


def _visit(walk: _Walk, unit: Unit, items: Sequence[Work], input_amax: Mapping[str, float]) -> Iterator[Probe]:
    """Probe one unit in every format and shard asked."""
    loaded = walk.loaded
    weights = {linear.name: read_weight(loaded.release.tensors[f"{linear.name}.weight"]) for linear in unit.linears}
    for name, of_format in groupby(items, key=lambda item: item.format):
        quantized = quantize_unit(unit, weights, find_format(name), input_amax)
        for item in of_format:
            start, shard = time.monotonic(), walk.shards[item.shard]
            with simulated(loaded, quantized):
                parts = [(batch, _continue(loaded, unit, batch, hidden)) for _, batch, hidden in walk.each(item.shard)]
            logits = in_record_order(shard, parts)
            yield make_probe(item.key, unit.name, name, shard, time.monotonic() - start, logits)


def _continue(loaded: LoadedRelease, unit: Unit, batch: PreparedBatch, hidden: torch.Tensor) -> torch.Tensor:
    """Option logits from the state that enters ``unit``."""
    if unit.kind == "mlp":
        return run_layers(loaded, batch, run_mlp(loaded, hidden, unit.layer), unit.layer + 1)
    return run_layers(loaded, batch, hidden, unit.layer)
