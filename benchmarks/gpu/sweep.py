"""A sweep of a 9B-shaped release against the same probes as full forward evaluations, and what its units cost to run.

    python benchmarks/flash_release.py /tmp/flash --device cuda
    python benchmarks/gpu/sweep.py /tmp/flash --out sweep.json

The sweep is timed whole: the unchanged model, its noise floor, every probe, the table. A full evaluation quantizes a
unit, simulates it and runs every record through the whole model: once as a user without the sweep would, through the
release's own forward, and once with the head computed batch by batch as the sweep does. ``--sample`` probes drawn at
random are timed both ways and scaled to all of them, half before and half after the sweep.
"""

import argparse
import json
import os
import random
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from loguru import logger

from clefquant.calibration.stored import StoredRecord
from clefquant.quantize.simulate import simulated
from clefquant.quantize.unit import quantize_unit
from clefquant.recipes.formats import find_format
from clefquant.release.load import LoadedRelease, load_release, option_logits
from clefquant.release.release import open_release
from clefquant.release.units import Unit
from clefquant.sensitivity.continuation import in_record_order, prepare, run_layers
from clefquant.sensitivity.cost import measure_cost
from clefquant.sensitivity.shards import BATCH_TOKENS, Shard, make_shards
from clefquant.sensitivity.source import source_weights
from clefquant.sensitivity.sweep import sweep

QUESTIONS = {
    "late": {"type": "noul", "instructions": "Is it about a late delivery?"},
    "team": {"type": "choice", "instructions": "Which team?", "criteria": {"a": "money", "b": "post", "c": "bugs"}},
    "urgency": {"type": "score", "instructions": "How urgent?", "criteria": ["can wait", "this week", "today"]},
}
WORDS = ("parcel", "never", "came", "invoice", "seven", "server", "down", "again", "thanks", "please", "Tuesday", "who")


def seconds(device: torch.device, work: Callable[[], object]) -> float:
    """Wall time of one call, the device's work included."""

    def wait() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize()

    wait()
    start = time.perf_counter()
    work()
    wait()
    return time.perf_counter() - start


def records(loaded: LoadedRelease, count: int, tokens: int) -> list[StoredRecord]:
    """Records of random words, as long as fits ``tokens``, each with three questions."""
    draw, found = random.Random(0), []
    for number in range(count):
        words = [draw.choice(WORDS) for _ in range(tokens)]

        def encoded(length: int, words: Sequence[str] = tuple(words)) -> Any:
            record = {"state": " ".join(words[:length]), "questions": QUESTIONS}
            return loaded.code.encode_record(loaded.processor.tokenizer, record)

        low, high = 0, tokens
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if len(encoded(middle).input_ids) <= tokens else (low, middle)
        one = replace(encoded(low), record_id=f"r{number}")
        found.append(StoredRecord(f"r{number}", f"g{number}", "random words", {}, {}, one))
    return found


@torch.inference_mode()
def largest_inputs(loaded: LoadedRelease, encoded: Sequence[Any]) -> dict[str, float]:
    """Largest absolute input of every quantizable linear."""
    seen: dict[str, torch.Tensor] = {}
    with ExitStack() as undo:
        for linear in (linear for unit in loaded.release.units for linear in unit.linears):

            def hook(module: object, inputs: tuple[torch.Tensor, ...], name: str = linear.name) -> None:
                seen[name] = inputs[0].abs().amax()

            undo.callback(loaded.module(linear.name).register_forward_pre_hook(hook).remove)
        list(option_logits(loaded, encoded, batch_tokens=10**9))
    return {name: float(value) for name, value in seen.items()}


def full_evaluations(
    loaded: LoadedRelease, data: Sequence[StoredRecord], amax: Mapping[str, float], batch_tokens: int
) -> dict[str, Callable[[Unit, str], None]]:
    """Two ways to score one unit in one format by whole forwards."""
    encoded = [record.encoded for record in data]
    shard = Shard(tuple(data), batch_tokens)

    @torch.inference_mode()
    def batched_head() -> None:
        in_record_order(shard, [(batch, run_layers(loaded, batch, x, 0)) for batch, x in prepare(loaded, shard)])

    def by(forward: Callable[[], object]) -> Callable[[Unit, str], None]:
        def evaluate(unit: Unit, name: str) -> None:
            with simulated(loaded, quantize_unit(unit, source_weights(loaded, unit), find_format(name), amax)):
                forward()

        return evaluate

    release_forward = by(lambda: list(option_logits(loaded, encoded, batch_tokens=batch_tokens)))
    return {"release forward": release_forward, "batched head": by(batched_head)}


