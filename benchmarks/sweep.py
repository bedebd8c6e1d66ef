"""Time of a sweep against the same probes as full forward evaluations, in one run on one machine.

    python benchmarks/sweep.py --model nano --calibration SET --eval SET [--records 200] [--sample 12]

The full evaluation of a probe is what a user without the sweep would run: quantize the unit, simulate it, all records
through the release's own forward. ``--sample`` of the probes, drawn at random, are timed that way and scaled up; 0
times them all. They are timed between the sweep's own probes, all along it, so that a machine that grows busier favours
neither side. Processor time is printed beside wall time, which other work on the machine disturbs.
"""

import argparse
import json
import random
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from clefquant.calibration.stored import open_set
from clefquant.quantize.model import quantize_from_disk
from clefquant.quantize.simulate import simulated
from clefquant.quantize.statistics import collect_statistics
from clefquant.release.code import release_code
from clefquant.release.load import load_release, option_logits
from clefquant.release.release import open_release
from clefquant.release.states import DEFAULT_CACHE_BYTES
from clefquant.release.units import Unit
from clefquant.sensitivity.probe import Work
from clefquant.sensitivity.rounding import Quantizer
from clefquant.sensitivity.shards import BATCH_TOKENS, Shard
from clefquant.sensitivity.store import Probe
from clefquant.sensitivity.sweep import sweep
from clefquant.sensitivity.walk import probes


def timed(work: Callable[[], object]) -> tuple[float, float]:
    """Wall and processor seconds."""
    wall, processor = time.monotonic(), time.process_time()
    work()
    return time.monotonic() - wall, time.process_time() - processor


# Long: a script, read from top to bottom.
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="nano")
    parser.add_argument("--calibration", type=Path, required=True)
    parser.add_argument("--eval", type=Path, required=True)
    parser.add_argument("--formats", default="fp8,nvfp4,mxfp4")
    parser.add_argument("--records", type=int, default=200)
    parser.add_argument("--sample", type=int, default=0)
    options = parser.parse_args()

    release = open_release(options.model)
    code = release_code(release.path)
    calibration = [record.encoded for record in open_set(options.calibration, release.path, code)]
    records = list(open_set(options.eval, release.path, code))
    records = records[:: max(1, len(records) // options.records)][: options.records]  # of every source
    amax = {name: found.amax for name, found in collect_statistics(release, calibration).items()}
    loaded, formats = load_release(release), options.formats.split(",")
    encoded = [record.encoded for record in records]
    for name in formats:  # first calls import, allocate and compile
        with simulated(loaded, quantize_from_disk(release, release.units[0], name, amax)):
            list(option_logits(loaded, encoded[:4]))

    batch_tokens = BATCH_TOKENS[loaded.device.type]  # the same for both
    pairs = [(unit, name) for unit in release.units for name in formats]
    chosen = random.Random(0).sample(pairs, options.sample) if options.sample else pairs

    whole: list[tuple[float, float]] = []

    def evaluate(unit: Unit, name: str) -> None:
        with simulated(loaded, quantize_from_disk(release, unit, name, amax)):
            list(option_logits(loaded, encoded, batch_tokens=batch_tokens))

    def interleaved(shards: Sequence[Shard], work: Sequence[Work], input_amax: Mapping[str, float]) -> Iterator[Probe]:
        """The sweep's probes, a full evaluation after every few of them."""
        found = probes(loaded, shards, work, Quantizer(loaded, input_amax), cache_bytes=DEFAULT_CACHE_BYTES)
        for number, probe in enumerate(found, start=1):
            while len(whole) * len(work) < number * len(chosen):
                whole.append(timed(partial(evaluate, *chosen[len(whole)])))
            yield probe

    with tempfile.TemporaryDirectory() as folder:
        both = timed(
            lambda: sweep(loaded, amax, records, formats, Path(folder), batch_tokens=batch_tokens, runner=interleaved)
        )
    sampled = [sum(times) for times in zip(*whole, strict=True)]
    swept = [everything - part for everything, part in zip(both, sampled, strict=True)]
    full = [part * len(pairs) / len(whole) for part in sampled]
    result = {
        "model": options.model,
        "records": len(records),
        "tokens": sum(record.tokens for record in records),
        "probes": len(pairs),
        "full_evaluations_timed": len(whole),
        "sweep_wall_s": round(swept[0], 1),
        "full_wall_s": round(full[0], 1),
        "ratio_wall": round(swept[0] / full[0], 3),
        "sweep_processor_s": round(swept[1], 1),
        "full_processor_s": round(full[1], 1),
        "ratio_processor": round(swept[1] / full[1], 3),
        "bar": 0.6,
    }
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
