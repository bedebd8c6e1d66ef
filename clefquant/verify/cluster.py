"""Handing tasks out to Ray workers that each hold a model, in order, as they become free.

A worker that dies has its task done again by a fresh one. Records travel as lines of text with their media, because
the release's own classes exist in the process that loaded them alone.
"""

import json
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from types import ModuleType
from typing import Any, NamedTuple

import torch

from clefquant.calibration.stored import StoredRecord, to_line, to_record
from clefquant.errors import PrerequisiteError

#: Deaths of workers after which a run stops: something kills them that a restart does not mend.
MAX_DEATHS = 8

Packed = tuple[tuple[str, Any], ...]
"""Records as lines, each with its opened media."""


class Task(NamedTuple):
    """One call of a worker's method. ``name``: for messages."""

    name: str
    arguments: tuple[Any, ...]


def hand_out(
    address: str, worker: type, job: Any, method: str, tasks: Sequence[Task], *, gpu: bool, workers: int | None = None
) -> Iterator[tuple[int, Any]]:
    """Yield (index of the task, what ``method`` of a ``worker(job)`` returned for it), in the order they are finished.

    ``address``: ``auto`` (a running cluster, else one on this machine) or that of a cluster. ``workers``: how many; by
    default one per GPU where ``gpu``, else one per as many cores as torch uses here. What a task raises is raised.
    PrerequisiteError when Ray is missing, a worker cannot start, or workers keep dying.
    """
    ray = connect(address)
    shared = ray.put(job)
    needs = {"num_gpus": 1} if gpu else {"num_cpus": torch.get_num_threads()}
    remote = ray.remote(**needs)(worker)
    waiting = deque(range(len(tasks)))
    running: dict[Any, tuple[Any, int]] = {}

    def give(actor: Any, index: int) -> None:
        running[getattr(actor, method).remote(*tasks[index].arguments)] = (actor, index)

    for _ in range(min(workers or _room(ray, needs), len(tasks))):
        give(remote.remote(shared), waiting.popleft())
    deaths = 0
    try:
        while running:
            (done,), _ = ray.wait(list(running), num_returns=1)
            actor, index = running.pop(done)
            try:
                found = ray.get(done)
            except ray.exceptions.RayActorError as error:
                if error.actor_init_failed:  # another worker would not start either
                    raise PrerequisiteError(f"a Ray worker could not start: {_last_line(error)}") from error
                deaths += 1
                if deaths > MAX_DEATHS:
                    raise PrerequisiteError(
                        f"{deaths} Ray workers died (the last at {tasks[index].name}); usually memory ran out. Use "
                        "fewer workers or smaller --batch-tokens; what is finished is kept."
                    ) from error
                give(remote.remote(shared), index)
                continue
            except ray.exceptions.RayTaskError as error:
                raise error.cause if isinstance(error.cause, Exception) else error from error
            if waiting:
                give(actor, waiting.popleft())
            else:
                ray.kill(actor)
            yield index, found
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


def packed(records: Sequence[StoredRecord]) -> Packed:
    """Records as they travel."""
    return tuple((to_line(record), record.encoded.media) for record in records)


def unpacked(lines: Packed, code: ModuleType) -> tuple[StoredRecord, ...]:
    """The records again, in the classes of a release's ``code``."""
    records = ((to_record(json.loads(line), code), media) for line, media in lines)
    return tuple(replace(one, encoded=replace(one.encoded, media=media)) for one, media in records)


def _room(ray: Any, needs: Mapping[str, float]) -> int:
    (resource, amount), *_ = needs.items()
    have = ray.cluster_resources().get({"num_gpus": "GPU", "num_cpus": "CPU"}[resource], 0)
    if have < amount:
        raise PrerequisiteError(
            f"the Ray cluster has {have:g} {resource.removeprefix('num_')}, a worker needs {amount}."
        )
    return int(have // amount)


def _last_line(error: Exception) -> str:
    """What the worker said; the lines above are its traceback."""
    return next((line for line in reversed(str(error).splitlines()) if line.strip()), type(error).__name__).strip()
