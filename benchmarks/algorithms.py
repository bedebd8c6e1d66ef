"""Algorithms and block scales side by side: decisions of a trained model, and the output of one 9B-shaped layer.

    python benchmarks/algorithms.py decisions --calibration SET --eval SET [--records 128] [--eval-records 160]
    python benchmarks/algorithms.py layer [--device cuda] [--hidden 4096] [--intermediate 12288] [--tokens 1024]

``decisions``: mean KL (nats) from the BF16 model on the evaluation set with its standard error over records, and the
mean paired difference to rounding to nearest in the same format; ``top_percent``: the part of the mean that one
question in a hundred carries. ``layer``: relative error of an MLP's output over
inputs it was not calibrated on; random heavy-tailed weights, correlated inputs with a few large channels. One JSON
line per row, in the order of what is asked first.
"""

import argparse
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from clefquant.calibration.stored import open_set
from clefquant.quantize.algorithms import find_algorithm
from clefquant.quantize.finishing import QuantizedUnit
from clefquant.quantize.hessian import HessianCollector
from clefquant.quantize.inputs import fake_quantize_input
from clefquant.quantize.layerwise import LayerBatch, LayerStep
from clefquant.quantize.scales import Scales
from clefquant.quantize.simulate import simulated
from clefquant.quantize.unit import quantize_unit
from clefquant.recipes.formats import find_format
from clefquant.recipes.layout import uniform_layout
from clefquant.release.code import release_code
from clefquant.release.load import LoadedRelease, load_release, option_logits
from clefquant.release.release import open_release
from clefquant.release.units import LAYER_PREFIX, Linear, Unit
from clefquant.sensitivity.metrics import mean_over_records
from clefquant.sensitivity.tabulate import Questions

FORMATS = ("mxfp4", "nvfp4", "mxfp4a16", "nvfp4a16", "w4a16")
ALGORITHMS = ("rtn", "gptq", "awq-mlp", "awq")
CHOICES = {"mxfp4": ("floor", "ceil", "least-error"), "nvfp4": ("four-over-six",)}


class Variant(NamedTuple):
    """One row. ``scales``: "" for the family's default."""

    format: str
    algorithm: str
    scales: str = ""

    def chosen(self) -> Scales:
        """As the quantizer wants it."""
        return Scales(**{self.format.removesuffix("a16"): self.scales}) if self.scales else Scales()


def variants(formats: Sequence[str], algorithms: Sequence[str]) -> Iterator[Variant]:
    """Every row, rounding to nearest first in its format."""
    for name in formats:
        yield from (Variant(name, algorithm) for algorithm in algorithms)
        for choice in CHOICES.get(name.removesuffix("a16"), ()):
            yield from (Variant(name, algorithm, choice) for algorithm in ("rtn", "gptq") if algorithm in algorithms)


