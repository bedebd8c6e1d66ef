"""Fused groups: what a server runs as one matrix product must have one format and one global scale.

vLLM takes the largest of the stored divisors for the whole product; the member with the smaller one shrinks, without
an error.
"""

from collections.abc import Iterator, Mapping

import numpy as np

from clefquant.export.audit.finding import Finding, error
from clefquant.release.headers import TensorInfo
from clefquant.release.units import BLOCKS, LAYER_PREFIX

GLOBAL_SCALES = ("weight_global_scale", "input_global_scale")


def fused_groups(names: Mapping[str, TensorInfo]) -> Iterator[tuple[str, ...]]:
    """Module names of every fused group with more than one member that has any tensor in ``names``."""
    blocks = {".".join(name.split(".")[:5]) for name in names if name.startswith(LAYER_PREFIX)}
    for block in sorted(
        blocks, key=lambda name: (int(name.split(".")[3]) if name.split(".")[3].isdigit() else -1, name)
    ):
        for name, _, groups in BLOCKS:
            if block.endswith(f".{name}"):
                yield from (tuple(f"{block}.{leaf}" for leaf in group) for group in groups if len(group) > 1)


def stored_tensors(tensors: Mapping[str, TensorInfo]) -> dict[str, dict[str, TensorInfo]]:
    """Module name to its tensors by local name."""
    modules: dict[str, dict[str, TensorInfo]] = {}
    for name, info in tensors.items():
        module, _, local = name.rpartition(".")
        modules.setdefault(module, {})[local] = info
    return modules


def read_scalar(info: TensorInfo) -> float:
    """The one float32 of a global scale."""
    if info.dtype != "F32" or info.end - info.start != 4:
        return float("nan")
    return float(np.frombuffer(info.read(), "<f4")[0])


def fused_findings(tensors: Mapping[str, TensorInfo]) -> list[Finding]:
    """Groups whose members are stored in different forms or under different global scales."""
    modules = stored_tensors(tensors)
    found = []
    for group in fused_groups(tensors):
        present = [name for name in group if name in modules]
        forms = {name: tuple(sorted((local, info.dtype) for local, info in modules[name].items())) for name in present}
        if len(set(forms.values())) > 1:
            first = present[0]
            other = next(name for name in present if forms[name] != forms[first])
            found.append(
                error(
                    "fused-format",
                    f"{first} and {other} have different formats, but a server runs them as one matrix product",
                    "quantize again with one format for the unit",
                    modules[other][forms[other][0][0]].file.name,
                    other,
                )
            )
            continue
        for scale in GLOBAL_SCALES:
            values = {name: read_scalar(modules[name][scale]) for name in present if scale in modules[name]}
            if len(values) > 1 and len(set(values.values())) > 1 and all(np.isfinite(list(values.values()))):
                found.append(_differing(values, scale, modules))
    return found


def _differing(values: dict[str, float], scale: str, modules: dict[str, dict[str, TensorInfo]]) -> Finding:
    text = ", ".join(f"{name.rsplit('.', 1)[1]} {value:g}" for name, value in values.items())
    low, high = min(values.values()), max(values.values())
    smallest = min(values, key=lambda name: values[name])
    block = smallest.rpartition(".")[0]
    effect = (
        f"{smallest.rsplit('.', 1)[1]} would shrink to {low / high:.2f}"
        if scale.startswith("weight")
        else "inputs would clip"
    )
    return error(
        "fused-scale",
        f"{block}: {scale} differs within one matrix product ({text}); served, {effect}",
        "clefquant audit --repair --out DIR, or quantize again with shared scales",
        modules[smallest][scale].file.name,
        f"{smallest}.{scale}",
    )
