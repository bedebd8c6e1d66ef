"""A cheap estimate of every unit's damage from one forward and one backward pass.

To second order, KL(p ‖ q) = 1/2 d' F d with the Fisher information F = E_{y~p}[g g'], g the gradient of log p(y).
With one answer y drawn per question from the model's own probabilities, and D the change of a linear's output under a
format (rounded weights and rounded inputs), a record's estimate is 1/2 (sum over the unit's linears and tokens of g .
D)^2: questions are independent given the record, so cross terms vanish on average. Sampling one answer makes it noisy
per record and unbiased on average.

Every unit's dequantized weights are kept in host memory, one copy per format.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.nn.functional as functional

from clefquant.calibration.stored import StoredRecord
from clefquant.progress import SILENT, Progress
from clefquant.quantize.inputs import fake_quantize_input
from clefquant.quantize.model import quantize_from_disk
from clefquant.quantize.scales import DEFAULT_SCALES, Scales
from clefquant.quantize.unit import QuantizedLinear
from clefquant.release.load import DEFAULT_BATCH_TOKENS, LoadedRelease
from clefquant.sensitivity.assemble import able_formats, assemble, check_statistics, checked_formats
from clefquant.sensitivity.continuation import PreparedBatch, prepare, run_layers
from clefquant.sensitivity.metrics import mean_of_sums
from clefquant.sensitivity.rounding import Rounding
from clefquant.sensitivity.shards import DEFAULT_SHARD_TOKENS, Shard, make_shards
from clefquant.sensitivity.stability import with_ranks
from clefquant.sensitivity.table import Entry, Figure, SensitivityTable
from clefquant.sensitivity.tabulate import Questions


def fisher_table(
    loaded: LoadedRelease,
    input_amax: Mapping[str, float],
    records: Sequence[StoredRecord],
    formats: Sequence[str],
    *,
    batch_tokens: int = DEFAULT_BATCH_TOKENS,
    shard_tokens: int = DEFAULT_SHARD_TOKENS,
    seed: int = 0,
    scales: Scales = DEFAULT_SCALES,
    progress: Progress = SILENT,
) -> SensitivityTable:
    """A table of estimates (``kl`` alone) of every unit and format, rounded to nearest; it has no noise floor.

    ``scales``: how block scales are chosen.
    """
    names = checked_formats(loaded.release, formats)
    check_statistics(loaded.release, names, input_amax)
    shards = make_shards(records, batch_tokens, shard_tokens)
    whole = Shard(tuple(record for shard in shards for record in shard.records), batch_tokens)
    entries = _entries(loaded, whole, names, input_amax, seed, scales, progress)
    if failed := [entry for entry in entries if entry.failed_logits]:
        progress.warn(f"{len(failed)} estimates are NaN or infinite and are left out, first {failed[0].unit}.")
    noise = Entry(unit="", format="noise")
    table = assemble(loaded.release, names, shards, input_amax, noise, entries, metric="fisher")
    return with_ranks(table.model_copy(update={"rounding": Rounding(scales=scales).named()}))


def _entries(
    loaded: LoadedRelease, shard: Shard, formats: Sequence[str], input_amax: Mapping[str, float], seed: int,
    scales: Scales, progress: Progress,
) -> list[Entry]:  # fmt: skip
    changes = {
        (unit.name, name): quantize_from_disk(loaded.release, unit, name, input_amax, scales=scales)
        for unit in loaded.release.units
        for name in able_formats(unit, formats)
    }
    sums = {pair: torch.zeros(len(shard.records), dtype=torch.float64) for pair in changes}
    generator = torch.Generator().manual_seed(seed)
    with progress.task("estimating", len(shard.groups), "batches") as task:
        with torch.no_grad():
            batches = list(prepare(loaded, shard))
        for batch, hidden in batches:
            with _watching(loaded, changes) as watch:
                logits = run_layers(loaded, batch, hidden.requires_grad_(), 0)
                _sampled_log_likelihood(shard, batch, logits, generator).backward()  # type: ignore[no-untyped-call]
            for pair, per_row in watch.sums.items():
                sums[pair][list(batch.records)] += per_row.double().cpu()
            hidden.grad = None
            task.advance()
    questions = Questions(shard.records)
    return [_entry(unit, name, 0.5 * total.square().numpy(), questions) for (unit, name), total in sums.items()]


def rank_correlation(entries: Sequence[Entry], others: Sequence[Entry]) -> dict[str, float]:
    """Spearman's correlation of two tables' KL per format, over the units that both have."""
    from scipy.stats import spearmanr

    known = {(e.unit, e.format): e.kl for e in others if not e.failed_logits}
    pairs: dict[str, list[tuple[float, float]]] = {}
    for entry in entries:
        if not entry.failed_logits and (entry.unit, entry.format) in known:
            pairs.setdefault(entry.format, []).append((entry.kl, known[entry.unit, entry.format]))
    return {
        name: float(spearmanr(*zip(*found, strict=True)).statistic) for name, found in pairs.items() if len(found) > 2
    }


@dataclass
class _Watch:
    """Per unit and format, g . D of every row of the running batch: [B]."""

    sums: dict[tuple[str, str], torch.Tensor] = field(default_factory=dict)

    def add(self, pair: tuple[str, str], products: torch.Tensor) -> None:
        self.sums[pair] = self.sums.get(pair, torch.zeros_like(products)) + products


@contextmanager
def _watching(
    loaded: LoadedRelease, changes: Mapping[tuple[str, str], Mapping[str, QuantizedLinear]]
) -> Iterator[_Watch]:
    """Within the block every quantizable linear compares its output with each format's when its gradient arrives."""
    watch = _Watch()
    with ExitStack() as undo:
        for unit in loaded.release.units:
            for linear in unit.linears:
                variants = [(pair, found[linear.name]) for pair, found in changes.items() if pair[0] == unit.name]

                def hook(module: Any, inputs: Any, output: torch.Tensor, variants: Any = tuple(variants)) -> None:
                    x = inputs[0].detach()

                    def arrived(gradient: torch.Tensor) -> None:
                        with torch.no_grad():
                            plain = functional.linear(x, module.weight)
                            for pair, quantized in variants:
                                change = _output(x, quantized) - plain
                                watch.add(pair, (gradient * change).sum(dim=(1, 2)))

                    output.register_hook(arrived)  # type: ignore[no-untyped-call]

                undo.callback(loaded.module(linear.name).register_forward_hook(hook).remove)
        yield watch


