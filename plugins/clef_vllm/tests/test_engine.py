"""End to end on the real vLLM CPU engine: a BF16 release against the release's own code in transformers.

max|Δp| is over all options of all records. Engines run inside the test process, one at a time.
"""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from comparing import TOLERANCE, Probabilities, average, check, largest, reference
from nano import load_reference, make_image, records

pytest.importorskip("vllm")

from clef_vllm.requests import RequestError

pytestmark = pytest.mark.engine


def test_the_reference_is_worth_comparing_with(nano: Path, plain: Probabilities, record_property: Any) -> None:
    """Answers differ clearly between options and between records; and how far bf16 itself is from float32."""
    exact = reference(nano, dtype=torch.float32)
    record_property("noise floor, bf16 against fp32 in transformers", round(largest(exact, plain), 5))
    top = [max(options.values()) - 1 / len(options) for record in plain for options in record.values()]
    assert max(top) > 0.05
    assert abs(plain[0]["outage"]["true"] - plain[1]["outage"]["true"]) > 0.005


@pytest.mark.every_version
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


@pytest.mark.every_version
def test_bf16_chunked(nano: Path, engine: Any, plain: Probabilities, record_property: Any) -> None:
    clef = engine(nano, max_num_batched_tokens=256)
    lengths = [len(clef.encoder.encode(record).token_ids) for record in records()]
    assert max(lengths) > 3 * 256, "no record is long enough to be chunked"
    check(clef.probabilities(records()), plain, record_property)


def test_bf16_compiled(nano: Path, engine: Any, plain: Probabilities, record_property: Any) -> None:
    """With torch.compile on, as it is by default on a GPU."""
    if not shutil.which("g++"):
        pytest.skip("compiling for the CPU needs g++")
    clef = engine(nano, enforce_eager=False, max_num_batched_tokens=1024)
    assert clef.llm.llm_engine.vllm_config.compilation_config.mode
    check(clef.probabilities(records()), plain, record_property)


def test_systemone_is_the_releases(nano: Path, engine: Any) -> None:
    """Shape, order, rounding and usage as `systemone()` gives them; values within the tolerance; faults named."""
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


def test_videos(nano: Path, engine: Any, record_property: Any) -> None:
    """Every frame counts: answers and usage as the release's code gives them when it thins nothing out."""
    whole = {"media_kwargs": {"do_sample_frames": False}}
    asked = [
        {**records()[0], **whole, "videos": [[make_image(n + 10 * i, 96, 128) for n in range(frames)]]}
        for i, frames in enumerate((16, 4))
    ]
    code = load_reference()
    model, processor = code.load_release_model(nano, device="cpu")
    clef = engine(nano, videos=1, max_num_batched_tokens=8192)
    check(clef.probabilities(asked), reference(nano, asked=asked), record_property)
    for record in asked:
        request = {"model": "m", **record}
        assert clef.systemone(request)["usage"] == code.systemone(model, processor, request)["usage"]
    with pytest.raises(RequestError, match="video 0: frames must be RGB images of one size"):
        clef.probabilities([{**records()[0], "videos": [[make_image(1, 64, 64), make_image(1, 96, 64)]]}])


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