# Long: a script, read from top to bottom.
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", help="a release folder, or nano")
    parser.add_argument("--formats", default="nvfp4,mxfp4,fp8")
    parser.add_argument("--records", type=int, default=128)
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--batch-tokens", type=int)
    parser.add_argument("--sample", type=int, default=6, help="probes timed as full evaluations")
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", ".")) / "sweep.json")
    options = parser.parse_args()
    os.environ.setdefault("LLM_COMPRESSOR_LOG_DISABLED", "true")
    for library in ("llmcompressor", "compressed_tensors"):
        logger.disable(library)  # they write a line per unit

    began = time.perf_counter()
    release, formats = open_release(options.folder), options.formats.split(",")
    cost = measure_cost(release, formats)
    bf16 = {unit: times["bf16"] for unit, times in cost.units.items()}
    relative = {
        name: round(sum(times[name] for times in cost.units.values()) / sum(bf16.values()), 3) for name in cost.kernels
    }
    print("RESULT cost of all units relative to bf16:", json.dumps(relative), json.dumps(cost.kernels), flush=True)
    loaded = load_release(release)
    device = loaded.device
    batch_tokens = options.batch_tokens or BATCH_TOKENS[device.type]
    data = records(loaded, options.records, options.tokens)
    amax = largest_inputs(loaded, [record.encoded for record in data[:8]])
    hashed = seconds(device, lambda: release.fingerprint)
    ways = full_evaluations(loaded, data, amax, batch_tokens)
    pairs = [(unit, name) for unit in release.units for name in formats]
    for name in formats:  # the first calls import, allocate, compile and tune
        for way in ways.values():
            way(release.units[0], name)
    loaded_s = time.perf_counter() - began

    chosen = random.Random(0).sample(pairs, min(options.sample, len(pairs)))
    times: dict[str, list[float]] = {way: [] for way in ways}

    def time_full(part: Sequence[tuple[Unit, str]]) -> None:
        for unit, name in part:
            for way, evaluate in ways.items():
                times[way].append(seconds(device, partial(evaluate, unit, name)))

    time_full(chosen[::2])
    with TemporaryDirectory() as folder:
        swept = seconds(device, lambda: sweep(loaded, amax, data, formats, Path(folder), batch_tokens=batch_tokens))
    time_full(chosen[1::2])
    tokens = sum(record.tokens for record in data)
    whole = {way: sum(found) / len(found) * len(pairs) for way, found in times.items()}
    result = {
        "device": cost.device,
        "torch": torch.__version__,
        "units": len(release.units),
        "formats": formats,
        "records": len(data),
        "tokens": tokens,
        "batch_tokens": batch_tokens,
        "shards": len(make_shards(data, batch_tokens, tokens)),
        "probes": len(pairs),
        "full_evaluations_timed": len(chosen),
        "loading_and_warm_up_s": round(loaded_s, 1),
        "hashing_s": round(hashed, 1),
        "sweep_s": round(swept, 1),
        "one_full_evaluation_s": {way: round(value / len(pairs), 3) for way, value in whole.items()},
        "full_evaluations_s": {way: round(value, 1) for way, value in whole.items()},
        "ratio": {way: round(swept / value, 3) for way, value in whole.items()},
        "bar": 0.6,
        "peak_gib": round(torch.cuda.max_memory_allocated() / 2**30, 1) if device.type == "cuda" else None,
        "cost_relative_to_bf16": relative,
        "cost": cost.model_dump(),
    }
    options.out.write_text(json.dumps(result, indent=2))
    for key in ("sweep_s", "one_full_evaluation_s", "full_evaluations_s", "ratio", "loading_and_warm_up_s", "peak_gib"):
        print(f"RESULT {key}:", json.dumps(result[key]))


if __name__ == "__main__":
    main()
