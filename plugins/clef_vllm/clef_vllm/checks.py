"""What is checked at start. vLLM itself starts without a word when tables are missing and then answers NaN."""

import re
from collections.abc import Iterable
from typing import Any

from clef_vllm import __version__, compat
from clef_vllm.layout import ARCHITECTURE, LEXICAL_KEY, TASK
from clef_vllm.release import MARKER, Release, ReleaseError


def parse_version(text: str) -> tuple[int, ...]:
    """Numbers of a dotted version, "0.2.1" to (0, 2, 1)."""
    if not re.fullmatch(r"\d+(\.\d+)*", text):
        raise ReleaseError(f"{MARKER} is {text!r}, not a version such as 0.1.0; export the release again")
    return tuple(int(part) for part in text.split("."))


def check_marker(release: Release, version: str = __version__) -> None:
    """int8 tables need a plugin that knows them, and a marker that makes every other reader stop."""
    if release.tables and release.marker is None:
        raise ReleaseError(
            f"{release.path} has int8 tables but no {MARKER} in its head configuration: a reader that does not know "
            f"the tables would answer wrongly without an error. This is clef-vllm {version}; export the release again"
        )
    if release.marker is not None and parse_version(release.marker) > parse_version(version):
        raise ReleaseError(
            f"{release.path} needs clef-vllm {release.marker} or newer, this is clef-vllm {version}; "
            f"install the plugin in the release's vllm_plugin/ folder"
        )


def check_architecture(architectures: Any, tasks: Iterable[str] | None = None) -> None:
    """Stock vLLM would read the folder as a text generator, or through a head of its own."""
    if list(architectures or []) != [ARCHITECTURE]:
        raise ReleaseError(
            f"vLLM runs architecture {architectures}, not {ARCHITECTURE}: the override did not take effect and answers "
            f'would not come from the joint head; pass hf_overrides={{"architectures": ["{ARCHITECTURE}"]}}'
        )
    if tasks is not None and TASK not in tasks:
        raise ReleaseError(f"vLLM offers the tasks {sorted(tasks)}, not {TASK}; start it with runner='pooling'")


def check_ranks(config: Any, ranks: int) -> None:
    """vLLM builds a linear-attention layer without heads on some ranks, and fails at the first request only."""
    for name in ("linear_num_key_heads", "linear_num_value_heads", "num_attention_heads"):
        heads = getattr(config, name, 0)
        if heads % ranks:
            raise ReleaseError(
                f"{ranks} tensor-parallel ranks do not divide {name} = {heads}; use a divisor of {heads}"
            )


def lexical_table(release: Release, config: Any) -> str:
    """Where lm_head's rows are kept, "device" or "cpu" (host memory); asked for through hf_overrides."""
    place = str(getattr(config, LEXICAL_KEY, "device"))
    if place == "cpu" and not release.tables:
        raise ReleaseError(
            f"{release.path} has 16-bit tables, and only int8 tables can be kept in host memory; "
            f"leave the lexical table on the device, or shrink the tables with clefquant shrink-tables"
        )
    return place


def kernel_lines(model: Any) -> list[str]:
    """One line per format: the kernel vLLM chose and whether activations are really quantized."""
    chosen: dict[tuple[str, str], int] = {}
    for module in model.modules():
        scheme = getattr(module, "scheme", None)
        for kernel in compat.scheme_kernels(scheme):
            key = type(scheme).__name__.removeprefix("CompressedTensors"), type(kernel).__name__
            chosen[key] = chosen.get(key, 0) + 1
    if not chosen:
        return ["clef-vllm: no quantized layers"]
    return [f"clef-vllm: {s} on {count} layers: {k} ({describe(k)})" for (s, k), count in sorted(chosen.items())]


def describe(kernel: str) -> str:
    """What a kernel does to the activations, told by its class name (those of vLLM 0.26 to 0.33)."""
    if "Marlin" in kernel or "A16" in kernel:
        return "weight-only on this device, activations stay 16-bit"
    if "Emulation" in kernel or "Emulated" in kernel:
        return "emulated: exact arithmetic of the format, slow"
    if "Humming" in kernel:
        return "weights quantized, activations as Humming is set up: 16-bit unless told otherwise"
    if "W4A8" in kernel:
        return "4-bit weights, activations in 8 bits"
    return "weights and activations quantized"
