"""Encoding: rate against the release's encode_record called one by one, and memory against the number of records.

    python benchmarks/encoding.py --model nano
    python benchmarks/encoding.py --model nano --memory 10000 100000

Rates are medians of three runs of the same records on one thread, after checking that the tokens are equal. Memory is
the peak resident size of a fresh process that builds a set from a JSON Lines file of so many records.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

RUNS = 3
MESSAGE = "My card number {n} has not arrived yet and I would like to know where it is, please help me."


def schemas() -> dict[str, tuple[dict[str, Any], int]]:
    """Name to questions and to how often the message is repeated in the state."""
    intents = {f"intent_{i}": f"The customer asks about topic {i} of the bank" for i in range(77)}
    many = {"intent": {"type": "choice", "instructions": "Which intent?", "criteria": intents}}
    three = {
        "team": {"type": "choice", "instructions": "Which team?", "criteria": dict(list(intents.items())[:10])},
        "urgent": {"type": "noul", "instructions": "Is it urgent?"},
        "anger": {"type": "score", "instructions": "How angry?", "criteria": ["calm", "annoyed", "angry"]},
    }
    one = {"spam": {"type": "noul", "instructions": "Is it spam?"}}
    return {
        "77 options, short state": (many, 1),
        "10 + 2 + 3 options, short state": (three, 1),
        "one true/false, short state": (one, 1),
        "10 + 2 + 3 options, 2,000 characters": (three, 20),
    }


def rates(model: str, records: int) -> None:
    from clefquant.calibration.encoding import load_encoder
    from clefquant.release.release import open_release

    folder = open_release(model).path
    encoder = load_encoder(folder)
    plain = encoder.tokenizer.tokenizer
    print("| records that share a schema | tokens | one by one, records/s | here, records/s | ratio |")
    print("|---|---|---|---|---|")
    for name, (questions, repeat) in schemas().items():
        states = ((MESSAGE.format(n=n) + " ") * repeat for n in range(records))
        given = [{"state": state, "questions": questions, "id": "r"} for state in states]
        expected = [encoder.code.encode_record(plain, record) for record in given]
        slow = statistics.median(
            timed(lambda record: encoder.code.encode_record(plain, record), given) for _ in range(RUNS)
        )
        times = []
        for _ in range(RUNS):
            fresh = load_encoder(folder, encoder.code)
            assert [fresh.encode(record, "r", max_length=16384).record for record in given] == expected, name
            fresh = load_encoder(folder, encoder.code)
            times.append(timed(lambda record, e=fresh: e.encode(record, "r", max_length=16384), given))
        fast = statistics.median(times)
        tokens = len(expected[0].input_ids)
        print(f"| {name} | {tokens:,} | {records / slow:,.0f} | {records / fast:,.0f} | {slow / fast:.1f} |")


def timed(encode: Callable[..., Any], records: list[Any]) -> float:
    """Seconds for all records."""
    start = time.perf_counter()
    for record in records:
        encode(record)
    return time.perf_counter() - start


def memory(model: str, counts: list[int]) -> None:
    print("| records | peak memory, MB | seconds |")
    print("|---|---|---|")
    for count in counts:
        script = [sys.executable, __file__, "--model", model, "--build", str(count)]
        print(subprocess.run(script, check=True, capture_output=True, text=True).stdout.strip(), flush=True)


def build(model: str, count: int) -> None:
    from clefquant.calibration.build import build_set
    from clefquant.calibration.encoding import load_encoder
    from clefquant.calibration.mixture import Mixture
    from clefquant.release.release import open_release

    questions = schemas()["10 + 2 + 3 options, short state"][0]
    with tempfile.TemporaryDirectory() as folder:
        with (Path(folder) / "in.jsonl").open("w") as file:
            for n in range(count):
                file.write(json.dumps({"state": MESSAGE.format(n=n), "questions": questions}) + "\n")
        source = {"name": "in", "kind": "file", "path": "in.jsonl", "order": "first"}
        mixture = Mixture.model_validate({"name": "memory", "folder": folder, "sources": [source]})
        release = open_release(model)
        load_encoder(release.path)  # imports the libraries below, which takes longer than the records
        start = time.perf_counter()
        build_set(release, mixture, None, Path(folder) / "set", workers=1)
        seconds = time.perf_counter() - start
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"| {count:,} | {peak_mb:,.0f} | {seconds:.1f} |")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="nano")
    parser.add_argument("--records", type=int, default=500)
    parser.add_argument("--memory", type=int, nargs="+", metavar="RECORDS")
    parser.add_argument("--build", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.build:
        build(arguments.model, arguments.build)
    elif arguments.memory:
        memory(arguments.model, arguments.memory)
    else:
        rates(arguments.model, arguments.records)