def _output(x: torch.Tensor, quantized: QuantizedLinear) -> torch.Tensor:
    """What a quantized linear makes of ``x`` [B, L, I]."""
    stored = quantized.tensors.get("input_global_scale")
    scale = None if stored is None else stored.to(x.device)
    rounded = fake_quantize_input(x, quantized.scheme, scale)
    return functional.linear(rounded, quantized.weight.to(device=x.device, dtype=x.dtype))


def _sampled_log_likelihood(
    shard: Shard, batch: PreparedBatch, logits: torch.Tensor, generator: torch.Generator
) -> torch.Tensor:
    """Sum of log p(y) of one drawn answer per question."""
    sizes = [len(q.option_ids) for index in batch.records for q in shard.records[index].encoded.questions]
    total = logits.new_zeros(())
    for question in torch.split(logits, sizes):
        drawn = torch.multinomial(question.detach().float().softmax(-1).cpu(), 1, generator=generator)
        total = total + question.log_softmax(-1)[int(drawn)]
    return total


def _entry(unit: str, format_name: str, per_record: Any, questions: Questions) -> Entry:
    failed = int((~np.isfinite(per_record)).sum())
    if failed:
        return Entry(unit=unit, format=format_name, failed_logits=failed)
    mean = mean_of_sums(per_record, questions.counted)
    figure = Figure(value=mean.value, error=mean.error, questions=mean.questions)
    return Entry(unit=unit, format=format_name, figures={"kl": figure}, record_kl=per_record.tolist())
