"""The console script: flags to a service, then uvicorn.

The port opens before torch and vLLM are imported: whoever watches /health sees the server load.
"""

import multiprocessing
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

MISSING_CODE = 3  # a package is missing


def main(arguments: list[str] | None = None) -> int:
    """Run the server. Exit codes: 0 stopped, 1 a check or the engine failed, 2 wrong usage or input, 3 a package is
    missing, 130 interrupted."""
    from clef_vllm.server.flags import EngineFlags, parser

    args, vllm = parser().parse_known_args(arguments)
    try:
        import uvicorn

        from clef_vllm.server.app import make_app
        from clef_vllm.server.limits import ServerLimits
    except ImportError as error:
        return refuse(MISSING_CODE, f"{error}; install the server extra: pip install 'clef-vllm[server]'")
    from clef_vllm.release import Release, ReleaseError

    try:
        name = args.served_model_name or Release.open(args.model).path.resolve().name
        limits = ServerLimits.parse(args.limits, hosted_rules=not args.lenient, strict=args.strict)
        keys = read_keys(args.api_key_file)
    except (ReleaseError, OSError, ValueError) as error:
        return refuse(2, str(error))
    flags = EngineFlags(
        str(args.model), limits.record.images or 0, limits.record.videos or 0, args.tp, args.dp,
        args.max_model_len, args.gpu_memory_utilization,
        args.kv_cache_gib, args.gdn_backend, args.flashinfer_autotune, args.lexical_table, args.enforce_eager, vllm,
    )  # fmt: skip
    service = make_service(args, name, limits, flags)

    def end() -> None:
        server.should_exit = True

    config = uvicorn.Config(
        make_app(service, end, keys), host=args.host, port=args.port, log_level="warning",
        timeout_graceful_shutdown=int(args.timeout) + 5,
    )  # fmt: skip
    server = uvicorn.Server(config)
    stopped_by = run_until_stopped(server.run)
    code = 130 if stopped_by == signal.SIGINT else 0
    if service.failure is not None:
        code = refuse(*ending(service.failure))
    if service.loading is not None and service.loading.is_alive():
        # The thread that builds the engine cannot be interrupted, and an exit would wait for its processes.
        for child in multiprocessing.active_children():
            child.kill()
        os._exit(code)
    return code


def make_service(args: Any, name: str, limits: Any, flags: Any) -> Any:
    from clef_vllm.server.admission import Admission
    from clef_vllm.server.images import ImageDecoder
    from clef_vllm.server.service import Service

    decoder = ImageDecoder(limits.image_bytes, limits.image_pixels, limits.frames)

    def load(progress: Callable[[str], None]) -> Any:
        from clef_vllm.server.backend import Backend

        return Backend.load(flags, decoder, progress)

    admission = Admission(args.max_concurrent, args.queue)
    return Service(load, name, limits, admission, args.timeout, args.start_timeout)


def ending(failure: BaseException) -> tuple[int, str]:
    """Exit code and message of a server that failed to start or whose engine died."""
    from clef_vllm.server.flags import UsageError

    if isinstance(failure, ImportError):
        return MISSING_CODE, f"{failure}; install what is missing (vLLM does not come with clef-vllm)"
    return 2 if isinstance(failure, UsageError) else 1, str(failure)


def run_until_stopped(run: Callable[[], None]) -> int | None:
    """Run uvicorn; the signal that stopped it. uvicorn finishes its work and then raises the signal again."""
    caught: list[int] = []
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda caught_number, _: caught.append(caught_number))
    run()
    return caught[0] if caught else None


def read_keys(path: Path | None) -> list[str]:
    """Keys of a file, one a line; empty lines and lines that begin with # do not count. ValueError if none."""
    if path is None:
        return []
    # editors on Windows put a mark before the first key
    lines = [line.strip() for line in path.read_text(encoding="utf-8-sig").splitlines()]
    keys = [line for line in lines if line and not line.startswith("#")]
    if not keys:
        raise ValueError(f"{path} holds no key; write one a line, or leave --api-key-file out")
    return keys


def refuse(code: int, message: str) -> int:
    print(f"clef-systemone: {message}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
