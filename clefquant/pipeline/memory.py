"""The most memory a stretch of work held: of this process, and of the GPUs when there are any."""

import resource
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

_PROCESS = Path("/proc/self")
_HIGHEST = "VmHWM:"


def forget_peak() -> None:
    """Begin a new stretch."""
    with suppress(OSError):  # elsewhere than on Linux the peak of the whole process is reported
        (_PROCESS / "clear_refs").write_text("5")  # the high-water mark falls to what is held now
    if gpu := _cuda():
        for device in range(gpu.device_count()):
            gpu.reset_peak_memory_stats(device)


def peak_bytes() -> dict[str, int]:
    """``peak_memory_bytes`` since :func:`forget_peak` (elsewhere than on Linux: since the start of the process), and
    ``peak_gpu_bytes``, the sum over the GPUs, when one is in use."""
    found = {"peak_memory_bytes": _resident()}
    if gpu := _cuda():
        found["peak_gpu_bytes"] = sum(gpu.max_memory_allocated(device) for device in range(gpu.device_count()))
    return found


def _resident() -> int:
    try:
        lines = (_PROCESS / "status").read_text().splitlines()
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith(_HIGHEST))
    except (OSError, StopIteration):
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak << 10


def _cuda() -> Any:
    """torch.cuda once something has used a GPU; asking must not start one."""
    torch = sys.modules.get("torch")
    return torch.cuda if torch is not None and torch.cuda.is_initialized() else None
