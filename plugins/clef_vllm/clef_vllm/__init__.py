"""Clef decision models on vLLM: a pooling model, its joint head, an offline class and an HTTP server.

Importing this package imports neither vLLM nor torch; `ClefVLLM` is loaded on first use.
"""

from typing import TYPE_CHECKING, Any

from clef_vllm.layout import ARCHITECTURE, EXTRA_KEY, TASK, schema_layout

if TYPE_CHECKING:
    from clef_vllm.offline import ClefVLLM

__version__ = "0.1.0"
__all__ = ["ARCHITECTURE", "EXTRA_KEY", "TASK", "ClefVLLM", "__version__", "schema_layout"]


def __getattr__(name: str) -> Any:
    if name == "ClefVLLM":
        from clef_vllm.offline import ClefVLLM

        return ClefVLLM
    raise AttributeError(f"module 'clef_vllm' has no attribute {name!r}")
