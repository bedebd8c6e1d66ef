"""Calibrating and quantizing a 9B-shaped release to NVFP4: our time beside the bare forward, and bits beside oneshot.

    python benchmarks/flash_release.py /tmp/flash --device cuda
    python benchmarks/flash_release.py /tmp/flash4 --layers 4 --device cuda
    python benchmarks/gpu/quantize.py /tmp/flash --parity /tmp/flash4 --out quantize.json

The bare forward runs the loaded model over the same records in the same batches. Ours is timed from the release on
disk (its pages in memory) to the finished checkpoint on disk: reading, calibrating, quantizing and saving overlap.
"""

import argparse
import json
import shutil
import time
from collections.abc import Callable
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import torch
from safetensors.torch import load_file

from clefquant.quantize.algorithms import rtn
from clefquant.quantize.checkpoint import write_checkpoint
from clefquant.recipes.config import config_groups, ignored_linears
from clefquant.recipes.fused import fused_gdn_inputs
from clefquant.recipes.layout import uniform_layout
from clefquant.release.load import batches, load_release
from clefquant.release.release import Release, open_release

RECORD = {"state": "a parcel", "questions": {"late": {"type": "noul", "instructions": "Is it late?"}}}


def records(release: Release, count: int, tokens: int) -> list[Any]:
    """Encoded records of random tokens."""
    from transformers import AutoTokenizer

    from clefquant.release.code import release_code

    tokenizer = AutoTokenizer.from_pretrained(release.path)
    one = release_code(release.path).encode_record(tokenizer, RECORD)
    ids = torch.randint(10, 250, (count, tokens), generator=torch.Generator().manual_seed(0))
    return [replace(one, input_ids=row.tolist()) for row in ids]


def seconds(work: Callable[[], object]) -> float:
    """Wall time of one call, the device's work included."""
    torch.cuda.synchronize()
    start = time.perf_counter()
    work()
    torch.cuda.synchronize()
    return time.perf_counter() - start


@torch.inference_mode()
def bare_forward(release: Release, encoded: list[Any], batch_tokens: int) -> float:
    """Seconds of the loaded decoder over the records, the second time."""
    loaded = load_release(release)
    ids = torch.tensor([record.input_ids for record in encoded], device="cuda")
    groups = list(batches([len(row) for row in ids], batch_tokens))

    def forward() -> None:
        for group in groups:
            loaded.text_model(input_ids=ids[group], use_cache=False)

    seconds(forward)
    return seconds(forward)


def ours(release: Release, encoded: list[Any], out: Path) -> dict[str, float]:
    """Seconds of checking the source and of everything after that; peak GPU memory."""
    layout = uniform_layout(release, "nvfp4")
    torch.cuda.reset_peak_memory_stats()
    fresh = open_release(release.path)
    checked = seconds(lambda: fresh.fingerprint)
    made = seconds(lambda: write_checkpoint(fresh, layout, rtn(fresh, layout, encoded), out))
    return {"check": checked, "quantize": made, "peak_gib": torch.cuda.max_memory_allocated() / 2**30}


@contextmanager
def norms_left_alone() -> Any:
    """oneshot without its rewriting of norm weights, which changes them by a rounding."""
    entry = import_module("llmcompressor.entrypoints.oneshot")
    kept, entry.norm_calibration_context = entry.norm_calibration_context, lambda *_, **__: nullcontext()
    try:
        yield
    finally:
        entry.norm_calibration_context = kept


def parity(folder: Path, count: int, tokens: int, work: Path) -> dict[str, float]:
    """Our tensors against oneshot's on one release: how many are bit-equal, and the largest ratio of input scales."""
    from llmcompressor import oneshot
    from llmcompressor.modifiers.quantization import QuantizationModifier
    from torch.utils.data import DataLoader

    release = open_release(folder)
    encoded = records(release, count, tokens)
    ours(release, encoded, work / "ours")
    model = load_release(release).model.language_model
    rows = [{"input_ids": torch.tensor([e.input_ids]), "attention_mask": torch.ones(1, tokens).long()} for e in encoded]
    units = uniform_layout(release, "nvfp4").units
    recipe = QuantizationModifier(config_groups=config_groups(release, units), ignore=ignored_linears(release, units))
    with fused_gdn_inputs(), norms_left_alone():
        oneshot(model=model, recipe=recipe, pipeline="basic", dataset=DataLoader(rows, batch_size=None))
    model.save_pretrained(work / "theirs", save_compressed=True)
    mine, theirs = load_file(work / "ours" / "model.safetensors"), load_file(work / "theirs" / "model.safetensors")
    assert mine.keys() == theirs.keys()
    inputs = [name for name in mine if name.endswith("input_global_scale")]
    rest = [name for name in mine if name not in inputs]
    return {
        "tensors": len(rest),
        "equal": sum(torch.equal(mine[n].view(torch.uint8), theirs[n].view(torch.uint8)) for n in rest),
        "input_scales": len(inputs),
        "input_scales_apart": max(abs(float(mine[n] / theirs[n]) - 1) for n in inputs),
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--parity", type=Path, help="a smaller release to compare with oneshot bit by bit")
    parser.add_argument("--records", type=int, default=128)
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--out", type=Path, default=Path("quantize.json"))
    options = parser.parse_args()
    work, result = Path(mkdtemp()), {}
    if options.parity:
        result["parity"] = parity(options.parity, 4, options.tokens, work)
        print("RESULT parity", result["parity"], flush=True)
    release = open_release(options.folder)
    encoded = records(release, options.records, options.tokens)
    for name in ("cold", "warm"):
        result[name] = ours(release, encoded, work / "checkpoint")
        print("RESULT", name, result[name], flush=True)
        shutil.rmtree(work / "checkpoint")
    for batch_tokens in (4096, 16384):
        taken = bare_forward(release, encoded, batch_tokens)
        result[f"forward_{batch_tokens}"] = taken
        rate = options.records * options.tokens / taken
        ratio = result["warm"]["quantize"] / taken
        print(
            f"RESULT bare forward, {batch_tokens} tokens a batch: {taken:.2f} s, {rate:,.0f} tok/s; ours {ratio:.2f}x",
            flush=True,
        )
        torch.cuda.empty_cache()
    options.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
