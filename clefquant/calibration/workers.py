"""Preparing drafts in order, in this process or in several: the outcomes come back in the order of the drafts."""

import multiprocessing
import os
import signal
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from itertools import islice
from pathlib import Path

from clefquant.calibration.draft import Draft
from clefquant.calibration.encoding import Encoder, load_encoder
from clefquant.calibration.prepare import Limits, Outcome, prepare

CHUNK_DRAFTS = 64
CHUNKS_PER_WORKER = 3
#: Not fork, which would copy the tokenizer's threads half-way. A fork server imports the heavy packages once for all.
_START_METHOD = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"
_PRELOAD = ("torch", "transformers.models.auto.tokenization_auto", "clefquant.calibration.prepare")
_encoder: Encoder | None = None


class Workers:
    """``count`` 1: no pool. A context manager; drafts in flight are bounded, so a slow disk fills no memory."""

    def __init__(self, encoder: Encoder, count: int) -> None:
        self.encoder = encoder
        self.count = count
        self._pool: ProcessPoolExecutor | None = None

    def __enter__(self) -> "Workers":
        if self.count > 1:
            context = multiprocessing.get_context(_START_METHOD)
            if _START_METHOD == "forkserver":
                context.set_forkserver_preload(list(_PRELOAD))
            self._pool = ProcessPoolExecutor(self.count, context, _start, (self.encoder.folder,))
        return self

    def __exit__(self, *exc: object) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)

    def prepared(self, drafts: Iterator[Draft], limits: Limits) -> Iterator[Outcome]:
        """One outcome per draft, in order. More drafts are taken than outcomes are asked for."""
        if self._pool is None:
            for draft in drafts:
                yield prepare(draft, limits, self.encoder)
            return
        waiting: deque[Future[list[Outcome]]] = deque()
        while True:
            while len(waiting) < CHUNKS_PER_WORKER * self.count and (chunk := list(islice(drafts, CHUNK_DRAFTS))):
                waiting.append(self._pool.submit(_prepare_chunk, chunk, limits))
            if not waiting:
                return
            yield from waiting.popleft().result()


def default_workers(asked: int | None) -> int:
    """Processes for so many records: one for small sets, where starting more costs more than it gives."""
    return 1 if asked is not None and asked < 20_000 else min(8, os.cpu_count() or 1)


def _start(folder: Path) -> None:
    global _encoder
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends the pool
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    _encoder = load_encoder(folder)


def _prepare_chunk(drafts: list[Draft], limits: Limits) -> list[Outcome]:
    assert _encoder is not None
    return [prepare(draft, limits, _encoder) for draft in drafts]
