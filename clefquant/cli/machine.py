"""What this machine offers: packages against the versions they were tested with, memory, disk, GPU."""

import importlib.metadata
import os
import platform
import shutil
from pathlib import Path
from typing import NamedTuple

import psutil
from packaging.requirements import Requirement

#: Package, tested versions, what it is for. An empty range means any version.
PACKAGES = (
    ("torch", ">=2.10,<=2.14.0", "all computation"),
    ("transformers", ">=5.15,<=5.17.0", "loading and running releases"),
    ("llmcompressor", "==0.14.*", "quantizing"),
    ("compressed-tensors", "==0.19.*", "formats of quantized tensors"),
    ("clef-finetune", "==0.1.0", "the bundled nano model"),
)
_BLACKWELL = (10, 0)
_ADA = (8, 9)


class Fact(NamedTuple):
    """One line of ``clefquant doctor``. ``ok`` is None for plain information; ``remedy``: what to type."""

    name: str
    found: str
    ok: bool | None = None
    remedy: str = ""


def package_facts() -> list[Fact]:
    """Each package with its version and whether that is one this clefquant was tested with."""
    facts = []
    for name, versions, purpose in PACKAGES:
        requirement = Requirement(f"{name}{versions}")
        try:
            version = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            facts.append(Fact(name, f"not installed ({purpose})", False, f"uv pip install '{requirement}'"))
            continue
        ok = requirement.specifier.contains(version, prereleases=True)
        facts.append(Fact(name, f"{version} ({purpose})", ok, "" if ok else f"uv pip install '{requirement}'"))
    return facts


def machine_facts(folder: Path) -> list[Fact]:
    """Python, processor, memory, free disk where ``folder`` is, GPU and what it means for each format."""
    memory = psutil.virtual_memory()
    facts = [
        Fact("python", platform.python_version()),
        Fact("processor", f"{platform.machine()}, {os.cpu_count()} cores"),
        Fact("memory", f"{memory.available / 1e9:.1f} of {memory.total / 1e9:.1f} GB free"),
        Fact("disk", f"{shutil.disk_usage(folder).free / 1e9:.1f} GB free at {folder}"),
    ]
    return facts + gpu_facts()


def gpu_facts() -> list[Fact]:
    """One line per GPU, or one that says there is none."""
    import torch

    if not torch.cuda.is_available():
        return [Fact("gpu", "none: models run in float32 on the processor (nano in seconds, 9B in hours)")]
    facts = []
    for index in range(torch.cuda.device_count()):
        capability = torch.cuda.get_device_capability(index)
        free, total = torch.cuda.mem_get_info(index)
        memory = f"{free / 1e9:.0f} of {total / 1e9:.0f} GB free"
        text = f"{torch.cuda.get_device_name(index)}, {memory}; {kernel_note(capability)}"
        facts.append(Fact(f"gpu {index}", text))
    return facts


def kernel_note(capability: tuple[int, int]) -> str:
    """How a server runs the formats on a GPU of this compute capability."""
    if capability >= _BLACKWELL:
        return "FP8 and FP4 in hardware"
    if capability >= _ADA:
        return "FP8 in hardware; NVFP4 and MXFP4 are served weight-only (activations stay 16-bit)"
    return "no FP8 or FP4 in hardware; quantized releases are served weight-only"
