"""What can be known before any weight is quantized: whether the job can end well, and what it takes."""

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import torch

from clefquant.errors import InputError
from clefquant.quantize.unfinished import held_bytes
from clefquant.quantize.unit import quantize_unit
from clefquant.recipes.awq import SMOOTHED
from clefquant.recipes.formats import BF16, find_format
from clefquant.recipes.fused import fused_gdn_inputs
from clefquant.recipes.layout import Layout
from clefquant.release.artefact import check_new_folder, package_versions
from clefquant.release.load import batch_tokens_on, default_device, default_dtype
from clefquant.release.release import Release
from clefquant.release.shards import check_space, free_bytes
from clefquant.release.states import DEFAULT_CACHE_BYTES
from clefquant.release.units import LAYER_PREFIX, Linear, Unit

#: Bytes that Python, torch and transformers take before any weight, and what quantizing one weight takes beside it:
#: measured on nano and on a 9B-shaped release (benchmarks/RESULTS.md).
_LIBRARIES = 0.8e9
_BYTES_A_WEIGHT = 70
_PROBE = 1024
_EMBEDDING = "model.language_model.embed_tokens.weight"


@dataclass(frozen=True)
class Plan:
    """What a quantization takes. Bytes and seconds; the last are estimated from a short probe of this device.

    ``formats``: units per format. ``memory_free``: of the device that computes. ``seconds``: None for algorithms whose
    work beside forward passes and rounding no short probe foretells.
    """

    formats: dict[str, int]
    source_bytes: int
    bytes: int
    bits_per_weight: float
    records: int
    tokens: int
    device: str
    memory_needed: int
    memory_free: int
    disk_needed: int
    disk_free: int
    seconds: int | None
    versions: dict[str, str]

    def to_json(self) -> dict[str, Any]:
        """For programs."""
        return asdict(self)


def check(release: Release, layout: Layout, statistics_available: bool, out: Path) -> None:
    """Refuse, before anything slow, what cannot end well; see the messages."""
    check_new_folder(out)
    if set(layout.units.values()) == {BF16.name}:
        raise InputError("the layout keeps every unit in bf16: there is nothing to quantize. Choose a smaller format.")
    with fused_gdn_inputs():
        pass  # the installed llm-compressor is one that can be patched
    linears = [linear.name for unit in release.units for linear in unit.linears]
    if odd := sorted({info.dtype for n in linears if (info := release.tensors[f"{n}.weight"]).dtype != "BF16"}):
        raise InputError(f"{release.path} stores linears as {', '.join(odd)}; quantization starts from BF16 weights.")
    needing = sorted({name for name in layout.units.values() if find_format(name).static_input})
    if needing and not statistics_available:
        raise InputError(
            f"{', '.join(needing)} needs --calibration SET for its input scales; build one with `clefquant calibrate`."
        )
    check_space(out, _disk_needed(release, layout, out))
    if broken := release.nonfinite:
        more = f" and {len(broken) - 1} more" if len(broken) > 1 else ""
        raise InputError(
            f"{broken[0]}{more} of {release.path} hold NaN or infinite values; the download is damaged or the "
            "fine-tune diverged. Compare its checksums, or take an earlier checkpoint."
        )


def plan(release: Release, layout: Layout, algorithm: str, encoded: Sequence[Any], out: Path) -> Plan:
    """What the checked job takes; ``encoded``: the records, none when no calibration is needed."""
    device = default_device()
    cuda = device.type == "cuda"
    tokens = sum(len(record.input_ids) for record in encoded)
    return Plan(
        formats=dict(Counter(layout.units.values())),
        source_bytes=release.backbone_bytes,
        bytes=layout.bytes,
        bits_per_weight=layout.bits_per_weight,
        records=len(encoded),
        tokens=tokens,
        device=torch.cuda.get_device_name(device) if cuda else "processor",
        memory_needed=memory_needed(release, algorithm, encoded, device),
        memory_free=torch.cuda.mem_get_info(device)[0] if cuda else psutil.virtual_memory().available,
        disk_needed=_disk_needed(release, layout, out),
        disk_free=free_bytes(out),
        seconds=round(_seconds(release, layout, tokens, device)) if algorithm == "rtn" else None,
        versions=package_versions(),
    )


def memory_needed(release: Release, algorithm: str, encoded: Sequence[Any], device: torch.device) -> int:
    """Peak bytes on ``device``: one layer computing, the next one read ahead, a unit being quantized, hidden states."""
    width = default_dtype(device).itemsize
    layers = [
        sum(info.bytes for name, info in release.tensors.items() if name.startswith(f"{LAYER_PREFIX}{number}."))
        for number in {unit.layer for unit in release.units}
    ]
    largest = max(linear.weights for unit in release.units for linear in unit.linears)
    needed = 2 * max(layers) + _BYTES_A_WEIGHT * largest + (0 if device.type == "cuda" else _LIBRARIES)
    if encoded:
        longest = max(len(record.input_ids) for record in encoded)
        total = sum(len(record.input_ids) for record in encoded)
        batch = min(max(batch_tokens_on(device), longest), total)
        inputs = {linear.in_features for unit in release.units for linear in unit.linears}
        states = 2 * total * release.tensors[_EMBEDDING].shape[1] * width
        needed += max(layers) * width // 2 + 4 * batch * max(inputs) * width + min(states, DEFAULT_CACHE_BYTES)
        if algorithm == "gptq":
            needed += 4 * sum(size**2 for size in inputs) + 3 * 4 * max(inputs) ** 2
        if algorithm in SMOOTHED:
            # The search keeps every block's inputs, the wanted outputs and a trial's, and weights to go back to.
            needed += width * (total * (sum(inputs) + 2 * min(inputs)) + max(unit.weights for unit in release.units))
    return int(needed)


def _seconds(release: Release, layout: Layout, tokens: int, device: torch.device) -> float:
    """Time of the forward passes and of quantizing, from a matrix product and one small linear per format."""
    unit = Unit("probe", 0, "mlp", ((Linear("probe.down_proj", _PROBE, _PROBE),),))
    weight = torch.randn(_PROBE, _PROBE, device=device)
    x = weight.to(default_dtype(device))
    per_product = _timed(lambda: x @ x, device)
    total = sum(unit.weights for unit in release.units)
    seconds = 2 * total * tokens * per_product / (2 * _PROBE**3)
    weights, amax = {"probe.down_proj": weight.bfloat16()}, {"probe.down_proj": 1.0}
    for name in layout.formats():
        if name != BF16.name:
            once = _timed(partial(quantize_unit, unit, weights, find_format(name), amax), device)
            of_format = sum(u.weights for u in release.units if layout.units[u.name] == name)
            seconds += of_format * once / _PROBE**2
    return seconds


def _timed(work: Callable[[], object], device: torch.device) -> float:
    """Seconds of one call, after one that warms up."""

    def wait() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    work()
    wait()
    start = time.perf_counter()
    work()
    wait()
    return time.perf_counter() - start


def _disk_needed(release: Release, layout: Layout, out: Path) -> int:
    """Bytes still to be found: an interrupted run's are gone on with, or removed first."""
    whole = layout.bytes + sum(file.stat().st_size for file in release.side_files)
    return max(whole - held_bytes(out), 0)
