"""The command line. Flags that are not ours are vLLM's, and are read by vLLM's own parser once it is imported."""

import argparse
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from clef_vllm.server.limits import NAMES


class UsageError(ValueError):
    """Flags that cannot be used; the message is for the person who typed them."""


@dataclass(frozen=True)
class EngineFlags:
    """What the engine is built from. None leaves a choice to vLLM or to the release."""

    model: str
    images: int = 4
    videos: int = 0
    tp: int = 1
    dp: int = 1
    max_model_len: int | None = None
    gpu_memory_utilization: float | None = None
    kv_cache_gib: float | None = None
    gdn_backend: str | None = None
    flashinfer_autotune: str = "auto"
    lexical_table: str = "device"
    enforce_eager: bool = False
    vllm: list[str] = field(default_factory=list)  # flags that are not ours


def parser() -> argparse.ArgumentParser:
    limits = ", ".join(f"{name} ({default}: {text})" for name, (default, text) in NAMES.items())
    p = argparse.ArgumentParser(
        prog="clef-systemone",
        description="Serve a Clef release over POST /v1/systemone.",
        epilog="Any other flag is handed to vLLM's engine (--max-num-seqs, --data-parallel-address, "
        "--distributed-executor-backend ray, --nnodes, ...) and wins over the ones above.",
        allow_abbrev=False,
    )
    p.add_argument("--model", required=True, type=Path, help="release folder")
    p.add_argument("--served-model-name", help="name that /v1/models lists (default: the folder's)")
    p.add_argument("--host", default="127.0.0.1", help="address to listen on (default: this machine only)")
    p.add_argument("--port", type=int, default=8000)
    p.add_argument("--api-key-file", type=Path, help="file with one key a line; /v1/* then asks for a bearer token")
    engine = p.add_argument_group("engine")
    engine.add_argument("--tp", type=int, default=1, help="GPUs that share one copy of the model")
    engine.add_argument("--dp", type=int, default=1, help="copies of the model behind this port")
    engine.add_argument("--max-model-len", type=int, help="longest prompt in tokens; longer states are cut (16384)")
    engine.add_argument("--gpu-memory-utilization", type=float, help="share of the GPU's memory that vLLM takes")
    engine.add_argument("--kv-cache-gib", type=float, help="fixed size of the KV cache")
    engine.add_argument("--gdn-backend", choices=["triton", "flashinfer", "cutedsl"], help="linear-attention kernel")
    engine.add_argument("--flashinfer-autotune", choices=["auto", "on", "off"], default="auto",
                        help="auto: vLLM's default, but off with --tp above 1, where it can deadlock")  # fmt: skip
    engine.add_argument("--lexical-table", choices=["device", "cpu"], default="device",
                        help="where lm_head's int8 rows are kept")  # fmt: skip
    engine.add_argument("--enforce-eager", action="store_true", help="no compilation and no CUDA graphs")
    load = p.add_argument_group("load and limits")
    load.add_argument("--max-concurrent", type=int, default=256, help="records in the engine at once (256)")
    load.add_argument("--queue", type=int, default=256, help="requests that may wait; others get 503 (256)")
    load.add_argument("--timeout", type=float, default=120.0, help="seconds for a record, waiting included (120)")
    load.add_argument("--start-timeout", type=float, default=3600.0, help="seconds to load and warm up (3600)")
    load.add_argument("--limits", default="", metavar="NAME=VALUE,...", help=limits)
    load.add_argument("--lenient", action="store_true", help="take any printable id, any instructions, any noul key")
    load.add_argument("--strict", action="store_true", help="refuse unknown fields instead of ignoring them")
    return p


def vllm_flags(arguments: list[str]) -> dict[str, Any]:
    """vLLM's own flags as engine arguments, those given only. UsageError for what vLLM does not know either."""
    if not arguments:
        return {}
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    def refuse(message: str) -> None:
        raise UsageError(f"{message} (neither clef-systemone nor vLLM's engine knows it)")

    vllm = AsyncEngineArgs.add_cli_args(FlexibleArgumentParser(add_help=False))
    vllm.error = refuse
    for action in vllm._actions:
        action.default = argparse.SUPPRESS
    given = vars(vllm.parse_args(arguments))
    fixed = sorted(set(given) & {"model", "runner", "hf_overrides"})
    if fixed:
        raise UsageError(f"--{fixed[0].replace('_', '-')} of vLLM cannot be changed: Clef depends on it")
    return given
