"""Quantized releases, int8 tables and tensor parallelism on the real vLLM CPU engine, against simulations.

The reference of a quantized release is the same model in transformers with dequantized weights and fake-quantized
activations; max|Δp| is over all options of all records, beside what computing it in bfloat16 alone changes.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from comparing import Probabilities, average, check, largest, reference
from nano import VOCABULARY, load_reference, make_release, records
from quantized import FORMATS, quantize, shrink_tables, simulate

pytest.importorskip("vllm")

from clef_vllm.checks import kernel_lines
from clef_vllm.release import ReleaseError

pytestmark = pytest.mark.engine
MIXED = {layer: list(FORMATS)[layer % 3] for layer in range(8)}


def test_int8_tables(nano: Path, engine: Any, tmp_path: Path, record_property: Any) -> None:
    folder, tables = shrink_tables(nano, tmp_path / "int8", marker="0.1.0")

    def use_tables(model: Any) -> None:
        model.load_state_dict(tables, strict=False)

    expected = reference(nano, use_tables)
    clef = engine(folder)
    check(clef.probabilities(records()), expected, record_property)
    found = clef.logits(records())
    clef.close()
    kept = engine(folder, lexical_table="cpu")
    assert kept.logits(records()) == found, "where the rows are kept changes answers"


def test_host_tables_need_int8_tables(nano: Path, engine: Any) -> None:
    with pytest.raises(ReleaseError, match="only int8 tables can be kept in host memory"):
        engine(nano, lexical_table="cpu")


def test_shrunk_tables_stop_the_releases_own_loader(nano: Path, tmp_path: Path) -> None:
    """Readers that do not know int8 tables fail on the marker instead of answering from tables they never loaded."""
    folder, _ = shrink_tables(nano, tmp_path / "int8", marker="0.1.0")
    with pytest.raises(TypeError, match="requires_clef_vllm"):
        load_reference().load_release_model(folder, device="cpu")


TP_SCRIPT = """
import json, sys
from clef_vllm import ClefVLLM
from nano import records

if __name__ == "__main__":
    with ClefVLLM(sys.argv[1], max_model_len=4096, enforce_eager=True, images=0, tensor_parallel_size=2,
                  lexical_table=sys.argv[2]) as clef:
        print("RESULT" + json.dumps(clef.probabilities(records())))
"""


def over_two_ranks(folder: Path, work: Path, lexical_table: str = "device") -> Probabilities:
    """Probabilities from an engine of two ranks; a process of its own, because each rank is one."""
    if (os.cpu_count() or 1) < 2:
        pytest.skip("two ranks need two CPU cores")
    script = work / "tp.py"
    script.write_text(TP_SCRIPT)
    environment = {
        **os.environ,
        "VLLM_CPU_OMP_THREADS_BIND": "0|1",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "1",
        "PYTHONPATH": f"{Path(__file__).parent}:{os.environ.get('PYTHONPATH', '')}",
    }
    command = [sys.executable, str(script), str(folder), lexical_table]
    ended = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert ended.returncode == 0, ended.stderr[-3000:]
    (line,) = [line for line in ended.stdout.splitlines() if line.startswith("RESULT")]
    answers: Probabilities = json.loads(line.removeprefix("RESULT"))
    return answers


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A release that two ranks can share, with a vocabulary that they cannot share evenly."""
    return make_release(tmp_path_factory.mktemp("wide") / "release", key_heads=2, vocabulary=VOCABULARY - 1)


def test_two_ranks_answer_as_one(wide: Path, engine: Any, tmp_path: Path, record_property: Any) -> None:
    found = over_two_ranks(wide, tmp_path)
    check(found, reference(wide), record_property)
    check(found, engine(wide).probabilities(records()), record_property)


def test_int8_tables_over_two_ranks(wide: Path, tmp_path: Path, record_property: Any) -> None:
    folder, tables = shrink_tables(wide, tmp_path / "int8", marker="0.1.0")
    expected = reference(wide, lambda model: model.load_state_dict(tables, strict=False))
    check(over_two_ranks(folder, tmp_path, "cpu"), expected, record_property)


@pytest.mark.parametrize("layout", [*FORMATS, pytest.param("mixed", marks=pytest.mark.every_version)])
def test_quantized(nano: Path, engine: Any, tmp_path: Path, plain: Probabilities, layout: str,
                   record_property: Any) -> None:  # fmt: skip
    formats = MIXED if layout == "mixed" else layout
    folder = quantize(nano, tmp_path / layout, formats)
    expected = reference(nano, lambda model: simulate(model, folder, formats))
    clef = engine(folder, max_num_batched_tokens=256)
    found = clef.probabilities(records())
    exact = reference(nano, lambda model: simulate(model, folder, formats), dtype=torch.float32)
    record_property("noise floor, bf16 against fp32 in transformers", round(largest(exact, expected), 5))
    check(found, expected, record_property)
    (lines,) = clef.llm.apply_model(kernel_lines)
    kernels = {"FP8_DYNAMIC": "EmulatedFp8Kernel", "NVFP4": "EmulatedNvFp4Kernel", "MXFP4": "EmulatedMxFp4Kernel"}
    for name in kernels if layout == "mixed" else [layout]:
        assert f"{kernels[name]} (emulated" in "\n".join(lines)
    # On random weights FP8 and NVFP4 move answers less than bf16 noise does; their arithmetic is compared layer by
    # layer in test_cpu_kernels.py, and on a trained release through CLEF_RELEASE.
    if layout in ("MXFP4", "mixed"):
        assert average(found, plain) > average(found, expected), "the quantized release answers like the BF16 one"
