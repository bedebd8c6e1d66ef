"""The console script: flags to engine arguments, then uvicorn."""

import argparse
import sys
from pathlib import Path


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(prog="clef-systemone", description="Serve a Clef release over POST /v1/systemone")
    p.add_argument("--model", required=True, type=Path, help="release folder")
    p.add_argument("--host", default="127.0.0.1", help="address to listen on (default: this machine only)")
    p.add_argument("--port", type=int, default=8000)
    p.add_argument("--tp", type=int, default=1, help="GPUs that share one copy of the model")
    p.add_argument("--dp", type=int, default=1, help="copies of the model behind this port")
    p.add_argument("--max-model-len", type=int, help="longest prompt in tokens; longer states are cut (default 16384)")
    p.add_argument("--gpu-memory-utilization", type=float)
    p.add_argument("--kv-cache-gib", type=float, help="fixed size of the KV cache")
    p.add_argument("--gdn-backend", choices=["triton", "flashinfer", "cutedsl"], help="linear-attention prefill kernel")
    p.add_argument("--max-images", type=int, default=4, help="images per request; 0 leaves the vision tower out")
    p.add_argument("--max-questions", type=int, default=64)
    p.add_argument("--max-options", type=int, default=255)
    p.add_argument("--max-levels", type=int, default=10)
    p.add_argument("--enforce-eager", action="store_true", help="no compilation and no CUDA graphs")
    p.add_argument("--served-model-name", help="name that /v1/models lists (default: the folder's)")
    return p


def main(arguments: list[str] | None = None) -> int:
    """Run the server. Exit codes: 0 stopped, 1 a check or the engine failed, 2 wrong usage or input."""
    args = parser().parse_args(arguments)
    from clef_vllm.compat import VersionError
    from clef_vllm.engine import default_max_model_len, engine_options
    from clef_vllm.release import Release, ReleaseError
    from clef_vllm.requests import Limits

    try:
        import uvicorn

        from clef_vllm.server.app import make_app
        from clef_vllm.server.service import Service
    except ImportError as error:
        print(f"clef-systemone: {error}; install the server extra: pip install 'clef-vllm[server]'", file=sys.stderr)
        return 3
    try:
        release = Release.open(args.model)
        options = engine_options(
            release, args.max_model_len or default_max_model_len(release.path), args.gpu_memory_utilization,
            args.kv_cache_gib, args.max_images, tensor_parallel_size=args.tp, data_parallel_size=args.dp,
            gdn_prefill_backend=args.gdn_backend, enforce_eager=args.enforce_eager or None,
        )  # fmt: skip
    except (ReleaseError, VersionError, OSError, ValueError) as error:
        print(f"clef-systemone: {error}", file=sys.stderr)
        return 2
    limits = Limits(args.max_questions, args.max_options, args.max_levels, args.max_images)
    service = Service(options, limits, args.served_model_name or release.path.resolve().name)

    def end() -> None:
        server.should_exit = True

    app = make_app(service, on_failure=end)
    server = uvicorn.Server(uvicorn.Config(app, host=args.host, port=args.port, log_level="warning"))
    server.run()
    if service.state == "failed":
        print(f"clef-systemone: {service.detail}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
