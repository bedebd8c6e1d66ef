"""What answers the chunks of a release: the model in this process, or Ray workers that each load it.

Results do not depend on which: a chunk's batches are the same, and a worker refuses to start with another release,
kind of device or package version than this process.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from clefquant.errors import InputError
from clefquant.release.artefact import package_versions, sha256_file
from clefquant.release.load import LoadedRelease, load_release
from clefquant.release.release import TABLES_FILE, Release, open_release
from clefquant.verify.answers import Answer
from clefquant.verify.chunks import Chunk, Runner, answer_records, in_this_process
from clefquant.verify.cluster import Packed, Task, hand_out, packed, unpacked
from clefquant.verify.simulated import load_simulated


def release_runner(release: Release, device: torch.device, ray: str | None, *, simulate: bool) -> Runner:
    """A runner for ``release`` through its own loader, or as its server would run it where ``simulate``.

    ``ray``: address of a cluster, ``auto``, or None for this process.
    """
    if ray is None:
        return in_this_process(lambda: _loaded(release, device, simulate))
    job = Job(str(release.path), simulate, device.type, torch.get_num_threads(), _identity(release, device))

    def run(chunks: Sequence[Chunk], advance: Callable[[int], None]) -> Iterator[tuple[Chunk, list[Answer]]]:
        tasks = [Task(chunk.path.name, (packed(chunk.records), chunk.batch_tokens)) for chunk in chunks]
        for index, answers in hand_out(ray, Worker, job, "answer", tasks, gpu=device.type == "cuda"):
            advance(chunks[index].tokens)
            yield chunks[index], answers

    return run


@dataclass(frozen=True)
class Job:
    """What every worker is given. ``identity``: what must be the same in all processes."""

    path: str
    simulate: bool
    device: str
    threads: int
    identity: dict[str, Any]


class Worker:
    """One process with the model loaded."""

    def __init__(self, job: Job) -> None:
        """Load the model. InputError when this process would compute other numbers."""
        torch.set_num_threads(job.threads)
        release, device = open_release(job.path), torch.device(job.device)
        if (found := _identity(release, device)) != job.identity:
            differing = [name for name in found if found[name] != job.identity.get(name)]
            raise InputError(
                f"a Ray worker has another {' and '.join(differing)} than this process ({job.path} on {job.device}); "
                "results would not be comparable. Give every machine the same ones."
            )
        self._kept = ExitStack()  # until the process ends
        self._loaded = self._kept.enter_context(_loaded(release, device, job.simulate))

    def answer(self, lines: Packed, batch_tokens: int) -> list[Answer]:
        """Answers to every question of the records."""
        return answer_records(self._loaded, unpacked(lines, self._loaded.code), batch_tokens, lambda _: None)


def tables_hash(release: Release) -> str | None:
    """Hash of int8 tables, which are no backbone tensors and so not in the release's fingerprint."""
    path = release.path / TABLES_FILE
    return sha256_file(path) if path.is_file() else None


def chip(device: torch.device) -> str:
    """A GPU's name, else the kind of device."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def _identity(release: Release, device: torch.device) -> dict[str, Any]:
    return {
        "release": [release.fingerprint, tables_hash(release)],
        "device": chip(device),
        "package version": package_versions(),
    }


def _loaded(release: Release, device: torch.device, simulate: bool) -> AbstractContextManager[LoadedRelease]:
    return load_simulated(release, device=device) if simulate else _plain(release, device)


@contextmanager
def _plain(release: Release, device: torch.device) -> Iterator[LoadedRelease]:
    yield load_release(release, device=device)
