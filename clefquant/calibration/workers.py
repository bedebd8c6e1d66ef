"""Preparing drafts in order, in this process or in several: the outcomes come back in the order of the drafts."""

import multiprocessing
import os
import signal
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from itertools import islice
from pathlib import Path

from clefquant.calibration.draft import Draft
from clefquant.calibration.encoding import Encoder, load_encoder
from clefquant.calibration.prepare import Limits, Outcome, prepare
from clefquant.errors import PrerequisiteError

CHUNK_DRAFTS = 64
CHUNKS_PER_WORKER = 3
MAX_DEFAULT_WORKERS = 8
#: Drafts prepared in this process before others are started for the rest.
SERIAL_DRAFTS = 20_000
#: Not fork, which would copy the tokenizer's threads half-way. A fork server imports the heavy packages once for all.
_START_METHOD = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"
_PRELOAD = ("torch", "transformers.models.auto.tokenization_auto", "clefquant.calibration.prepare")
_encoder: Encoder | None = None


class Workers:
    """``count`` processes (1: no pool), or as many as are worth it when None: starting them takes seconds.

    A context manager. Drafts in flight are bounded, so a slow disk fills no memory.
    """

    def __init__(self, encoder: Encoder, count: int | None) -> None:
        self.encoder = encoder
        self.count = count or min(MAX_DEFAULT_WORKERS, os.cpu_count() or 1)
        self._serial = SERIAL_DRAFTS if count is None else 0
        self._pool: ProcessPoolExecutor | None = None

    def __enter__(self) -> "Workers":
        return self

    def __exit__(self, *exc: object) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)

    def prepared(self, drafts: Iterator[Draft], limits: Limits) -> Iterator[Outcome]:
        """One outcome per draft, in order. More drafts are taken than outcomes are asked for."""
        while self.count == 1 or self._serial:
            draft = next(drafts, None)
            if draft is None:
                return
            self._serial = max(self._serial - 1, 0)
            yield prepare(draft, limits, self.encoder)
        pool = self._started()
        waiting: deque[Future[list[Outcome]]] = deque()
        try:
            while True:
                while len(waiting) < CHUNKS_PER_WORKER * self.count and (chunk := list(islice(drafts, CHUNK_DRAFTS))):
                    waiting.append(_submit(pool, chunk, limits))
                if not waiting:
                    return
                yield from waiting.popleft().result()
        except BrokenProcessPool as error:
            raise PrerequisiteError(
                "a worker process ended by itself (out of memory, or a script without "
                "`if __name__ == '__main__':`). Try again with one worker (--workers 1)."
            ) from error

    def _started(self) -> ProcessPoolExecutor:
        if self._pool is None:
            context = multiprocessing.get_context(_START_METHOD)
            if _START_METHOD == "forkserver":
                context.set_forkserver_preload(list(_PRELOAD))
            self._pool = ProcessPoolExecutor(self.count, context, _start, (self.encoder.folder,))
        return self._pool


def _submit(pool: ProcessPoolExecutor, chunk: list[Draft], limits: Limits) -> Future[list[Outcome]]:
    try:
        return pool.submit(_prepare_chunk, chunk, limits)
    except OSError as error:  # processes are started here, as they are needed
        raise PrerequisiteError(
            f"a worker process cannot be started: {error}. Try again with one worker (--workers 1)."
        ) from error


def _start(folder: Path) -> None:
    global _encoder
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends the pool
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    _encoder = load_encoder(folder)


def _prepare_chunk(drafts: list[Draft], limits: Limits) -> list[Outcome]:
    assert _encoder is not None
    return [prepare(draft, limits, _encoder) for draft in drafts]
