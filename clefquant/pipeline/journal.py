"""The run's memory: which stage was done from which inputs, how long it took, how much memory it needed.

A stage is skipped when its key (a hash of its parameters and of what it reads) is the one of its last finished run
and its output is still there. A changed key discards the output of exactly the stages it reaches.
"""

import resource
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from clefquant.release.artefact import provenance, read_json, sha256_json, write_json

KIND = "run"
SCHEMA_VERSION = 1


class Journal:
    """Reads and writes ``run.json`` of the run folder ``out``."""

    def __init__(self, out: Path, forced: frozenset[str], say: Callable[[str], None]) -> None:
        self.out = out
        self._forced, self._say = forced, say
        path = out / "run.json"
        self._stages: dict[str, Any] = read_json(path, KIND, SCHEMA_VERSION)["stages"] if path.exists() else {}

    def stage(
        self, name: str, inputs: dict[str, Any], work: Callable[[Path], dict[str, Any]], *, keeps_partial: bool = False
    ) -> dict[str, Any]:
        """Do ``work`` into ``out/name`` unless it was done from the same ``inputs``; its result (JSON) is kept.

        ``keeps_partial``: the stage's own folder holds resumable work that survives an interruption (not a changed
        input).
        """
        target, key = self.out / name, sha256_json(inputs)
        known = self._stages.get(name)
        if known is not None and known["key"] == key and known["done"] and target.exists() and name not in self._forced:
            self._say(f"[dim]{name}: done before from the same inputs, kept[/dim]")
            result: dict[str, Any] = known["result"]
            return result
        same_start = known is not None and known["key"] == key and not known["done"]
        if target.exists() and not (keeps_partial and same_start):
            shutil.rmtree(target)
        self._stages[name] = {"key": key, "done": False}
        self._write()
        self._say(f"[bold]{name}[/bold]")
        start = time.monotonic()
        outcome = work(target)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
        self._stages[name] = {
            "key": key,
            "done": True,
            "seconds": round(time.monotonic() - start, 1),
            "peak_memory_bytes": peak,
            "result": outcome,
        }
        self._write()
        return outcome

    def seconds(self) -> dict[str, float]:
        """Duration of each finished stage."""
        return {name: stage["seconds"] for name, stage in self._stages.items() if stage["done"]}

    def _write(self) -> None:
        self.out.mkdir(parents=True, exist_ok=True)
        write_json(self.out / "run.json", {**provenance(KIND, SCHEMA_VERSION, {}), "stages": self._stages})
