"""End to end on the real vLLM CPU engine: every kind of release against the reference in transformers.

max|Δp| is over all options of all records. The reference of a quantized release is the same model in transformers with
dequantized weights and fake-quantized activations. Engines run inside the test process, one at a time.
"""

import gc
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from nano import load_reference, make_image, make_release, records
from quantized import FORMATS, quantize, shrink_tables, simulate

pytest.importorskip("vllm")

from clef_vllm.checks import kernel_lines

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"

pytestmark = pytest.mark.engine
TOLERANCE = 0.02
MIXED = {layer: list(FORMATS)[layer % 3] for layer in range(8)}
Probabilities = list[dict[str, dict[str, float]]]


@pytest.fixture
def engine() -> Iterator[Callable[..., Any]]:
    """Start engines on the CPU back end; at most one at a time, closed at the end of the test."""
    from vllm.distributed import cleanup_dist_env_and_memory

    from clef_vllm import ClefVLLM

    started: list[Any] = []

    def start(path: Path, **options: Any) -> Any:
        defaults = {"max_model_len": 4096, "enforce_eager": True, "distributed_executor_backend": "uni", "images": 0}
        started.append(ClefVLLM(path, **{**defaults, **options}))
        return started[-1]

    yield start
    for one in started:
        one.close()
    started.clear()
    gc.collect()
    cleanup_dist_env_and_memory()


def reference(path: Path, prepare: Callable[[Any], None] | None = None, asked: list[Any] | None = None,
              dtype: torch.dtype = torch.bfloat16) -> Probabilities:  # fmt: skip
    """The release's own code in transformers; `prepare` may change the backbone first."""
    code = load_reference()
    model, processor = code.load_release_model(path, device="cpu", dtype=dtype)
    if prepare:
        prepare(model.language_model)
    results = []
    for record in asked or records():
        encoded = code.encode_record(processor.tokenizer, record, max_length=4096, processor=processor)
        batch = code.collate_records([encoded], processor.tokenizer.pad_token_id, torch.device("cpu"))
        with torch.inference_mode():
            logits = model(batch)[0]
        results.append({
            q.question_id: dict(zip(q.option_ids, values.float().softmax(-1).tolist(), strict=True))
            for q, values in zip(encoded.questions, logits, strict=True)
        })  # fmt: skip
    return results


def largest(found: Probabilities, expected: Probabilities) -> float:
    assert [{q: list(o) for q, o in r.items()} for r in found] == [{q: list(o) for q, o in r.items()} for r in expected]
    return max(abs(f[q][o] - e[q][o]) for f, e in zip(found, expected, strict=True) for q in e for o in e[q])


def average(found: Probabilities, expected: Probabilities) -> float:
    """Mean |Δp| over records, so that the record with 77 options does not outvote the others."""
    values = [[abs(f[q][o] - e[q][o]) for q in e for o in e[q]] for f, e in zip(found, expected, strict=True)]
    return sum(sum(record) / len(record) for record in values) / len(values)


def same_top(found: Probabilities, expected: Probabilities, margin: float = 0.05) -> None:
    """The same first option wherever the reference's two best are further apart than `margin`."""
    for f, e in zip(found, expected, strict=True):
        for question, options in e.items():
            best = sorted(options.values(), reverse=True)
            if len(best) > 1 and best[0] - best[1] > margin:
                assert max(f[question], key=f[question].__getitem__) == max(options, key=options.__getitem__)


@pytest.fixture(scope="module")
def plain(nano: Path) -> Probabilities:
    return reference(nano)


def check(found: Probabilities, expected: Probabilities, report: Callable[[str, object], None]) -> None:
    difference = largest(found, expected)
    report("max_dp", round(difference, 5))
    same_top(found, expected)
    assert difference <= TOLERANCE


