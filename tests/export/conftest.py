"""Checkpoints and releases for the export tests, and the folder shapes of the four published quantizations."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from clefquant.export.audit import audit
from clefquant.export.release_folder import export_release
from clefquant.export.sums import write_sums
from clefquant.quantize.algorithms import to_nearest
from clefquant.quantize.checkpoint import write_checkpoint
from clefquant.quantize.statistics import collect_statistics
from clefquant.recipes.layout import make_layout, uniform_layout
from clefquant.release.shards import write_index

from .hub_server import TOKEN, HubServer

CYCLE = ("nvfp4", "fp8", "mxfp4", "bf16")
TABLES = {"embed_tokens": "model.language_model.embed_tokens.weight", "lm_head": "lm_head.weight"}


@pytest.fixture(scope="session")
def statistics(tiny_loaded, encoded):
    return collect_statistics(tiny_loaded.release, encoded)


@pytest.fixture(scope="session")
def make_checkpoint(tiny, statistics, tmp_path_factory) -> Callable[[str], Path]:
    """A checkpoint in one format, or ``mixed`` (all formats in turn); made once per format."""
    made: dict[str, Path] = {}

    def make(scheme: str) -> Path:
        if scheme not in made:
            mixed = {unit.name: CYCLE[number % len(CYCLE)] for number, unit in enumerate(tiny.units)}
            layout = make_layout(tiny, mixed) if scheme == "mixed" else uniform_layout(tiny, scheme)
            made[scheme] = write_checkpoint(
                tiny, layout, to_nearest(tiny, layout, statistics), tmp_path_factory.mktemp("checkpoint") / scheme
            )
            (made[scheme] / "LICENSE").write_text("Apache License, Version 2.0\n")
        return made[scheme]

    return make


@pytest.fixture(scope="session")
def mixed(make_checkpoint) -> Path:
    return make_checkpoint("mixed")


@pytest.fixture(scope="session")
def release(mixed, tmp_path_factory) -> Path:
    """A release of the mixed checkpoint in several shards."""
    out = tmp_path_factory.mktemp("release") / "mixed"
    export_release(mixed, out, max_shard_bytes=200_000, base_model="Cloudflare/clef-flash")
    return out


@pytest.fixture
def copy(release, tmp_path) -> Path:
    """A copy of the release to damage."""
    return Path(shutil.copytree(release, tmp_path / "copy"))


def errors(folder: Path) -> dict[str, list]:
    """What the audit calls errors, by check."""
    found: dict[str, list] = {}
    for finding in audit(folder):
        if finding.severity == "error":
            found.setdefault(finding.check, []).append(finding)
    return found


class Edit:
    """Changes to a copy, each followed by new checksums so that one fault stays one fault."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.index = json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"]

    def tensor(self, name: str, change: Callable[[torch.Tensor], torch.Tensor | None]) -> None:
        """Replace a tensor; None removes it."""
        self.tensors({name: change})

    def tensors(self, changes: dict[str, Callable[[torch.Tensor], torch.Tensor | None]]) -> None:
        for name, change in changes.items():
            file = self.folder / self.index[name]
            held = load_file(file)
            new = change(held.pop(name))
            if new is not None:
                held[name] = new.contiguous()
            save_file(held, file, metadata={"format": "pt"})
        self.reindex()

    def reindex(self) -> None:
        shards = {file.name: load_file(file) for file in sorted(self.folder.glob("model*.safetensors"))}
        self.index = {name: file for file, held in shards.items() for name in held}
        write_index(self.folder, self.index, sum(t.nbytes for held in shards.values() for t in held.values()))
        self.sums()

    def json(self, name: str, change: Callable[[dict], object]) -> None:
        value = json.loads((self.folder / name).read_text())
        change(value)
        (self.folder / name).write_text(json.dumps(value))
        self.sums()

    def sums(self) -> None:
        write_sums(self.folder)


@pytest.fixture
def edit(copy) -> Edit:
    return Edit(copy)


def _single_shard(folder: Path, change: Callable[[dict], dict] = lambda tensors: tensors) -> None:
    tensors = change(load_file(folder / "model.safetensors"))
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def _head_in_folder(folder: Path) -> None:
    (folder / "clef_head").mkdir(exist_ok=True)
    for name in ("joint_head.safetensors", "joint_head_config.json"):
        (folder / name).rename(folder / "clef_head" / name)


def _foreign(folder: Path, change: Callable[[dict], object] = lambda config: None) -> None:
    """As somebody else's tool leaves it: no object of ours, none of our artefacts."""
    config = json.loads((folder / "config.json").read_text())
    del config["clefquant"]
    change(config)
    (folder / "config.json").write_text(json.dumps(config))
    for name in ("layout.json", "checkpoint.json", "input_statistics.json"):
        (folder / name).unlink(missing_ok=True)
    (folder / "README.md").write_text("# a card\n")


