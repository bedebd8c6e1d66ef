"""Fuzzing: arbitrary input against everything that reads what somebody else wrote.

    .venv/bin/python benchmarks/fuzz records files weights --minutes 5
    .venv-serving/bin/python benchmarks/fuzz bodies --minutes 5

Each target is a module beside this file whose ``prepare(folder)`` gives a strategy of inputs and a check that raises
for an input that is handled wrongly. The first one is made as small as possible, shown with its traceback, and ends the
target; the exit code is then 1. An input that takes over 20 seconds or 2 GiB is a finding too.
"""

import argparse
import importlib
import os
import resource
import signal
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

from hypothesis import HealthCheck, given, seed, settings

TARGETS = ("records", "files", "weights", "bodies")
LIMIT_S = 20
LIMIT_BYTES = 2 << 30
#: Examples with one seed; short rounds, so that hypothesis does not search around what it has seen already.
ROUND = 500


def too_slow(*_: Any) -> None:
    raise TimeoutError(f"over {LIMIT_S} s")


def bound_memory() -> None:
    """From here on this process gets so much more address space and no more."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + LIMIT_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))


def fuzz(target: str, minutes: float, first_seed: int, folder: Path) -> bool:
    """Try inputs until the time is over; whether all were handled."""
    inputs, check = importlib.import_module(target).prepare(folder)
    bound_memory()
    begin, tried, sound = time.process_time(), 0, True

    def over() -> bool:
        return time.process_time() - begin > 60 * minutes

    def attempt(value: Any) -> None:
        nonlocal tried, sound
        if sound and over():  # a finding is made small first
            return
        tried += 1
        signal.alarm(LIMIT_S)
        try:
            check(value)
        except BaseException:
            sound = False
            raise
        finally:
            signal.alarm(0)

    options = settings(max_examples=ROUND, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    round_ = first_seed
    while sound and not over():
        try:
            seed(round_)(options(given(inputs)(attempt)))()
        except Exception:
            traceback.print_exc()
        round_ += 1
    spent = (time.process_time() - begin) / 60
    print(f"{target}: {tried:,} inputs in {spent:.1f} minutes of processor time, {'clean' if sound else 'A FINDING'}")
    return sound


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("targets", nargs="+", choices=TARGETS)
    parser.add_argument("--minutes", type=float, default=1.0, help="processor time of each target")
    parser.add_argument("--seed", type=int, default=0, help="of the first round; the next round has the next one")
    asked = parser.parse_args()
    signal.signal(signal.SIGALRM, too_slow)
    results = []
    for target in asked.targets:
        with tempfile.TemporaryDirectory() as folder:
            results.append(fuzz(target, asked.minutes, asked.seed, Path(folder)))
    return 0 if all(results) else 1


if __name__ == "__main__":
    raise SystemExit(main())
