"""The run's memory: which stage was done from which inputs, how long it took, how much memory it needed.

A stage is skipped when its key (a hash of its parameters and of what it reads) is the one of its last finished run
and its output is still there. A changed key discards the output of exactly the stages it reaches.
"""

import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from clefquant import __version__
from clefquant.pipeline.memory import forget_peak, peak_bytes
from clefquant.release.artefact import package_versions, provenance, read_json, sha256_json, write_json

KIND = "run"
SCHEMA_VERSION = 1


class Watch(Protocol):
    """Who is told how the run goes on."""

    def kept(self, stage: str) -> None:
        """The stage was done before from the same inputs."""

    def started(self, stage: str, why: str) -> None:
        """The stage begins; ``why`` it is not kept."""

    def finished(self, stage: str, seconds: float) -> None:
        """The stage is done."""


class Unwatched:
    """Tells nobody."""

    def kept(self, stage: str) -> None:
        """Nothing."""

    def started(self, stage: str, why: str) -> None:
        """Nothing."""

    def finished(self, stage: str, seconds: float) -> None:
        """Nothing."""


class Journal:
    """Reads and writes ``run.json`` of the run folder ``out``. ``parents``: sha256 of what the run was made from."""

    def __init__(self, out: Path, forced: frozenset[str] = frozenset(), **parents: str) -> None:
        self.out = out
        self.watch: Watch = Unwatched()
        self._forced, self._parents = forced, parents
        path = out / "run.json"
        self._stages: dict[str, Any] = read_json(path, KIND, SCHEMA_VERSION)["stages"] if path.exists() else {}

    def stage(
        self, name: str, inputs: dict[str, Any], work: Callable[[Path], dict[str, Any]], *, keeps_partial: bool = False
    ) -> dict[str, Any]:
        """Do ``work`` into ``out/name`` unless it was done from the same ``inputs``; its result (JSON) is kept.

        ``keeps_partial``: the stage's own folder holds resumable work that survives an interruption (not a changed
        input, nor a stage that is forced, which loses its hidden unfinished folders too).
        """
        target = self.out / name
        hashes = {field: sha256_json(value) for field, value in inputs.items()}
        known = self._stages.get(name) or {}
        why = self._why(name, known, hashes, target)
        if why is None:
            self.watch.kept(name)
            result: dict[str, Any] = known["result"]
            return result
        same_start = known.get("inputs") == hashes and not known["done"]
        if target.exists() and (not (keeps_partial and same_start) or name in self._forced):
            self._stages.pop(name, None)
            self._write()  # first: half a folder must not be taken for a done one, nor for the start of this one
            shutil.rmtree(target)
        for half_done in self.out.glob(f".{name}.*") if name in self._forced else ():  # what the stage would go on with
            shutil.rmtree(half_done) if half_done.is_dir() else half_done.unlink()
        self._stages[name] = {"inputs": hashes, "done": False}
        self._write()
        self.watch.started(name, why)
        forget_peak()
        start = time.monotonic()
        outcome = work(target)
        seconds = round(time.monotonic() - start, 1)
        versions = {"clefquant": __version__, **package_versions()}
        self._stages[name] |= {"done": True, "seconds": seconds, **peak_bytes(), "versions": versions}
        self._stages[name]["result"] = outcome
        self._write()
        self.watch.finished(name, seconds)
        return outcome

    def seconds(self) -> dict[str, float]:
        """Duration of each finished stage."""
        return {name: stage["seconds"] for name, stage in self._stages.items() if stage["done"]}

    def _why(self, name: str, known: Mapping[str, Any], hashes: Mapping[str, str], target: Path) -> str | None:
        """Why the stage is to be done; None when it need not."""
        if not known:
            return "not done yet"
        before = known.get("inputs", {})
        if changed := [field for field in {**before, **hashes} if before.get(field) != hashes.get(field)]:
            return f"{', '.join(changed)} changed"
        if name in self._forced:
            return "asked for"
        if not known["done"]:
            return "was interrupted"
        return None if target.exists() else "its folder is gone"

    def _write(self) -> None:
        self.out.mkdir(parents=True, exist_ok=True)
        write_json(self.out / "run.json", {**provenance(KIND, SCHEMA_VERSION, self._parents), "stages": self._stages})
