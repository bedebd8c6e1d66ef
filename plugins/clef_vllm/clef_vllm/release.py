"""A Clef release folder as the plugin sees it: which files it has, what its head configuration says.

Two shapes are served: the head at the root (our exports and the original releases) or in `clef_head/` (some published
quantizations); both may carry int8 vocabulary tables in `clef_head/tables_int8.safetensors`.
"""

import importlib.util
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

MARKER = "requires_clef_vllm"
HEAD_WEIGHTS = "joint_head.safetensors"
HEAD_CONFIG = "joint_head_config.json"
TABLES = "clef_head/tables_int8.safetensors"
PROBE = "clefquant_probe.json"
CODE = "joint_schema_model.py"


class ReleaseError(RuntimeError):
    """The folder cannot be served; the message says what was found, what is needed and what to do."""


@dataclass(frozen=True)
class Release:
    path: Path
    head_weights: Path
    head_config: dict[str, Any]  # without the marker
    marker: str | None  # the oldest plugin version that may serve this folder
    tables: Path | None
    probe: Path | None

    @classmethod
    def open(cls, path: str | Path) -> "Release":
        """Find the parts of a release folder; nothing heavy is read."""
        folder = Path(path)
        if not folder.is_dir():
            raise ReleaseError(f"{path} is not a folder; download the release and give its local path")
        heads = [at for at in (folder, folder / "clef_head") if (at / HEAD_WEIGHTS).is_file()]
        if not heads:
            raise ReleaseError(f"{folder} has no {HEAD_WEIGHTS} at its root or in clef_head/: not a Clef release")
        for name in (f"{heads[0].relative_to(folder)}/{HEAD_CONFIG}", CODE):
            if not (folder / name).is_file():
                raise ReleaseError(f"{folder} has no {name}; the release is incomplete, download it again")
        config = json.loads((heads[0] / HEAD_CONFIG).read_text(encoding="utf-8"))
        marker = config.pop(MARKER, None)
        tables, probe = folder / TABLES, folder / PROBE
        return cls(
            path=folder,
            head_weights=heads[0] / HEAD_WEIGHTS,
            head_config=config,
            marker=None if marker is None else str(marker),
            tables=tables if tables.is_file() else None,
            probe=probe if probe.is_file() else None,
        )

    def code(self) -> ModuleType:
        """The release's own encoder and answer formatter, imported from the folder."""
        name = f"clef_release_{abs(hash(str(self.path.resolve()))):x}"
        if name not in sys.modules:
            spec = importlib.util.spec_from_file_location(name, self.path / CODE)
            if spec is None or spec.loader is None:
                raise ReleaseError(f"cannot import {self.path / CODE}")
            module = importlib.util.module_from_spec(spec)
            sys.modules[name] = module
            try:
                spec.loader.exec_module(module)
            except BaseException:
                del sys.modules[name]
                raise
        return sys.modules[name]
