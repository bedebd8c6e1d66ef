"""Worker processes that cannot be started or end by themselves: words, and nothing left running."""

import errno
import multiprocessing
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import pytest

from clefquant.calibration import workers
from clefquant.calibration.draft import Draft
from clefquant.calibration.encoding import Encoder
from clefquant.calibration.prepare import Limits
from clefquant.calibration.workers import Workers
from clefquant.errors import PrerequisiteError

from .conftest import record

LIMITS = Limits("s", 4096)


def drafts(count: int) -> Iterator[Draft]:
    return (Draft(f"line {number}", str(number), record(f"text {number}")) for number in range(count))


def test_a_process_that_cannot_be_started_leaves_none_behind(encoder: Encoder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "CHUNK_DRAFTS", 1)
    spawn, started = ProcessPoolExecutor._spawn_process, []  # type: ignore[attr-defined]

    def second_fails(pool: Any) -> None:
        if started:
            raise OSError(errno.EAGAIN, "Resource temporarily unavailable")
        started.append(spawn(pool))

    monkeypatch.setattr(ProcessPoolExecutor, "_spawn_process", second_fails)
    with pytest.raises(PrerequisiteError, match=r"cannot be started: .*--workers 1"), Workers(encoder, 2) as pool:
        list(pool.prepared(drafts(3), LIMITS))
    assert started
    assert not multiprocessing.active_children()


def test_a_pool_that_breaks_while_more_is_submitted(encoder: Encoder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "CHUNK_DRAFTS", 1)

    def break_pool(pool: Workers) -> Iterator[Draft]:
        yield from drafts(1)
        assert pool._pool is not None
        for process in list(pool._pool._processes.values()):
            process.kill()
        while multiprocessing.active_children():
            pass
        pool._pool._executor_manager_thread.join()  # type: ignore[attr-defined]  # it has seen the end
        yield from drafts(1)

    with pytest.raises(PrerequisiteError, match="ended by itself"), Workers(encoder, 2) as pool:
        list(pool.prepared(break_pool(pool), LIMITS))
