"""How much the server takes on: some requests worked on at once, some waiting, the others turned away at once."""

import asyncio
import math
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

from clef_vllm.server.faults import Fault
from clef_vllm.server.trace import Trace

LONGEST_RETRY_S = 60


class Admission:
    """`concurrent` records in the engine at once, `queue` more HTTP requests accepted while those are all taken.

    A batch is one request that waits with all its records, so it can be longer than the queue.
    """

    def __init__(self, concurrent: int, queue: int) -> None:
        self.concurrent, self.queue = concurrent, queue
        self.accepted = 0  # HTTP requests
        self.waiting = 0  # records
        self.working = 0  # records
        self._slots = asyncio.Semaphore(concurrent)
        self._seconds = 1.0  # how long a record takes, smoothed

    @contextmanager
    def accept(self) -> Iterator[None]:
        """Take on one HTTP request, before its body is read. Raises Fault 503 with Retry-After when full."""
        if self.accepted >= self.concurrent + self.queue:
            message = f"at capacity: {self.working} records in work, {self.waiting} waiting; try again later"
            raise Fault(503, "overloaded", message, retry_after=self.retry_after())
        self.accepted += 1
        try:
            yield
        finally:
            self.accepted -= 1

    @asynccontextmanager
    async def slot(self, trace: Trace) -> AsyncIterator[None]:
        """Wait for the right to work on one record."""
        self.waiting += 1
        try:
            with trace.stage("queue"):
                await self._slots.acquire()
        finally:
            self.waiting -= 1
        self.working += 1
        start = time.perf_counter()
        try:
            yield
        finally:
            self.working -= 1
            self._slots.release()
            self._seconds += 0.1 * (time.perf_counter() - start - self._seconds)

    def retry_after(self) -> int:
        """Seconds until what is waiting now should be done."""
        return min(LONGEST_RETRY_S, max(1, math.ceil(self._seconds * (self.waiting / self.concurrent + 1))))
