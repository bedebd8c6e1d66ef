"""Probing on several GPUs or machines with Ray: the same walk in every worker, units handed out as workers become free.

A worker goes down the layers once, so units are handed out in the order of the layers. A worker that dies has its
unit done again by a fresh one. Results are those of the serial run: same batches, same threads, same kind of device,
which each worker checks.
"""

import json
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from clefquant.calibration.stored import to_line, to_record
from clefquant.errors import InputError, PrerequisiteError
from clefquant.release.load import LoadedRelease, load_release
from clefquant.release.release import open_release
from clefquant.release.states import States
from clefquant.release.units import Unit
from clefquant.sensitivity.probe import Keys, Work
from clefquant.sensitivity.shards import Shard
from clefquant.sensitivity.store import Probe
from clefquant.sensitivity.walk import Walk, by_unit

#: Deaths of workers after which a sweep stops: something kills them that a restart does not mend.
MAX_DEATHS = 8


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
    shards: tuple[tuple[int, tuple[tuple[str, Any], ...]], ...]

    @classmethod
    def of(
        cls, loaded: LoadedRelease, shards: Sequence[Shard], input_amax: Mapping[str, float], cache_bytes: int
    ) -> "Job":
        """The job of a loaded release."""
        dtype = str(next(iter(loaded.model.parameters())).dtype).removeprefix("torch.")
        lines = tuple((s.batch_tokens, tuple((to_line(r), r.encoded.media) for r in s.records)) for s in shards)
        return cls(
            str(loaded.release.path), Keys.of(loaded), loaded.device.type, dtype, torch.get_num_threads(), cache_bytes,
            dict(input_amax), lines,
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
        shards = [rebuilt(loaded, batch_tokens, lines) for batch_tokens, lines in job.shards]
        self._job = job
        self._walk = Walk(loaded, shards, States(job.cache_bytes))
        for number in range(len(shards)):
            self._walk.enter(number)

    def probe(self, unit: Unit, items: Sequence[Work]) -> list[Probe]:
        """Probe one unit; units must come in the order of the layers."""
        return list(self._walk.probe(unit, items, self._job.input_amax))


@dataclass
class RayRunner:
    """A runner of :func:`clefquant.sensitivity.sweep.sweep`. ``address``: ``auto`` (a running cluster, else one on
    this machine) or that of a cluster. ``workers``: how many; by default one per GPU, or per ``threads`` cores
    without GPUs."""

    loaded: LoadedRelease
    address: str
    cache_bytes: int
    workers: int | None = None
    worker: type[Worker] = Worker

    def __call__(
        self, shards: Sequence[Shard], work: Sequence[Work], input_amax: Mapping[str, float]
    ) -> Iterator[Probe]:
        """Do ``work`` on the cluster; probes are yielded in the order they are finished."""
        ray = connect(self.address)
        job = ray.put(Job.of(self.loaded, shards, input_amax, self.cache_bytes))
        needs = {"num_gpus": 1} if self.loaded.device.type == "cuda" else {"num_cpus": torch.get_num_threads()}
        remote = ray.remote(**needs)(self.worker)
        waiting = deque(by_unit(work))
        running: dict[Any, tuple[Any, tuple[Unit, list[Work]]]] = {}
        for _ in range(min(self.workers or _room(ray, needs), len(waiting))):
            _hand_out(remote.remote(job), waiting.popleft(), running)
        deaths = 0
        try:
            while running:
                (done,), _ = ray.wait(list(running), num_returns=1)
                actor, task = running.pop(done)
                try:
                    found = ray.get(done)
                except ray.exceptions.RayActorError as error:
                    if error.actor_init_failed:  # another worker would not start either
                        raise PrerequisiteError(f"a Ray worker could not start: {_last_line(error)}") from error
                    deaths += 1
                    if deaths > MAX_DEATHS:
                        raise PrerequisiteError(
                            f"{deaths} Ray workers died (the last at {task[0].name}); usually memory ran out. Use "
                            "fewer workers or smaller --batch-tokens; finished probes are kept."
                        ) from error
                    _hand_out(remote.remote(job), task, running)
                    continue
                except ray.exceptions.RayTaskError as error:
                    raise error.cause if isinstance(error.cause, Exception) else error from error
                if waiting:
                    _hand_out(actor, waiting.popleft(), running)
                else:
                    ray.kill(actor)
                yield from found
        finally:
            for actor, _ in running.values():
                ray.kill(actor)


def connect(address: str) -> Any:
    """The ``ray`` module, connected. PrerequisiteError when it is not installed or the cluster cannot be reached."""
    try:
        import ray
    except ImportError as error:
        raise PrerequisiteError("--ray needs Ray, which is not installed: uv pip install ray") from error
    if ray.is_initialized():
        return ray
    quiet = {"log_to_driver": False, "logging_level": "ERROR"}
    try:
        ray.init(address=address, **quiet)
    except (ConnectionError, ValueError, OSError, RuntimeError) as error:
        if address != "auto":
            raise PrerequisiteError(
                f"no Ray cluster answers at {address}: {error}. Start one with `ray start`."
            ) from error
        ray.init(include_dashboard=False, **quiet)
    return ray


def _room(ray: Any, needs: Mapping[str, float]) -> int:
    (resource, amount), *_ = needs.items()
    have = ray.cluster_resources().get({"num_gpus": "GPU", "num_cpus": "CPU"}[resource], 0)
    if have < amount:
        raise PrerequisiteError(
            f"the Ray cluster has {have:g} {resource.removeprefix('num_')}, a worker needs {amount}."
        )
    return int(have // amount)


def _hand_out(
    actor: Any, task: tuple[Unit, list[Work]], running: dict[Any, tuple[Any, tuple[Unit, list[Work]]]]
) -> None:
    running[actor.probe.remote(*task)] = (actor, task)


def _last_line(error: Exception) -> str:
    """What the worker said; the lines above are its traceback."""
    return next((line for line in reversed(str(error).splitlines()) if line.strip()), type(error).__name__).strip()


def rebuilt(loaded: LoadedRelease, batch_tokens: int, lines: Sequence[tuple[str, Any]]) -> Shard:
    """A shard from what a job carries of it."""
    records = []
    for line, media in lines:
        record = to_record(json.loads(line), loaded.code)
        records.append(replace(record, encoded=replace(record.encoded, media=media)))
    return Shard(tuple(records), batch_tokens)
