"""Layouts, run configurations, mixtures and gates: read, or refused with a message; nothing else is raised."""

import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml
from hypothesis import strategies as st
from values import JSON, TEXT, damaged

from clefquant.calibration.mixture import load_mixture
from clefquant.errors import ClefquantError
from clefquant.export.inspection import inspect
from clefquant.pipeline.config_file import read_config
from clefquant.recipes.layout import read_layout, uniform_layout
from clefquant.release.release import open_release
from clefquant.verify.gates import read_gate

CONFIG = {
    "model": "nano", "out": "runs/x", "algorithm": "gptq", "tables": "int8", "max_shard_size": "1GB",
    "calibration": {"mixture": "nano", "seed": 1}, "evaluation": {"mixture": "nano"},
    "verify": {"gate": "gate.yaml"},
    "plan": {
        "selection": {"mixture": "nano"}, "formats": ["fp8", "nvfp4"], "budget": "0.6x", "candidates": 3,
        "pin": {"layers.*.mlp": "fp8"}, "forbid": ["bf16"],
    },
}  # fmt: skip
MIXTURE = {
    "name": "m", "records": 8, "max_length": 512,
    "sources": [
        {"name": "game", "kind": "generator", "family": "game", "count": 3, "license": "Apache-2.0"},
        {"name": "own", "kind": "jsonl", "path": "a.jsonl", "weight": 2.0},
    ],
}  # fmt: skip
GATE = {"judge": "bound", "limits": ["agreement >= 98.5 %", "kl <= 0.003"], "groups": {"*": ["flips == 0"]}}
YAML = st.sampled_from(
    ("&a [*a]", "{? [1]: 2}", "!!python/object:os.x {}", "- a\nb: c", "a: 2020-13-45", "<<: 3", "? {a: b}\n: c", 
     "{1: 2}", "plan: &p\n  selection: *p", "a: 0x", "a: 1:2:3", "a: !!int x", "!!timestamp z", "!!binary é")
)  # fmt: skip
WORDS = st.sampled_from(("fp8", "nvfp4", "bf16", "w4a16", "layers.0.mlp", "10.3GB", "kl=nan", "1e999x", "kl >= 1.2.3"))


def written(sound: Any) -> st.SearchStrategy[str | bytes]:
    """``sound`` damaged, as JSON or YAML, or any text or bytes."""
    value = damaged(sound, other=JSON | WORDS)
    text = value.map(json.dumps) | value.map(lambda one: yaml.safe_dump(one, allow_unicode=True))
    return text | text | YAML | TEXT | st.binary(max_size=40)


def prepare(folder: Path) -> tuple[st.SearchStrategy[Any], Callable[[Any], None]]:
    release = open_release("nano")
    (folder / "gate.yaml").write_text(yaml.safe_dump(GATE))
    readers: dict[str, tuple[Any, Callable[[Path], Any]]] = {
        "layout.json": (uniform_layout(release, "nvfp4").model_dump(), lambda path: read_layout(path, release)),
        "run.yaml": (CONFIG, read_config),
        "mixture.yaml": (MIXTURE, load_mixture),
        "own_gate.yaml": (GATE, read_gate),
    }
    inputs = st.one_of([st.tuples(st.just(name), written(sound)) for name, (sound, _) in readers.items()])

    def check(given: tuple[str, str | bytes]) -> None:
        name, text = given
        path = folder / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass"))
        for read in (readers[name][1], lambda path: inspect(str(path))):
            with suppress(ClefquantError):
                read(path)

    return inputs, check
