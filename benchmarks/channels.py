"""How far the largest input channel of each linear stands out, which is what AWQ can use.

    python benchmarks/channels.py --calibration SET [--model nano] [--records 32]

One JSON line per kind of linear: the mean of |x| in the largest channel over that in the median channel, layer by
layer; null where half of the channels are never anything but zero.
"""

import argparse
import json
from pathlib import Path

import torch

from clefquant.calibration.stored import open_set
from clefquant.quantize.layerwise import Layerwise
from clefquant.quantize.watching import watching
from clefquant.release.code import release_code
from clefquant.release.release import open_release


class MeanSize:
    """Mean of |x| per channel."""

    def __init__(self) -> None:
        self.total, self.tokens = torch.zeros(()), 0

    def add(self, x: torch.Tensor) -> None:
        self.total, self.tokens = self.total + x.abs().double().sum(0), self.tokens + len(x)

    def ratio(self) -> float | None:
        mean = self.total / self.tokens
        return round(float(mean.max() / mean.median()), 1) if mean.median() > 0 else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calibration", type=Path, required=True)
    parser.add_argument("--model", default="nano")
    parser.add_argument("--records", type=int, default=32)
    options = parser.parse_args()
    release = open_release(options.model)
    records = list(open_set(options.calibration, release.path, release_code(release.path)))
    few = records[:: max(1, len(records) // options.records)][: options.records]
    found: dict[str, list[float | None]] = {}
    for step in Layerwise(release, [record.encoded for record in few]).steps():
        groups = [group for unit in release.units if unit.layer == step.number for group in unit.groups]
        sizes = [MeanSize() for _ in groups]
        with watching(step, groups, sizes):
            step.run()
        for group, size in zip(groups, sizes, strict=True):
            found.setdefault(group[0].name.rsplit(".", 1)[1], []).append(size.ratio())
    for name, ratios in found.items():
        print(json.dumps({"linear": name, "largest_over_median": ratios}))


if __name__ == "__main__":
    main()
