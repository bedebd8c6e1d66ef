"""Calibration and sweeps on several GPUs (or CPU processes) against one: the same results, and how much sooner.

    python benchmarks/gpu/several.py calibrate --model MODEL --calibration SET [--scheme nvfp4] [--processes 2]
    python benchmarks/gpu/several.py sweep --model MODEL --calibration SET --eval SET [--formats fp8,nvfp4] [--kill]

Whole commands are timed, each after one that is not counted (kernels are tuned and the source is read then), so sets
should be large enough to outweigh starting Python. ``calibrate`` compares `clefquant quantize` with the same under
torchrun. ``sweep`` compares `clefquant sensitivity` in one process that sees one GPU with the same over a Ray cluster
started here with every GPU (a worker each; on a CPU ``--processes`` workers of one core); ``--kill`` ends one Ray
worker while it probes. Exit code 1 when a file differs. Serving on several GPUs: serve.py with modes such as
``fp8:clef_vllm:graphs-tp2``.
"""

import argparse
import filecmp
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
import torch

BIN = Path(sys.executable).parent
RAY = (sys.executable, "-m", "ray.scripts.scripts")
WORKER = "ray::Worker"


def run(command: list[object], environment: dict[str, str], kill: bool = False) -> float:
    """Seconds of a command that must succeed; its output goes to stderr."""
    started = time.perf_counter()
    process = subprocess.Popen([*map(str, command)], stdout=sys.stderr, env=os.environ | environment)
    while kill and process.poll() is None:
        busy = [
            p for p in psutil.process_iter(["cmdline"]) if " ".join(p.info["cmdline"] or [])[: len(WORKER)] == WORKER
        ]
        probing = [p for p in busy if sum(p.cpu_times()[:2]) > 30]
        if probing:
            probing[0].send_signal(signal.SIGKILL)
            kill = False
            print(f"killed {probing[0].pid} after {time.perf_counter() - started:.0f} s", flush=True)
        time.sleep(0.2)
    assert process.wait() == 0, f"{command} ended with {process.returncode}"
    return time.perf_counter() - started


def report(what: str, one: float, several: float, equal: dict[str, bool]) -> None:
    """One JSON line; exit code 1 if anything differs."""
    print(json.dumps({"what": what, "one_s": round(one, 1), "several_s": round(several, 1),
                      "ratio": round(one / several, 3), "equal": equal}), flush=True)  # fmt: skip
    sys.exit(0 if all(equal.values()) else 1)


def calibrate(options: argparse.Namespace, work: Path) -> None:
    count, threads = options.processes, {"OMP_NUM_THREADS": "1"}
    command = [BIN / "clefquant", "quantize", "--model", options.model, "--scheme", options.scheme]
    command += ["--calibration", options.calibration, "--out"]
    torchrun = [BIN / "torchrun", "--nproc-per-node", count, "--no-python"]
    run([*command, work / "warm"], threads)
    one = run([*command, work / "one"], threads)
    several = run([*torchrun, *command, work / "several"], threads)
    statistics = [json.loads((work / n / "input_statistics.json").read_text())["linears"] for n in ("one", "several")]
    amax = [{name: seen["amax"] for name, seen in found.items()} for found in statistics]
    equal = {"largest inputs": amax[0] == amax[1]}
    names = [file.name for file in (work / "one").iterdir() if file.suffix == ".safetensors"]
    for name in (*names, "model.safetensors.index.json", "config.json", "layout.json"):
        equal[name] = filecmp.cmp(work / "one" / name, work / "several" / name, shallow=False)
    report(f"calibrate {options.scheme}, {count} processes", one, several, equal)


def sweep(options: argparse.Namespace, work: Path) -> None:
    count = torch.cuda.device_count() or options.processes
    command = [BIN / "clefquant", "sensitivity", "--model", options.model, "--calibration", options.calibration]
    command += ["--eval", options.eval, "--formats", options.formats, "--budget", "0.6x", "--out"]
    alone = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "0"}
    one = run([*command, work / "one"], alone)
    subprocess.run([*RAY, "start", "--head", f"--num-cpus={count}", "--disable-usage-stats"], check=True,
                   stdout=sys.stderr, env=os.environ | {"OMP_NUM_THREADS": "1"})  # fmt: skip
    try:
        several = run([*command, work / "several", "--ray", "auto"], {"OMP_NUM_THREADS": "1"}, options.kill)
    finally:
        subprocess.run([*RAY, "stop"], check=False, stdout=sys.stderr)
    tables = [(work / name / "sensitivity.json").read_bytes() for name in ("one", "several")]
    report(f"sweep {options.formats}, {count} workers", one, several, {"sensitivity.json": tables[0] == tables[1]})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    for name, work in (("calibrate", calibrate), ("sweep", sweep)):
        command = commands.add_parser(name)
        command.set_defaults(work=work)
        command.add_argument("--model", default="nano")
        command.add_argument("--calibration", type=Path, required=True)
        command.add_argument("--processes", type=int, default=2)
    commands.choices["calibrate"].add_argument("--scheme", default="nvfp4")
    commands.choices["sweep"].add_argument("--eval", type=Path, required=True)
    commands.choices["sweep"].add_argument("--formats", default="fp8,nvfp4")
    commands.choices["sweep"].add_argument("--kill", action="store_true")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp())
    try:
        options.work(options, folder)
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
