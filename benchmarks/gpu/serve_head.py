"""The joint head alone on a GPU, sizes of Clef-Flash: ours beside the release's, one step of 16,384 tokens.

    PYTHONPATH=plugins/clef_vllm python benchmarks/gpu/serve_head.py --release-code joint_schema_model.py --out o.jsonl

Times are medians with the indices built anew each time, as in the engine; ours runs under CUDA's sync debug mode first,
which fails on any operation that makes the host wait for the device.
"""

import argparse
import importlib.util
import json
import random
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import torch
from clef_vllm.head import JointHead
from clef_vllm.indices import build_batch
from clef_vllm.layout import parse_layout
from serve_engine import WORKLOADS, make_record

SIZES = {"hidden_size": 4096, "width": 1024, "routing_layers": 2, "layers": 4, "heads": 16, "feedforward": 4096}
VOCABULARY, STEP_TOKENS, REPEATS = 8192, 16384, 7


def load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("release_code", path)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules["release_code"] = module
    spec.loader.exec_module(module)
    return module


def milliseconds(work: Callable[[], Any], device: torch.device) -> float:
    times = []
    for _ in range(REPEATS + 2):
        synchronize(device)
        begun = time.perf_counter()
        work()
        synchronize(device)
        times.append((time.perf_counter() - begun) * 1e3)
    return statistics.median(times[2:])


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


@torch.inference_mode()
def compare(theirs: Any, ours: JointHead, case: tuple[int, int, int, float], count: int, dtype: torch.dtype,
            device: torch.device) -> dict[str, Any]:  # fmt: skip
    tokens, questions, options, _ = case
    rng = random.Random(0)
    records = [make_record(tokens, questions, options, rng) for _ in range(count)]
    prompts = [np.array(ids) for ids, _ in records]
    hidden = torch.randn(count * tokens, SIZES["hidden_size"], device=device, dtype=dtype)
    table = torch.randn(VOCABULARY, SIZES["hidden_size"], device=device, dtype=dtype)

    def run_ours() -> torch.Tensor:
        schemas = [parse_layout(layout, tokens) for _, layout in records]
        batch = build_batch([schema for schema in schemas if schema], prompts, device)
        return ours(hidden, table[batch.lexical_ids], batch)

    def run_theirs() -> torch.Tensor:
        logits = []
        for (ids, layout), states in zip(records, hidden.split(tokens), strict=True):
            asked = [
                SimpleNamespace(question_type=kind, question_span=[at + tokens for at in span],
                                option_spans=[(a + tokens, b + tokens) for a, b in spans])
                for kind, span, spans in layout
            ]  # fmt: skip
            row = torch.tensor([ids], device=device)
            found = theirs(states[None], row, torch.ones_like(row), [SimpleNamespace(questions=asked)], table)[0]
            logits.append(torch.cat(found).float())
        return torch.cat(logits)

    run_ours()
    if device.type == "cuda":
        torch.cuda.set_sync_debug_mode("error")
    found = run_ours()
    if device.type == "cuda":
        torch.cuda.set_sync_debug_mode("default")
    difference = float((found - run_theirs()).abs().max())
    mine, reference = milliseconds(run_ours, device), milliseconds(run_theirs, device)
    return {"ours_ms": round(mine, 3), "release_ms": round(reference, 3), "ratio": round(mine / reference, 4),
            "max_difference": difference}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--release-code", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", default="cuda")
    args = parser.parse_args()
    device = torch.device(args.device)
    torch.manual_seed(0)
    theirs = load(args.release_code).JointSchemaHead(**SIZES).eval().to(device)
    ours = JointHead(**SIZES).eval().to(device)
    ours.load_state_dict(theirs.state_dict(), strict=True)
    for dtype in (torch.float32, torch.bfloat16):
        theirs, ours = theirs.to(dtype), ours.to(dtype)
        for name, case in WORKLOADS.items():
            for count in (1, STEP_TOKENS // case[0]):
                found = compare(theirs, ours, case, count, dtype, device)
                line = {"head": name, "records": count, "dtype": str(dtype), **found}
                print(json.dumps(line), flush=True)
                with args.out.open("a") as file:
                    file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
