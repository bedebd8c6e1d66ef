"""Doing probes: down the layers once, everything before the probed unit taken from the states of the unchanged
model."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path

import torch

from clefquant.quantize.simulate import simulated
from clefquant.release.load import LoadedRelease
from clefquant.release.states import States
from clefquant.release.units import Unit
from clefquant.sensitivity.continuation import PreparedBatch, in_record_order, prepare, run_layers, run_mixer, run_mlp
from clefquant.sensitivity.probe import NOISE, REFERENCE, Keys, Work, make_probe
from clefquant.sensitivity.rounding import Quantizer
from clefquant.sensitivity.shards import Shard
from clefquant.sensitivity.store import Probe, ProbeStore


@dataclass
class Walk:
    """The states of a model's batches at the layer it has reached; it goes down the layers and never back.

    Use within ``states``. :meth:`enter` every shard before the first :meth:`probe`.
    """

    loaded: LoadedRelease
    shards: Sequence[Shard]
    states: States
    batches: dict[int, list[PreparedBatch]] = field(default_factory=dict)
    halves: int = 0

    @torch.inference_mode()
    def enter(self, shard: int) -> None:
        """Prepare a shard's batches at layer 0."""
        self.batches[shard] = []
        for number, (batch, hidden) in enumerate(prepare(self.loaded, self.shards[shard])):
            self.batches[shard].append(batch)
            self.states.put((shard, number), hidden)

    @torch.inference_mode()
    def probe(self, unit: Unit, items: Sequence[Work], quantizer: Quantizer) -> Iterator[Probe]:
        """Go to ``unit`` and probe it in every format and shard of ``items``.

        Every weight that is changed is put back before a probe is yielded, also when it fails.
        """
        while self.halves < _place(unit):
            self._step()
        for name, of_format in groupby(items, key=lambda item: item.format):
            quantized = quantizer(unit, name)
            for item in of_format:
                start, shard = time.monotonic(), self.shards[item.shard]
                with simulated(self.loaded, quantized):
                    parts = [(batch, _continue(self.loaded, unit, batch, x)) for _, batch, x in self._each(item.shard)]
                logits = in_record_order(shard, parts)
                yield make_probe(item.key, unit.name, name, shard, time.monotonic() - start, logits)

    def _each(self, shard: int) -> Iterator[tuple[int, PreparedBatch, torch.Tensor]]:
        for number, batch in enumerate(self.batches[shard]):
            yield number, batch, self.states.get((shard, number), self.loaded.device)

    def _step(self) -> None:
        """Move every state half a layer on."""
        layer, in_mlp = divmod(self.halves, 2)
        for shard in self.batches:
            for number, batch, x in self._each(shard):
                moved = run_mlp(self.loaded, x, layer) if in_mlp else run_mixer(self.loaded, batch, x, layer)
                self.states.put((shard, number), moved)
        self.halves += 1


def by_unit(work: Sequence[Work]) -> list[tuple[Unit, list[Work]]]:
    """Work grouped by unit, in the order a walk meets them."""
    ordered = sorted(work, key=lambda item: _place(item.unit))
    return [(unit, list(items)) for unit, items in groupby(ordered, key=lambda item: item.unit)]


def probes(
    loaded: LoadedRelease,
    shards: Sequence[Shard],
    work: Sequence[Work],
    quantizer: Quantizer,
    *,
    cache_bytes: int,
    spill_folder: Path | None = None,
) -> Iterator[Probe]:
    """Do ``work`` and yield each probe as it is finished, layer by layer, all formats of a unit in one visit."""
    with States(cache_bytes, spill_folder) as states:
        walk = Walk(loaded, shards, states)
        for shard in sorted({item.shard for item in work}):
            walk.enter(shard)
        for unit, items in by_unit(work):
            yield from walk.probe(unit, items, quantizer)


@torch.inference_mode()
def reference_probe(
    store: ProbeStore, loaded: LoadedRelease, keys: Keys, shard: Shard, *, regrouped: bool = False
) -> Probe:
    """The unchanged model over a shard, from ``store`` when it is there, else added to it; ``regrouped``: in other
    batches, which shows the noise of the computation itself."""
    name = NOISE if regrouped else REFERENCE
    key = keys.key(name, None, shard)
    if not store.have([key]):
        start = time.monotonic()
        used = shard.regrouped() if regrouped else shard
        parts = [(batch, run_layers(loaded, batch, hidden, 0)) for batch, hidden in prepare(loaded, used)]
        logits = in_record_order(used, parts)
        store.add(make_probe(key, name, name, shard, time.monotonic() - start, logits))
    return store.get(key)


def _place(unit: Unit) -> int:
    """Half layers before a unit."""
    return 2 * unit.layer + (unit.kind == "mlp")


def _continue(loaded: LoadedRelease, unit: Unit, batch: PreparedBatch, hidden: torch.Tensor) -> torch.Tensor:
    """Option logits from the state that enters ``unit``."""
    if unit.kind == "mlp":
        return run_layers(loaded, batch, run_mlp(loaded, hidden, unit.layer), unit.layer + 1)
    return run_layers(loaded, batch, hidden, unit.layer)
