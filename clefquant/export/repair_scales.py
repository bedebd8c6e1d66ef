"""New bytes for the scales of fused groups that do not share them."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from clefquant.errors import CheckFailed
from clefquant.export.audit.fused import fused_groups, read_scalar, stored_tensors
from clefquant.export.rescale import Member, common_scale
from clefquant.release.headers import TensorInfo


class ScaleRepair(NamedTuple):
    """``replaced``: tensor to new bytes of the same size; ``added_error``: relative, per rescaled module;
    ``actions``."""

    replaced: dict[str, bytes]
    added_error: dict[str, float]
    actions: list[str]


def repair_scales(tensors: Mapping[str, TensorInfo]) -> ScaleRepair:
    """Common scales for every fused NVFP4 group that differs. CheckFailed where E4M3 cannot hold the result."""
    modules, found = stored_tensors(tensors), ScaleRepair({}, {}, [])
    for group in fused_groups(tensors):
        present = [name for name in group if "weight_global_scale" in modules.get(name, {})]
        if len(present) < 2:
            continue
        block, leaves = group[0].rpartition(".")[0], "/".join(name.rsplit(".", 1)[1] for name in present)
        divisors = {name: read_scalar(modules[name]["weight_global_scale"]) for name in present}
        if _differ(divisors):
            _rescale(block, leaves, divisors, modules, found)
        inputs = {
            n: read_scalar(modules[n]["input_global_scale"]) for n in present if "input_global_scale" in modules[n]
        }
        if _differ(inputs):
            # one input, one range: the smallest divisor belongs to the largest value seen
            common = np.float32(min(inputs.values())).tobytes()
            found.replaced.update({f"{name}.input_global_scale": common for name in inputs})
            found.actions.append(f"{block}: {leaves} now share the input global scale {min(inputs.values()):g}")
    return found


def _differ(values: Mapping[str, float]) -> bool:
    return len(set(values.values())) > 1 and all(np.isfinite(value) and value > 0 for value in values.values())


def _rescale(
    block: str,
    leaves: str,
    divisors: Mapping[str, float],
    modules: Mapping[str, Mapping[str, TensorInfo]],
    found: ScaleRepair,
) -> None:
    members = []
    for name, divisor in divisors.items():
        packed, scale = (
            np.frombuffer(info.read(), np.uint8).reshape(info.shape)
            for info in (modules[name]["weight_packed"], modules[name]["weight_scale"])
        )
        members.append(Member(name, packed, scale, divisor))
    common = common_scale(members)
    if common is None:
        ratio = max(divisors.values()) / min(divisors.values())
        raise CheckFailed(
            f"{block}: the global scales of {leaves} differ by a factor of {ratio:,.0f}; rescaled, a block scale would "
            "leave E4M3's range (2^-9 to 448). Quantize this checkpoint again."
        )
    for member in common.members:
        found.replaced[f"{member.name}.weight_scale"] = member.scale.tobytes()
        found.replaced[f"{member.name}.weight_global_scale"] = np.float32(common.divisor).tobytes()
        found.added_error[member.name] = member.added_error
    errors = ", ".join(f"{m.name.rsplit('.', 1)[1]} {m.added_error:.2%}" for m in common.members)
    found.actions.append(
        f"{block}: {leaves} now share the weight global scale {common.divisor:g}; added error {errors}"
    )
