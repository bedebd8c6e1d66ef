"""Fixtures shared by the tests: one random release per run, and what CPU engines need from the environment."""

import os
from pathlib import Path

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


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """State the measured differences beside the verdicts."""
    for report in terminalreporter.getreports("passed") + terminalreporter.getreports("failed"):
        for name, value in report.user_properties:
            terminalreporter.write_line(f"{report.nodeid.split('::')[-1]}: {name} {value}")
