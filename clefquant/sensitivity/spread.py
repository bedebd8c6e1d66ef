"""Probing on several GPUs or machines with Ray: the same walk in every worker, units handed out as workers become free.

A worker goes down the layers once, so units are handed out in the order of the layers. Results are those of the
serial run: same batches, same threads, same kind of device, which each worker checks.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

from clefquant.errors import InputError
from clefquant.quantize.scales import Scales
from clefquant.release.load import LoadedRelease, load_release
from clefquant.release.release import open_release
from clefquant.release.states import States
from clefquant.release.units import Unit
from clefquant.sensitivity.probe import Keys, Work
from clefquant.sensitivity.rounding import NEAREST, Quantizer, Rounding
from clefquant.sensitivity.shards import Shard
from clefquant.sensitivity.store import Probe
from clefquant.sensitivity.walk import Walk, by_unit
from clefquant.verify.cluster import Packed, Task, connect, hand_out, packed, unpacked


@dataclass(frozen=True)
class Job:
    """What every worker is given; the release's own classes do not travel, so records go as lines with their media."""

    reference: str
    keys: Keys
    device: str
    dtype: str
    threads: int
    cache_bytes: int
    input_amax: Mapping[str, float]
    algorithm: str
    scales: Scales
    calibration: Packed
    shards: tuple[tuple[int, Packed], ...]

    @classmethod
    def of(
        cls, loaded: LoadedRelease, shards: Sequence[Shard], input_amax: Mapping[str, float], cache_bytes: int,
        rounding: Rounding = NEAREST,
    ) -> "Job":  # fmt: skip
        """The job of a loaded release."""
        dtype = str(next(iter(loaded.model.parameters())).dtype).removeprefix("torch.")
        lines = tuple((shard.batch_tokens, packed(shard.records)) for shard in shards)
        return cls(
            str(loaded.release.path), Keys.of(loaded), loaded.device.type, dtype, torch.get_num_threads(), cache_bytes,
            dict(input_amax), rounding.algorithm, rounding.scales, packed(rounding.records), lines,
        )  # fmt: skip


class Worker:
    """One process with the model loaded."""

    def __init__(self, job: Job) -> None:
        """Load the model and prepare the batches. InputError when this process would compute other numbers."""
        torch.set_num_threads(job.threads)
        release = open_release(job.reference)
        loaded = load_release(release, device=torch.device(job.device), dtype=getattr(torch, job.dtype))
        if Keys.of(loaded) != job.keys:
            raise InputError(
                f"a Ray worker has another model, device or package version than this process ({job.reference} on "
                f"{loaded.device}); results would not be comparable. Give every machine the same ones."
            )
        shards = [Shard(unpacked(lines, loaded.code), batch_tokens) for batch_tokens, lines in job.shards]
        rounding = Rounding(job.algorithm, job.scales, tuple(unpacked(job.calibration, loaded.code)))
        self._quantizer = Quantizer(loaded, job.input_amax, rounding)
        self._walk = Walk(loaded, shards, States(job.cache_bytes))
        for number in range(len(shards)):
            self._walk.enter(number)

    def probe(self, unit: Unit, items: Sequence[Work]) -> list[Probe]:
        """Probe one unit; units must come in the order of the layers."""
        return list(self._walk.probe(unit, items, self._quantizer))


@dataclass
class RayRunner:
    """A runner of :func:`clefquant.sensitivity.sweep.sweep`. ``address``: ``auto`` (a running cluster, else one on
    this machine) or that of a cluster. ``workers``: how many; by default one per GPU, or per ``threads`` cores
    without GPUs."""

    loaded: LoadedRelease
    address: str
    cache_bytes: int
    rounding: Rounding = NEAREST
    workers: int | None = None
    worker: type[Worker] = Worker

    def __call__(
        self, shards: Sequence[Shard], work: Sequence[Work], input_amax: Mapping[str, float]
    ) -> Iterator[Probe]:
        """Do ``work`` on the cluster; probes are yielded in the order they are finished."""
        connect(self.address)  # before anything is packed
        job = Job.of(self.loaded, shards, input_amax, self.cache_bytes, self.rounding)
        tasks = [Task(unit.name, (unit, items)) for unit, items in by_unit(work)]
        gpu = self.loaded.device.type == "cuda"
        for _, found in hand_out(self.address, self.worker, job, "probe", tasks, gpu=gpu, workers=self.workers):
            yield from found
