"""What is known about one HTTP request while it is answered: id, stage times, what was cut, how it ended."""

import re
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

STAGES = ("queue", "decode", "encode", "engine", "format")
_GIVEN_ID = re.compile(r"[A-Za-z0-9_.:-]{1,128}")


@dataclass
class Trace:
    """Times in seconds. The records of a batch share one trace, which keeps the slowest record's time of a stage."""

    id: str
    started: float = field(default_factory=time.perf_counter)
    stages: dict[str, float] = field(default_factory=dict)
    truncated: int = 0  # records whose state was cut

    @classmethod
    def of(cls, given_id: str) -> "Trace":
        """A trace under the client's own request id where that is usable, else under a new one."""
        return cls(given_id if _GIVEN_ID.fullmatch(given_id) else uuid.uuid4().hex)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Measure a stage, also one that fails."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.add(name, time.perf_counter() - start)

    def add(self, name: str, seconds: float) -> None:
        self.stages[name] = max(self.stages.get(name, 0.0), seconds)

    @property
    def elapsed(self) -> float:
        return time.perf_counter() - self.started

    def headers(self) -> list[tuple[bytes, bytes]]:
        """Request id, Server-Timing in milliseconds, and the number of records whose state was cut, if any."""
        times = {**self.stages, "total": self.elapsed}
        timing = ", ".join(f"{name};dur={seconds * 1000:.2f}" for name, seconds in times.items())
        headers = [(b"x-request-id", self.id.encode()), (b"server-timing", timing.encode())]
        if self.truncated:
            headers.append((b"x-clef-truncated", str(self.truncated).encode()))
        return headers
