"""How far a quantization has come, so that one that was killed goes on.

A checkpoint is built in a hidden sibling of its final folder. After a layer whose tensors are all written, the hidden
states that enter the next one and the input statistics so far are saved there, at most every ``PAUSE_SECONDS`` (a fast
machine loses less by doing a few layers again than by saving them all) and never so often that saving costs more than
``SHARE`` of the time. Of several processes each saves its own states; any number of them goes on from all the files.
"""

import json
import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from clefquant.errors import InputError
from clefquant.quantize.dtypes import NAMES
from clefquant.quantize.model import read_tensor
from clefquant.quantize.ranks import of_first, ranks
from clefquant.quantize.statistics import InputStatistics
from clefquant.release.artefact import check_new_folder, write_json
from clefquant.release.headers import TensorInfo, read_header
from clefquant.release.locks import locked
from clefquant.release.shards import Entry, header_bytes

PAUSE_SECONDS = 10.0
SHARE = 0.1
_FOLDER, _JOB, _STATE = "unfinished", "job.json", "state.json"


def work_folder(target: Path) -> Path:
    """Where the checkpoint ``target`` is built."""
    return target.parent / f".{target.name}.quantizing"


@contextmanager
def alone(target: Path) -> Iterator[None]:
    """Keep other commands from building the same checkpoint; of several processes the first does. InputError in each
    of them when another command does already.
    """
    with ExitStack() as stack:
        refusal = None
        if ranks().first:
            try:
                stack.enter_context(locked(target, target.parent / f".{target.name}.quantizing.lock"))
            except InputError as error:
                refusal = str(error)
        if refusal := of_first(refusal):
            raise InputError(refusal)
        yield


def held_bytes(target: Path) -> int:
    """What an interrupted run's shards of ``target`` take of the disk: they are sparse until they are filled."""
    return sum(file.stat().st_blocks * 512 for file in work_folder(target).glob("*.safetensors"))


class Unfinished:
    """The journal of one job (any JSON value that decides every byte of the result) for the folder ``target``.

    ``layer``: the first that is not finished. ``statistics``: of every linear written so far; ``flush``: writes what
    is waiting; both belong to who fills the folder.
    """

    def __init__(self, target: Path, job: Any, *, restart: bool = False, pause_seconds: float = PAUSE_SECONDS) -> None:
        check_new_folder(target)
        self._target = target
        self._work = work_folder(target)
        self._kept = self._work / _FOLDER
        self._pause, self._spent = pause_seconds, 0.0
        self.flush: Callable[[], None] = lambda: None
        self._states: Mapping[str, TensorInfo] = {}
        self.layer = self._saved = 0
        self.statistics: dict[str, InputStatistics] = {}
        self._ranks = ranks()
        if not of_first(self._ranks.first and not restart and self._known(job)):
            if self._ranks.first:
                shutil.rmtree(self._work, ignore_errors=True)
                self._kept.mkdir(parents=True)
                write_json(self._kept / _JOB, job)
            of_first(None)
        else:
            self._resume()
        self._since = time.monotonic()

    @contextmanager
    def folder(self) -> Iterator[Path]:
        """Yield the folder that is being filled; it gets its final name when the block ends well, else it is kept."""
        yield self._work
        of_first(None)  # everyone is done
        if self._ranks.first:
            shutil.rmtree(self._kept)
            if self._target.exists():
                self._target.rmdir()
            os.replace(self._work, self._target)
        of_first(None)

    def state(self, batch: int) -> torch.Tensor:
        """Hidden states [B, L, H] of a batch that enter ``layer``."""
        return read_tensor(self._states[str(batch)])

    def finish(self, layer: int, states: Callable[[], Iterable[tuple[int, torch.Tensor]]]) -> None:
        """Save what enters the next layer, when it is time again."""
        started = time.monotonic()
        pause = max(self._pause, self._spent / SHARE if self._pause else 0)
        if not of_first(started - self._since >= pause):
            return
        self.flush()
        write_states(self._states_file(layer + 1, self._ranks.rank), states)
        of_first(None)  # everyone's states and tensors are in their files
        if self._ranks.first:
            statistics = {linear: asdict(value) for linear, value in self.statistics.items()}
            state = {"layer": layer + 1, "processes": self._ranks.size, "statistics": statistics}
            write_json(self._kept / _STATE, state)
            for older in self._kept.glob(f"states-{self._saved}-*"):
                older.unlink()
        of_first(None)
        self._saved = layer + 1
        self._since = time.monotonic()
        self._spent = self._since - started

    def _states_file(self, layer: int, rank: int) -> Path:
        return self._kept / f"states-{layer}-{rank}.safetensors"

    def _saved_states(self, state: Mapping[str, Any]) -> dict[str, TensorInfo]:
        """Every batch's, of whichever process wrote it."""
        files = [self._states_file(state["layer"], rank) for rank in range(state["processes"])]
        return {batch: info for file in files for batch, info in read_header(file).items()}

    def _known(self, job: Any) -> bool:
        """Whether the sibling folder holds a state of this very job."""
        try:
            same = json.loads((self._kept / _JOB).read_text(encoding="utf-8")) == json.loads(json.dumps(job))
            self._saved_states(json.loads((self._kept / _STATE).read_text(encoding="utf-8")))
        except (OSError, ValueError, KeyError, InputError):
            return False
        return bool(same)

    def _resume(self) -> None:
        state: Mapping[str, Any] = json.loads((self._kept / _STATE).read_text(encoding="utf-8"))
        self.layer = self._saved = state["layer"]
        self._states = self._saved_states(state)
        self.statistics = {name: InputStatistics(**value) for name, value in state["statistics"].items()}


def write_states(path: Path, states: Callable[[], Iterable[tuple[int, torch.Tensor]]]) -> None:
    """Write batches' tensors, named by their number, into one safetensors file, one in memory at a time."""
    entries = {str(n): Entry(NAMES[t.dtype], tuple(t.shape), t.nbytes) for n, t in states()}
    with path.open("wb", buffering=0) as file:
        file.write(header_bytes(entries))
        for _, tensor in states():
            file.write(tensor.cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