def test_the_reference_is_worth_comparing_with(nano: Path, plain: Probabilities, record_property: Any) -> None:
    """Answers differ clearly between options and between records; and how far bf16 itself is from float32."""
    exact = reference(nano, dtype=torch.float32)
    record_property("noise floor, bf16 against fp32 in transformers", round(largest(exact, plain), 5))
    top = [max(options.values()) - 1 / len(options) for record in plain for options in record.values()]
    assert max(top) > 0.05
    assert abs(plain[0]["outage"]["true"] - plain[1]["outage"]["true"]) > 0.005


def test_bf16_single_batched_cached(nano: Path, engine: Any, plain: Probabilities, record_property: Any) -> None:
    clef = engine(nano, max_num_batched_tokens=8192)
    batched = clef.probabilities(records())
    check(batched, plain, record_property)
    single = [clef.probabilities([record])[0] for record in records()]
    check(single, plain, record_property)
    assert largest(single, batched) <= TOLERANCE
    # The same prompts again: with prefix caching on, hidden states of a cached prefix would be missing.
    check(clef.probabilities(records()), plain, record_property)
    assert clef.probabilities([]) == []


def test_bf16_chunked(nano: Path, engine: Any, plain: Probabilities, record_property: Any) -> None:
    clef = engine(nano, max_num_batched_tokens=256)
    lengths = [len(clef.encoder.encode(record).token_ids) for record in records()]
    assert max(lengths) > 3 * 256, "no record is long enough to be chunked"
    check(clef.probabilities(records()), plain, record_property)


def test_systemone_is_the_releases(nano: Path, engine: Any) -> None:
    """Shape, order, rounding and usage as `systemone()` gives them; values within the tolerance; faults named."""
    from clef_vllm.requests import RequestError

    code = load_reference()
    model, processor = code.load_release_model(nano, device="cpu")
    clef = engine(nano)
    request = {"model": "clef-flash", **records()[0]}
    expected, found = code.systemone(model, processor, request), clef.systemone(request)
    assert json.dumps(shape(found)) == json.dumps(shape(expected))
    assert found["usage"] == expected["usage"]
    for question, answer in expected["answers"].items():
        for key, value in answer.items():
            if isinstance(value, float):
                assert abs(value - found["answers"][question][key]) <= 2 * TOLERANCE
    with pytest.raises(RequestError, match="team: criteria must not be empty"):
        clef.systemone({"model": "m", "state": 1, "questions": {"team": {"type": "choice", "criteria": {}}}})
    # A layout that fits no prompt: this request alone gets an empty result, the engine lives on.
    from vllm import PoolingParams

    from clef_vllm import EXTRA_KEY, TASK

    broken = PoolingParams(task=TASK, extra_kwargs={EXTRA_KEY: [[1, [-9999, -9998], [[-3, -2]]]]})
    good = clef.encoder.encode(request)
    fine = PoolingParams(task=TASK, extra_kwargs={EXTRA_KEY: good.layout})
    outputs = clef.llm.encode(
        [{"prompt_token_ids": good.token_ids}] * 2, pooling_params=[broken, fine], pooling_task=TASK, use_tqdm=False
    )
    assert outputs[0].outputs.data.numel() == 0
    assert outputs[1].outputs.data.numel() == sum(len(options) for _, options in good.options)


def shape(value: Any) -> Any:
    """A response with its floats blanked and its choices kept."""
    if isinstance(value, dict):
        return {key: shape(entry) for key, entry in value.items()}
    return "float" if isinstance(value, float) else value


def test_images(nano: Path, engine: Any, record_property: Any) -> None:
    # Large images beside a short prompt: with random weights little of an image reaches an answer.
    asked = [{**records()[0], "images": [make_image(n, 256 - 64 * n, 256)] * (1 + n % 2)} for n in range(3)]
    expected = reference(nano, asked=asked)
    clef = engine(nano, images=4)
    found = clef.probabilities(asked)
    check(found, expected, record_property)
    others = [
        {**record, "images": [make_image(9, image.width, image.height) for image in record["images"]]}
        for record in asked
    ]
    assert average(found, reference(nano, asked=others)) > 1.5 * average(found, expected), "images change nothing"
    request = {"model": "m", **asked[0]}
    code = load_reference()
    model, processor = code.load_release_model(nano, device="cpu")
    assert clef.systemone(request)["usage"] == code.systemone(model, processor, request)["usage"]