def _shrink(tensors: dict, folder: Path, marker: str = "0.1.0") -> dict:
    tables = {}
    for short, name in TABLES.items():
        table = tensors.pop(name).float()
        tables[f"{short}.scale"] = table.abs().amax(1).clamp(min=1e-12) / 127
        tables[f"{short}.weight"] = (table / tables[f"{short}.scale"][:, None]).round().to(torch.int8)
    save_file(tables, folder / "clef_head" / "tables_int8.safetensors")
    path = folder / "clef_head" / "joint_head_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "requires_clef_vllm": marker}))
    return tensors


def quark_spec(**changes) -> dict:
    """A tensor's specification with every key that Quark 0.13 writes; MXFP4 unless changed."""
    return {
        "dtype": "fp4", "is_dynamic": False, "qscheme": "per_group", "ch_axis": -1, "group_size": 32,
        "block_size": None, "symmetric": None, "round_method": "half_even", "scale_type": "float",
        "scale_format": "e8m0", "scale_calculation_mode": "even", "mx_element_dtype": None,
        "observer_cls": "PerBlockMXObserver", "is_scale_quant": False, "enable_buffer_reuse": False,
        "max_input_numel": 4194304, **changes,
    }  # fmt: skip


def _quark_config(config: dict) -> None:
    """As Quark 0.13 exports the model: every key it writes, exact names excluded, AWQ's settings taken out."""
    config["quantization_config"] = {
        "algo_config": None,
        "exclude": config["quantization_config"]["ignore"],
        "export": {
            "kv_cache_group": [], "min_kv_scale": 0.0, "pack_method": "reorder", "weight_format": "real_quantized",
            "weight_merge_groups": None,
        },
        "global_quant_config": {
            "bias": None, "input_tensors": quark_spec(is_dynamic=True), "output_tensors": None, "target_device": None,
            "weight": quark_spec(),
        },
        "kv_cache_post_rope": False, "kv_cache_quant_config": {}, "layer_quant_config": {},
        "layer_type_quant_config": {}, "quant_method": "quark", "quant_mode": "eager_mode", "softmax_quant_spec": None,
        "version": "0.13+5ff5fbf6b2",
    }  # fmt: skip


@pytest.fixture(params=["flash-fp8", "clef-nvfp4", "flash-mixed", "clef-mxfp4"])
def published(request, make_checkpoint, tmp_path) -> Path:
    """The folder shape of one of the four published releases."""
    scheme = {"flash-fp8": "fp8", "clef-nvfp4": "nvfp4", "flash-mixed": "mixed", "clef-mxfp4": "mxfp4"}[request.param]
    folder = Path(shutil.copytree(make_checkpoint(scheme), tmp_path / request.param))
    if request.param in ("flash-fp8", "clef-nvfp4"):  # no index, head in a folder, plugin and scripts beside it
        _head_in_folder(folder)
        (folder / "model.safetensors.index.json").unlink()
        for name in ("vllm_plugin/clef_vllm/__init__.py", "scripts/quantize.py"):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text("")
        _foreign(
            folder, lambda config: config["quantization_config"]["config_groups"]["group_0"].update(targets=["Linear"])
        )
        if request.param == "clef-nvfp4":
            _single_shard(folder, lambda tensors: _shrink(tensors, folder))
    elif request.param == "flash-mixed":  # one shard with an index, head at the root, a module and its own layout.json
        _foreign(folder)
        (folder / "layout.json").write_text("{}")
        (folder / "clef_vllm.py").write_text("")
    else:  # Quark: five shards, head at the root, the config as exported kept beside
        _foreign(folder, _quark_config)
        (folder / "config.json.orig_with_algo_config").write_text("{}")
        tensors = load_file(folder / "model.safetensors")
        tensors = {name.replace(".weight_packed", ".weight"): tensor for name, tensor in tensors.items()}
        (folder / "model.safetensors").unlink()
        names, weight_map = sorted(tensors), {}
        for number in range(5):
            file = f"model-{number + 1:05d}-of-00005.safetensors"
            part = {name: tensors[name] for name in names[number::5]}
            save_file(part, folder / file, metadata={"format": "pt"})
            weight_map.update(dict.fromkeys(part, file))
        write_index(folder, weight_map, sum(tensor.nbytes for tensor in tensors.values()))
        write_sums(folder)
    return folder


@pytest.fixture
def hub(monkeypatch, tmp_path):
    """A loopback Hub that this process talks to."""
    from huggingface_hub import constants

    server = HubServer()
    monkeypatch.setattr(constants, "ENDPOINT", server.url)
    template = server.url + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    monkeypatch.setattr("huggingface_hub.utils._http.time.sleep", lambda _: None)
    yield server
    server.close()
