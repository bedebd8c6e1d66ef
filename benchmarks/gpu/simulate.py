"""A simulated forward beside compressed-tensors' own fake-quantized forward, on a random text model of 9B shape.

    python benchmarks/gpu/simulate.py [--layers 32] [--hidden 4096] [--intermediate 12288] [--out simulate.json]
    python benchmarks/gpu/simulate.py --formats        # the rounding alone, without a model

First every format's rounding is compared with compressed-tensors on the device, to the last bit, and timed on one
activation. Then llm-compressor quantizes the model in place and one process measures, in turns:

    bare                 nothing rounded
    llm-compressor       its fake-quantized forward: inputs rounded, and every weight rounded again in every call
    inputs alone         the same with weights left as they are, already rounded: the same work as the simulation
    simulate             clefquant: weights as stored, inputs rounded by our kernel, once per fused group
"""

import argparse
import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from clefquant.quantize.kernels import round_input, rounding_of
from clefquant.quantize.simulate import InputRounding
from clefquant.recipes.config import scheme_of
from clefquant.recipes.formats import FORMATS, find_format

ROUNDED = [fmt.name for fmt in FORMATS if fmt.input]
INPUT_AMAX = 8.0
PACKAGES = ("torch", "transformers", "llmcompressor", "compressed-tensors", "flash-linear-attention", "triton")


def say(*words: object) -> None:
    """A line of result, at once."""
    print("RESULT", *words, flush=True)


def seconds(device: torch.device, work: Callable[[], object], times: int) -> float:
    """Mean wall time of a call, the device's work included; one call beforehand is not counted."""
    wait = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    work()
    wait()
    start = time.perf_counter()
    for _ in range(times):
        work()
    wait()
    return (time.perf_counter() - start) / times


def theirs(x: torch.Tensor, args: Any, scale: torch.Tensor | None) -> torch.Tensor:
    """compressed-tensors' rounding."""
    from compressed_tensors.quantization.lifecycle.forward import fake_quantize
    from compressed_tensors.quantization.utils import compute_dynamic_scales_and_zp

    local, zero_point = compute_dynamic_scales_and_zp(x, args, None, global_scale=scale)
    rounded: torch.Tensor = fake_quantize(x, local, zero_point, args, global_scale=scale)
    return rounded


