"""Time of a whole verification of nano on a CPU, and simulated answers beside those of an engine that really serves.

    python benchmarks/verify.py --calibration SET --eval SET [--serving PYTHON] [--records 40]

Each format is quantized, then verified against nano on all of ``--eval``: two noise runs, the simulated release and the
report, in wall and processor time. ``--serving``: Python of an environment with clef-vllm; the release is then also
answered by its vLLM (emulated kernels on a CPU, bfloat16) and by its HTTP server on ``--records`` of the set. Their
distance from the simulation in float32 is printed beside what bfloat16 alone changes in the simulation: that is the
noise floor of the comparison.
"""

import argparse
import os
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from loguru import logger

from clefquant.calibration.stored import StoredRecord, open_set
from clefquant.progress import SILENT
from clefquant.quantize.calibrated import quantize
from clefquant.recipes.layout import uniform_layout
from clefquant.release.code import release_code
from clefquant.release.release import Release, open_release
from clefquant.verify.answers import Answer
from clefquant.verify.chunks import answer_records
from clefquant.verify.run import Options, verify
from clefquant.verify.runner_http import answer_over_http
from clefquant.verify.runner_vllm import answer_with_vllm
from clefquant.verify.segments import Segments
from clefquant.verify.simulated import load_simulated

READY_S = 600
#: What an engine needs on a CPU: kernels emulated, little memory set aside, one process.
ENGINE = {"enforce_eager": True, "max_model_len": 4096, "distributed_executor_backend": "uni"}
FOR_CPU = {"CLEF_VLLM_CPU_EMULATION": "1", "VLLM_CPU_KVCACHE_SPACE": "1"}


def say(text: str) -> None:
    """A line at once, also into a file."""
    print(text, flush=True)


def timed(name: str, release: Release, options: argparse.Namespace, out: Path) -> None:
    """Verify once from nothing."""
    wall, processor = time.monotonic(), time.process_time()
    report = verify(release.path, options.model, [options.eval], out, options=Options())
    wall, processor = time.monotonic() - wall, time.process_time() - processor
    summary = report.summary
    say(
        f"{name}: {wall:.0f} s wall, {processor:.0f} s processor ({torch.get_num_threads()} threads) for "
        f"{summary['records']} records; agreement {summary['agreement']:.1%}, KL {summary['kl']:.2g}"
    )


def simulated(release: Release, records: Sequence[StoredRecord], dtype: torch.dtype) -> list[Answer]:
    """The simulation's answers in ``dtype``."""
    with load_simulated(release, dtype=dtype) as loaded:
        return answer_records(loaded, records, 4096, lambda _: None)


@contextmanager
def serving(python: Path, release: Release, folder: Path) -> Iterator[str]:
    """The address of a ``clef-systemone`` that is ready."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [python, "-m", "clef_vllm.server.cli", "--model", release.path, "--port", str(port), "--enforce-eager"]
    command += ["--max-model-len", "4096"]
    with (folder / "server.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        wait_until_ready(f"http://127.0.0.1:{port}", process)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(120)


def wait_until_ready(url: str, process: "subprocess.Popen[bytes]") -> None:
    """Until /health answers 200; SystemExit when the server ends or takes too long."""
    for _ in range(READY_S):
        if process.poll() is not None:
            raise SystemExit(f"the server ended with code {process.returncode}")
        try:
            urllib.request.urlopen(f"{url}/health", timeout=10).close()
            return
        except (OSError, urllib.error.HTTPError):
            time.sleep(1)
    raise SystemExit(f"the server was not ready after {READY_S} s")


def distance(name: str, found: Sequence[Answer], base: Sequence[Answer]) -> None:
    """Print how far ``found`` is from ``base``: total variation per question, and answers that differ."""
    of = {answer.key: dict(zip(answer.options, answer.logits.tolist(), strict=True)) for answer in found}
    at = Segments.of_sizes(np.array([len(answer.options) for answer in base]))
    q = np.exp(at.log_softmax(np.array([of[answer.key][option] for answer in base for option in answer.options])))
    p = np.exp(at.log_softmax(np.concatenate([answer.logits for answer in base]).astype(np.float64)))
    tv = at.sum(np.abs(p - q)) / 2
    differ = sum(
        int(p[start : start + count].argmax() != q[start : start + count].argmax())
        for start, count in zip(at.starts, at.counts, strict=True)
    )
    median, high = np.percentile(tv, [50, 95])
    say(
        f"  {name}: TV median {median:.5f}, 95th percentile {high:.4f}, mean {tv.mean():.4f}, max {tv.max():.3f}; "
        f"{differ} of {len(base)} answers differ"
    )


def main() -> None:
    """Quantize, verify, serve, compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="nano")
    parser.add_argument("--calibration", type=Path, required=True)
    parser.add_argument("--eval", type=Path, required=True)
    parser.add_argument("--formats", default="fp8,nvfp4,mxfp4")
    parser.add_argument("--serving", type=Path)
    parser.add_argument("--records", type=int, default=40)
    options = parser.parse_args()
    logger.remove()
    os.environ |= {name: value for name, value in FOR_CPU.items() if not torch.cuda.is_available()}
    source = open_release(options.model)
    everything = list(open_set(options.eval, source.path, release_code(source.path)))
    records = everything[:: max(1, len(everything) // options.records)][: options.records]  # of every source
    with tempfile.TemporaryDirectory() as folder:
        for name in options.formats.split(","):
            out = Path(folder) / name
            quantize(source, uniform_layout(source, name), options.calibration, out / "release")
            release = open_release(out / "release")
            timed(name, release, options, out / "report")
            if options.serving:
                base = simulated(release, records, torch.float32)
                distance("simulated in bfloat16", simulated(release, records, torch.bfloat16), base)
                distance("vLLM", answer_with_vllm(options.serving, release, records, out, SILENT, ENGINE).answers, base)
                with serving(options.serving, release, out) as url:
                    distance("clef-systemone", answer_over_http(url, records, SILENT).answers, base)


if __name__ == "__main__":
    main()
