"""Fixtures shared by the tests: one random release per run, and what CPU engines need from the environment."""

import gc
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

# Set before vLLM is imported anywhere: a small KV cache (GiB), the emulated kernels, no usage reports.
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
os.environ.setdefault("CLEF_VLLM_CPU_EMULATION", "1")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")


@pytest.fixture(scope="session")
def nano(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random-weight release with BF16 tables and the head at its root."""
    from nano import make_release

    return make_release(tmp_path_factory.mktemp("release") / "nano")


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Any]]:
    """Start engines on the CPU back end, in this process; at most one at a time, closed at the end of the test."""
    monkeypatch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    from vllm.distributed import cleanup_dist_env_and_memory

    from clef_vllm import ClefVLLM

    started: list[Any] = []

    def start(path: Path, **options: Any) -> Any:
        defaults = {"max_model_len": 4096, "enforce_eager": True, "distributed_executor_backend": "uni", "images": 0}
        started.append(ClefVLLM(path, **{**defaults, **options}))
        return started[-1]

    yield start
    for one in started:
        one.close()
    started.clear()
    gc.collect()
    cleanup_dist_env_and_memory()


@pytest.fixture(scope="session")
def plain(nano: Path) -> Any:
    """What the release's own code answers in bfloat16."""
    from comparing import reference

    return reference(nano)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """State the measured differences beside the verdicts."""
    for report in terminalreporter.getreports("passed") + terminalreporter.getreports("failed"):
        for name, value in report.user_properties:
            terminalreporter.write_line(f"{report.nodeid.split('::')[-1]}: {name} {value}")