def test_int8_tables(nano: Path, engine: Any, tmp_path: Path, record_property: Any) -> None:
    folder, tables = shrink_tables(nano, tmp_path / "int8", marker="0.1.0")

    def use_tables(model: Any) -> None:
        model.load_state_dict(tables, strict=False)

    check(engine(folder).probabilities(records()), reference(nano, use_tables), record_property)


TP_SCRIPT = """
import json, sys
from clef_vllm import ClefVLLM
from nano import records

if __name__ == "__main__":
    with ClefVLLM(sys.argv[1], max_model_len=4096, enforce_eager=True, images=0, tensor_parallel_size=2) as clef:
        print("RESULT" + json.dumps(clef.probabilities(records())))
"""


def test_int8_tables_over_two_ranks(tmp_path: Path, record_property: Any) -> None:
    """Tensor parallelism with sharded int8 tables; a process of its own, because each rank is one."""
    if (os.cpu_count() or 1) < 2:
        pytest.skip("two ranks need two CPU cores")
    nano = make_release(tmp_path / "two", key_heads=2)
    folder, tables = shrink_tables(nano, tmp_path / "int8", marker="0.1.0")
    script = tmp_path / "tp.py"
    script.write_text(TP_SCRIPT)
    environment = {
        **os.environ,
        "VLLM_CPU_OMP_THREADS_BIND": "0|1",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "1",
        "PYTHONPATH": str(Path(__file__).parent),
    }
    ended = subprocess.run([sys.executable, str(script), str(folder)], capture_output=True, text=True, env=environment)
    assert ended.returncode == 0, ended.stderr[-3000:]
    (line,) = [line for line in ended.stdout.splitlines() if line.startswith("RESULT")]
    expected = reference(nano, lambda model: model.load_state_dict(tables, strict=False))
    check(json.loads(line.removeprefix("RESULT")), expected, record_property)


@pytest.mark.parametrize("layout", [*FORMATS, "mixed"])
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


def test_a_probe_that_does_not_match_stops_the_start(nano: Path, engine: Any, tmp_path: Path) -> None:
    """A probe taken from this release passes; after one weight is scaled, the same probe refuses the folder."""
    from safetensors.torch import load_file, save_file

    from clef_vllm.release import ReleaseError

    folder = tmp_path / "probed"
    shutil.copytree(nano, folder)
    clef = engine(folder)
    logits = clef.logits(records()[:2])
    clef.close()
    probe = {"schema_version": 1, "records": records()[:2], "logits": logits, "tolerance": 0.01}
    (folder / "clefquant_probe.json").write_text(json.dumps(probe))
    engine(folder).close()
    weights = load_file(folder / "model.safetensors")
    weights["model.language_model.layers.7.mlp.down_proj.weight"].mul_(8)
    save_file(weights, folder / "model.safetensors")
    with pytest.raises(ReleaseError, match=r"the probe of .* does not match"):
        engine(folder)


@pytest.mark.skipif("CLEF_RELEASE" not in os.environ, reason="CLEF_RELEASE names no release folder to check")
def test_release_of_the_toolkit(engine: Any, record_property: Any) -> None:
    """A folder that was made elsewhere: it starts (all checks), its probe matches, and it answers."""
    from clef_vllm.probe import largest_difference, read_probe

    path = Path(os.environ["CLEF_RELEASE"])
    clef = engine(path)
    if clef.release.probe:
        probe = read_probe(clef.release.probe)
        found = clef.logits(probe.records)
        worst = max(map(largest_difference, probe.logits, found))
        record_property("max_dp", round(worst, 5))
        assert worst <= min(probe.tolerance, TOLERANCE)
    for record in clef.probabilities(records()):
        for options in record.values():
            assert abs(sum(options.values()) - 1) < 1e-4