def hard_numbers(dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """[1, L, 4096]: every size of scale, ties, zeros, tiny, huge, infinite numbers and NaN."""
    generator = torch.Generator(device).manual_seed(0)
    noise = torch.randn(1024, 4096, device=device, generator=generator)
    sizes = noise * 2.0 ** torch.linspace(-149, 127, 1024, device=device).round().unsqueeze(-1)
    ties = torch.arange(4096, device=device).sub(2048).div(4) * 2.0 ** torch.arange(-8, 8, device=device).unsqueeze(-1)
    rows = torch.zeros(8, 4096, device=device)
    rows[1] = -0.0
    rows[2, ::16] = torch.finfo(dtype).smallest_normal / 2
    rows[3, 5], rows[4, 7], rows[5, 9] = torch.finfo(dtype).max, torch.inf, torch.nan
    rows[6] = torch.linspace(-1, 1, 4096, device=device) * torch.finfo(dtype).max
    return torch.cat([noise, sizes, ties, rows]).to(dtype).unsqueeze(0)


def differing(a: torch.Tensor, b: torch.Tensor) -> int:
    """Numbers whose bits differ; any NaN equals any other."""
    bits = torch.int32 if a.dtype == torch.float32 else torch.int16
    both_nan = a.isnan() & b.isnan()
    return int(((a.view(bits) != b.view(bits)) & ~both_nan).sum())


def rounding(device: torch.device, width: int) -> dict[str, Any]:
    """Per format: bits that differ on hard numbers, and milliseconds on one activation [8, 512, width]."""
    found = {}
    x = torch.randn(8, 512, width, device=device, dtype=torch.bfloat16)
    for name in ROUNDED:
        args = scheme_of(find_format(name), ["Linear"]).input_activations
        scale = torch.tensor([2688.0 / INPUT_AMAX], device=device) if find_format(name).static_input else None
        wrong = {}
        for dtype in (torch.bfloat16, torch.float32):
            hard = hard_numbers(dtype, device)
            how = rounding_of(args, hard, scale)
            assert how is not None, name
            wrong[str(dtype)] = differing(round_input(hard, how, scale), theirs(hard, args, scale))
        how = rounding_of(args, x, scale)
        assert how is not None, name
        ours_ms = 1e3 * seconds(device, lambda how=how, scale=scale: round_input(x, how, scale), 10)
        theirs_ms = 1e3 * seconds(device, lambda args=args, scale=scale: theirs(x, args, scale), 10)
        found[name] = {"differing": wrong, "ours_ms": ours_ms, "compressed_tensors_ms": theirs_ms}
        say(f"rounding {name}: {wrong} numbers differ; {ours_ms:.3f} ms, compressed-tensors {theirs_ms:.3f} ms,",
            f"{theirs_ms / ours_ms:.1f}x")  # fmt: skip
    return found


def text_model(options: argparse.Namespace, device: torch.device) -> torch.nn.Module:
    """A random decoder of the shape, bfloat16."""
    from transformers import Qwen3_5TextConfig, Qwen3_5TextModel

    heads = max(2, options.hidden // 256)
    config = Qwen3_5TextConfig(
        hidden_size=options.hidden, intermediate_size=options.intermediate, num_hidden_layers=options.layers,
        layer_types=["full_attention" if i % 4 == 3 else "linear_attention" for i in range(options.layers)],
        num_attention_heads=heads, num_key_value_heads=max(1, heads // 4), head_dim=256, linear_key_head_dim=128,
        linear_value_head_dim=128, linear_num_key_heads=heads, linear_num_value_heads=2 * heads, vocab_size=32000,
    )  # fmt: skip
    torch.set_default_dtype(torch.bfloat16)
    with device:
        model = Qwen3_5TextModel(config).eval().requires_grad_(False)
    torch.set_default_dtype(torch.float32)
    return model


def quantize(model: torch.nn.Module, name: str) -> list[torch.nn.Linear]:
    """Let llm-compressor quantize ``model`` in place; its linears, their weights rounded and fake quantization on."""
    from compressed_tensors.quantization import apply_quantization_config
    from compressed_tensors.quantization.lifecycle.forward import forward_quantize
    from compressed_tensors.quantization.utils import generate_gparam
    from llmcompressor.modifiers.quantization import QuantizationModifier
    from llmcompressor.modifiers.quantization.calibration import observe, update_qparams

    ignore = ["re:.*in_proj_a$", "re:.*in_proj_b$"]
    modifier = QuantizationModifier(config_groups={"group_0": scheme_of(find_format(name), ["Linear"])}, ignore=ignore)
    apply_quantization_config(model, modifier.resolved_config, show_progress=False)
    modifier.start_calibration(model)
    linears = [m for m in model.modules() if isinstance(m, torch.nn.Linear) and hasattr(m, "quantization_scheme")]
    observe(linears, "weight")
    update_qparams(linears, "weight")
    modifier.end_calibration(model)
    for linear in linears:
        if find_format(name).static_input:
            amax = torch.tensor([INPUT_AMAX])
            linear.input_global_scale.data.copy_(generate_gparam(-amax, amax))
        linear.weight.copy_(forward_quantize(linear, linear.weight, "weight", linear.quantization_scheme.weights))
    return linears


@contextmanager
def plain(linears: Sequence[torch.nn.Linear]) -> Iterator[None]:
    """Within the block linears are torch's own."""
    kept = [linear.__dict__.pop("forward") for linear in linears]
    try:
        yield
    finally:
        for linear, forward in zip(linears, kept, strict=True):
            linear.forward = forward


@contextmanager
def simulation(linears: Sequence[torch.nn.Linear]) -> Iterator[None]:
    """Within the block linears round their inputs as ``load_simulated`` has them do it."""
    shared = InputRounding()
    with plain(linears), ExitStack() as undo:
        for linear in linears:
            scale = getattr(linear, "input_global_scale", None)
            undo.callback(shared.attach(linear, linear.quantization_scheme, scale).remove)
        yield


@contextmanager
def status(linears: Sequence[torch.nn.Linear], inputs_alone: bool) -> Iterator[None]:
    """Within the block compressed-tensors rounds inputs, and weights too unless ``inputs_alone``."""
    from compressed_tensors.quantization import QuantizationStatus

    for linear in linears:
        linear.quantization_status = QuantizationStatus.COMPRESSED if inputs_alone else QuantizationStatus.FROZEN
    yield


def compare(model: torch.nn.Module, name: str, options: argparse.Namespace, device: torch.device) -> dict[str, Any]:
    """Tokens a second of every way, in turns, and whether the last hidden state is the same."""
    linears = quantize(model, name)
    ids = torch.randint(10, 30000, (options.batch, options.tokens), device=device)

    def forward() -> torch.Tensor:
        hidden: torch.Tensor = model(input_ids=ids, use_cache=False).last_hidden_state
        return hidden

    ways: dict[str, Callable[[], Any]] = {
        "bare": lambda: plain(linears),
        "llm-compressor": lambda: status(linears, inputs_alone=False),
        "inputs alone": lambda: status(linears, inputs_alone=True),
        "simulate": lambda: simulation(linears),
    }
    spent: dict[str, list[float]] = {way: [] for way in ways}
    last = {}
    for _ in range(options.rounds):
        for way, enter in ways.items():
            with enter():
                spent[way].append(seconds(device, forward, options.batches))
                last[way] = forward()
    rates = {way: ids.numel() * len(times) / sum(times) for way, times in spent.items()}
    same = {way: torch.equal(last[way], last["simulate"]) for way in ("llm-compressor", "inputs alone")}
    moved = float((last["bare"] - last["simulate"]).abs().max())
    assert moved > 0, "the rounding does nothing"
    for way, rate in rates.items():
        say(f"{name}: {way}: {rate:,.0f} tok/s")
    ratio = {way: rates["simulate"] / rates[way] for way in ("llm-compressor", "inputs alone", "bare")}
    times_of = ", ".join(f"{value:.2f}x {way}" for way, value in ratio.items())
    say(f"{name}: simulate is {times_of}; last hidden state identical: {same}")
    for linear in linears:
        del linear.forward, linear.quantization_scheme, linear.quantization_status
        for leaf in [key for key, _ in linear.named_parameters() if key != "weight"]:
            delattr(linear, leaf)
    return {"tokens_per_s": rates, "ratio": ratio, "identical": same}


def forwards(options: argparse.Namespace, device: torch.device) -> dict[str, Any]:
    """The model's size and, per format, what :func:`compare` finds."""
    model = text_model(options, device)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    start = time.perf_counter()
    model(input_ids=torch.ones(options.batch, options.tokens, dtype=torch.long, device=device), use_cache=False)
    say(f"{parameters / 1e9:.2f} B parameters; first forward {time.perf_counter() - start:.1f} s")
    return {
        "parameters": parameters,
        "forward": {name: compare(model, name, options, device) for name in options.formats},
    }


@torch.inference_mode()
def main() -> None:
    """Compare, measure, print and store."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for size, default in (("layers", 32), ("hidden", 4096), ("intermediate", 12288), ("batch", 8), ("tokens", 512)):
        parser.add_argument(f"--{size}", type=int, default=default)
    parser.add_argument("--batches", type=int, default=3, help="timed batches per way and round")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--formats", nargs="*", default=["nvfp4", "fp8"], choices=ROUNDED)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    device = torch.device(options.device)
    chip = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    versions = {}
    for package in PACKAGES:
        try:
            versions[package] = version(package)
        except ModuleNotFoundError:
            versions[package] = None
    say(f"{chip}; {versions}")
    found: dict[str, Any] = {"chip": chip, "versions": versions, "shape": vars(options) | {"out": None}}
    found["rounding"] = rounding(device, options.intermediate)
    if options.formats:
        found |= forwards(options, device)
    out = options.out or (Path(os.environ["OUT"]) / "simulate.json" if "OUT" in os.environ else None)
    if out:
        out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
