"""What units cost to run: the matrix products of every unit in every format, timed on the device at hand.

A fused group of a unit is one product X [T, I] Wᵀ [I, O], as a server runs it; rounding X is part of it. Groups of
equal shape are timed once. A format without a kernel of its own in torch on this device is timed as weight-only:
dequantize, then multiply in bfloat16.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
from pydantic import ValidationError

from clefquant.errors import InputError
from clefquant.progress import SILENT, Progress
from clefquant.quantize.unit import quantize_unit
from clefquant.recipes.formats import BF16, find_format
from clefquant.release.artefact import provenance, read_json, write_json
from clefquant.release.load import default_device
from clefquant.release.release import Release
from clefquant.release.units import Linear, Unit
from clefquant.sensitivity.assemble import able_formats, checked_formats
from clefquant.sensitivity.products import Product, product
from clefquant.sensitivity.table import Part, SensitivityTable

COST_FILE, KIND = "cost.json", "cost table"
SCHEMA_VERSION = 1
#: Rows of X: a full batch of prompt tokens.
TOKENS = {"cpu": 512, "cuda": 8192}
_WARM_UP, _REPEATS = 3, 9


class Cost(Part):
    """Milliseconds per 1,000 tokens of every unit and format on one device.

    ``tokens``: rows of the timed products. ``kernels``: what was timed, per format. ``units``: unit name to format
    (``bf16`` included) to milliseconds.
    """

    kind: str = KIND
    schema_version: int = SCHEMA_VERSION
    origin: dict[str, Any]
    model: str
    device: str
    tokens: int
    kernels: dict[str, str]
    units: dict[str, dict[str, float]]

    def total(self, layout: Mapping[str, str]) -> float:
        """Milliseconds per 1,000 tokens of all units in the formats of ``layout``."""
        return sum(self.units[name][fmt] for name, fmt in layout.items())

    def check_covers(self, table: SensitivityTable) -> None:
        """InputError when a unit or format of ``table`` was not timed."""
        for unit in table.units:
            if missing := set(unit.bytes) - set(self.units.get(unit.name, ())):
                raise InputError(
                    f"the cost table of {self.model} has no time of {unit.name} in {', '.join(sorted(missing))}; "
                    f"measure it with `clefquant sensitivity --measure-cost --formats {','.join(table.formats)}`."
                )

    def write(self, path: Path) -> None:
        """Write ``cost.json``."""
        write_json(path, self.model_dump())


def read_cost(path: Path) -> Cost:
    """Read ``cost.json``. InputError when it is none, damaged, or newer than this version."""
    value = read_json(path, KIND, SCHEMA_VERSION)
    try:
        return Cost.model_validate(value)
    except ValidationError as error:
        raise InputError(f"{path} is no readable {KIND}: {error.errors()[0]['msg']}; measure it again.") from error


@torch.inference_mode()
def measure_cost(
    release: Release,
    formats: Sequence[str],
    *,
    tokens: int | None = None,
    device: torch.device | None = None,
    progress: Progress = SILENT,
) -> Cost:
    """Time the products of every unit of ``release`` in ``formats`` and bf16; no weight is read, their values are
    random.

    ``tokens``: rows of X, by default :data:`TOKENS` of the device. Figures are medians; formats take turns, so that a
    device that grows busier or slower favours none. Raises InputError as a sweep does.
    """
    names = [BF16.name, *checked_formats(release, formats)]
    device = device or default_device()
    tokens = tokens or TOKENS.get(device.type, TOKENS["cpu"])
    able: dict[tuple[int, int], dict[str, None]] = {}
    for unit in release.units:
        for group in unit.groups:
            able.setdefault(_shape(group), {}).update(dict.fromkeys(able_formats(unit, names)))
    kernels: dict[str, str] = {}
    times: dict[tuple[int, int], dict[str, float]] = {}
    with progress.task("timing products", len(able), "shapes") as task:
        for shape, its_formats in able.items():
            products = {name: _random_product(shape, name, device) for name in its_formats}
            kernels |= {name: found.kernel for name, found in products.items()}
            x = torch.randn(tokens, shape[1], device=device, dtype=torch.bfloat16)
            found = timed({name: partial(one.run, x) for name, one in products.items()}, device)
            times[shape] = {name: value * 1000 / tokens for name, value in found.items()}
            task.advance()
    units = {
        unit.name: {
            name: sum(times[_shape(group)][name] for group in unit.groups) for name in able_formats(unit, names)
        }
        for unit in release.units
    }
    head = provenance(KIND, SCHEMA_VERSION, {"model": release.fingerprint})
    return Cost(
        origin={key: head[key] for key in ("parents", "versions")},
        model=release.reference,
        device=device_name(device),
        tokens=tokens,
        kernels=kernels,
        units=units,
    )


def device_name(device: torch.device | None = None) -> str:
    """What a cost table is valid for."""
    device = device or default_device()
    return torch.cuda.get_device_name(device) if device.type == "cuda" else f"cpu, {torch.get_num_threads()} threads"


def timed(calls: Mapping[str, Callable[[], object]], device: torch.device) -> dict[str, float]:
    """Median milliseconds of each call, all of them taking turns."""
    for call in calls.values():
        for _ in range(_WARM_UP):
            call()
    found: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(_REPEATS):
        for name, call in calls.items():
            found[name].append(_milliseconds(call, device))
    return {name: median(values) for name, values in found.items()}


def _milliseconds(call: Callable[[], object], device: torch.device) -> float:
    if device.type == "cuda":
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        start.record()
        call()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end))
    began = time.perf_counter()
    call()
    return 1e3 * (time.perf_counter() - began)


def _shape(group: Sequence[Linear]) -> tuple[int, int]:
    """Output and input size of the one product that a fused group is."""
    return sum(linear.out_features for linear in group), group[0].in_features


def _random_product(shape: tuple[int, int], format_name: str, device: torch.device) -> Product:
    merged = Linear("group.merged", *shape)
    weight = torch.randn(shape, device=device, dtype=torch.bfloat16) * 0.02
    if format_name == BF16.name:
        return product(find_format(format_name), weight, None)
    unit = Unit("group", 0, "mlp", ((merged,),))
    found = quantize_unit(unit, {merged.name: weight}, find_format(format_name), {merged.name: 4.0})
    return product(find_format(format_name), weight, found[merged.name])