def decisions(options: argparse.Namespace) -> None:
    """The rows of one trained model."""
    release = open_release(options.model)
    code = release_code(release.path)
    calibration = _spread(list(open_set(options.calibration, release.path, code)), options.records)
    records = _spread(list(open_set(options.eval, release.path, code)), options.eval_records)
    encoded, asked = [record.encoded for record in calibration], [record.encoded for record in records]
    loaded, questions = load_release(release), Questions(tuple(records))
    before, nearest = _logits(loaded, asked), {}
    for variant in variants(options.formats.split(","), options.algorithms.split(",")):
        layout, started = uniform_layout(release, variant.format), time.process_time()
        run = find_algorithm(variant.algorithm)
        results = list(run(release, layout, encoded, scales=variant.chosen()))
        seconds = time.process_time() - started
        with _answering(loaded, results):
            kl = questions.metrics(before, _logits(loaded, asked)).kl
        nearest.setdefault(variant.format, kl)
        mean = mean_over_records(kl, questions.owners)
        paired = mean_over_records(kl - nearest[variant.format], questions.owners)
        most = float(np.sort(kl)[-max(1, len(kl) // 100) :].sum() / kl.sum())
        _row(
            variant, kl=mean.value, error=mean.error, to_rtn=paired.value, to_rtn_error=paired.error,
            top_percent=most, cpu_s=seconds,
        )  # fmt: skip


def _spread(records: list[Any], count: int) -> list[Any]:
    """About ``count`` of the records, of every source alike."""
    return records[:: max(1, len(records) // count)][:count]


def _logits(loaded: LoadedRelease, encoded: Sequence[Any]) -> np.ndarray:
    found = dict(option_logits(loaded, encoded))
    return torch.cat([logits for index in range(len(encoded)) for logits in found[index]]).double().numpy()


@contextmanager
def _answering(loaded: LoadedRelease, results: Sequence[QuantizedUnit]) -> Iterator[None]:
    """The model as a checkpoint of ``results`` would answer, with the tensors an algorithm changed."""
    changed = {name: tensor for result in results for name, tensor in result.changed.items()}
    own = {name: loaded.module(name.removesuffix(".weight")).weight for name in changed}
    source = {name: weight.data for name, weight in own.items()}
    for name, weight in own.items():
        weight.data = changed[name].to(weight)
    with simulated(loaded, {name: linear for result in results for name, linear in result.linears.items()}):
        yield
    for name, weight in own.items():
        weight.data = source[name]


class Block(torch.nn.Module):
    """Norm and MLP of a Qwen3.5 layer, without the residual."""

    def __init__(self, hidden: int, intermediate: int, device: torch.device) -> None:
        super().__init__()
        from transformers import Qwen3_5TextConfig
        from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5MLP, Qwen3_5RMSNorm

        config = Qwen3_5TextConfig(hidden_size=hidden, intermediate_size=intermediate)
        with device:
            self.post_attention_layernorm = Qwen3_5RMSNorm(hidden)
            self.mlp = Qwen3_5MLP(config, intermediate)

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """[B, L, H] to [B, L, H]."""
        return self.mlp(self.post_attention_layernorm(hidden_states))


def layer(options: argparse.Namespace) -> None:
    """The rows of one random MLP."""
    device = torch.device(options.device)
    generator = torch.Generator(device).manual_seed(0)
    prefix, hidden, intermediate = f"{LAYER_PREFIX}0.mlp.", options.hidden, options.intermediate
    gate, up = (Linear(f"{prefix}{leaf}_proj", intermediate, hidden) for leaf in ("gate", "up"))
    unit = Unit("layers.0.mlp", 0, "mlp", ((gate, up), (Linear(f"{prefix}down_proj", hidden, intermediate),)))
    source = {f"{linear.name}.weight": _heavy_tailed(linear, generator) for linear in unit.linears}
    norm = torch.randn(hidden, generator=generator, device=device) * 0.3
    source[f"{LAYER_PREFIX}0.post_attention_layernorm.weight"] = norm.bfloat16()
    sets = _correlated(hidden, options.tokens, generator)
    for variant in variants(options.formats.split(","), options.algorithms.split(",")):
        if variant.algorithm == "awq-mlp":
            continue  # the same as awq: there is nothing but an MLP
        started = time.perf_counter()
        error = _layer_error(unit, dict(source), sets, variant)
        _row(variant, relative_error=error, seconds=time.perf_counter() - started)


def _heavy_tailed(linear: Linear, generator: torch.Generator) -> torch.Tensor:
    """Student-t with 4 degrees of freedom, as a normal over the root of a scaled chi-squared."""
    shape = (linear.out_features, linear.in_features)
    normals = [torch.randn(shape, generator=generator, device=generator.device) for _ in range(5)]
    chi = sum(normal.square() for normal in normals[1:])
    return (normals[0] / (chi / 4).sqrt() * 0.7 / linear.in_features**0.5).bfloat16()


def _correlated(hidden: int, tokens: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Two sets of hidden states [1, T, H]: a few dozen directions, noise, and every 64th channel ten times as large."""
    mixing = torch.randn(48, hidden, generator=generator, device=generator.device) / 7
    scale = torch.ones(hidden, device=generator.device)
    scale[::64] = 10

    def draw() -> torch.Tensor:
        few = torch.randn(tokens, 48, generator=generator, device=generator.device)
        noise = torch.randn(tokens, hidden, generator=generator, device=generator.device)
        return ((few @ mixing + 0.5 * noise) * scale)[None]

    return draw(), draw()


@torch.inference_mode()
def _layer_error(
    unit: Unit, source: dict[str, torch.Tensor], sets: tuple[torch.Tensor, torch.Tensor], variant: Variant
) -> float:
    from clefquant.quantize.smoothing import smooth

    calibration, other = sets
    fmt = find_format(variant.format)
    block = Block(calibration.shape[-1], unit.linears[0].out_features, calibration.device)
    _load(block, source)
    exact = block(other)
    step = LayerStep(0, block, source, lambda: block(calibration), lambda: LayerBatch(0, None, ({},)))
    if variant.algorithm == "awq":
        smooth(step, {unit: fmt})
    inputs = _inputs(block, calibration, unit)
    hessians = None
    if variant.algorithm == "gptq":
        hessians = {}
        for name, x in inputs.items():
            collector = HessianCollector(fmt)
            collector.add(x)
            hessians[name] = collector.result()
    weights = {linear.name: source[f"{linear.name}.weight"] for linear in unit.linears}
    amax = {name: float(x.abs().max()) for name, x in inputs.items()}
    for name, linear in quantize_unit(unit, weights, fmt, amax, hessians, variant.chosen()).items():
        module = block.get_submodule(name.removeprefix(f"{LAYER_PREFIX}0."))
        module.weight = torch.nn.Parameter(linear.weight.to(exact.dtype), requires_grad=False)
        shared = linear.tensors.get("input_global_scale")
        module.register_forward_pre_hook(
            lambda _, x, scheme=linear.scheme, shared=shared: fake_quantize_input(x[0], scheme, shared)
        )
    return float((block(other) - exact).norm() / exact.norm())


def _load(block: Block, source: Mapping[str, torch.Tensor]) -> None:
    for name, tensor in source.items():
        module = block.get_submodule(name.removeprefix(f"{LAYER_PREFIX}0.").removesuffix(".weight"))
        module.weight = torch.nn.Parameter(tensor.float(), requires_grad=False)


def _inputs(block: Block, hidden: torch.Tensor, unit: Unit) -> dict[str, torch.Tensor]:
    """Token vectors [T, I] that enter each linear."""
    found, handles = {}, []
    for linear in unit.linears:
        module = block.get_submodule(linear.name.removeprefix(f"{LAYER_PREFIX}0."))
        handles.append(
            module.register_forward_pre_hook(lambda _, x, name=linear.name: found.__setitem__(name, x[0].flatten(0, 1)))
        )
    block(hidden)
    for handle in handles:
        handle.remove()
    return found


def _row(variant: Variant, **figures: float | None) -> None:
    rounded = {name: None if value is None else float(f"{value:.4g}") for name, value in figures.items()}
    print(json.dumps({**variant._asdict(), **rounded}), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    for name, work in (("decisions", decisions), ("layer", layer)):
        command = commands.add_parser(name)
        command.set_defaults(work=work)
        command.add_argument("--formats", default=",".join(FORMATS))
        command.add_argument("--algorithms", default=",".join(ALGORITHMS))
        if work is decisions:
            command.add_argument("--model", default="nano")
            command.add_argument("--calibration", type=Path, required=True)
            command.add_argument("--eval", type=Path, required=True)
            command.add_argument("--records", type=int, default=128)
            command.add_argument("--eval-records", type=int, default=160)
        else:
            command.add_argument("--device", default="cpu")
            command.add_argument("--hidden", type=int, default=4096)
            command.add_argument("--intermediate", type=int, default=12288)
            command.add_argument("--tokens", type=int, default=1024)
    options = parser.parse_args()
    options.work(options)


if __name__ == "__main__":
    main()
