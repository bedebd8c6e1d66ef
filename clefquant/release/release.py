"""A release folder, described without loading it: its files, tensors, units and fingerprint."""

import json
import os
import re
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from clefquant.errors import InputError, PrerequisiteError
from clefquant.release import headers
from clefquant.release.artefact import sha256_file, sha256_json
from clefquant.release.cache import storing
from clefquant.release.headers import TensorInfo
from clefquant.release.scan import Scan, scan
from clefquant.release.units import Unit, find_units

ARCHITECTURE = "Qwen3_5ForConditionalGeneration"
CODE_FILE = "joint_schema_model.py"
HEAD_FILE = "joint_head.safetensors"
HEAD_CONFIG_FILE = "joint_head_config.json"
INDEX_FILE = "model.safetensors.index.json"
HEAD_FOLDER = "clef_head"
TABLES_FILE = f"{HEAD_FOLDER}/tables_int8.safetensors"
#: Key of the head's configuration that stops readers which do not know the int8 tables.
MARKER = "requires_clef_vllm"
NANO = "nano"
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


@dataclass(frozen=True)
class Release:
    """A Clef release on disk.

    ``reference``: what the user wrote (``nano``, a folder, a Hub id). ``tensors``: every backbone tensor with its
    shard, dtype and shape, in file order; the joint head is not among them.
    """

    reference: str
    path: Path
    config: dict[str, Any]
    tensors: dict[str, TensorInfo] = field(repr=False)

    @cached_property
    def units(self) -> tuple[Unit, ...]:
        """Quantizable units in layer order. InputError when they are quantized already or not of this family."""
        if self.quantization is not None:
            found = self.quantization.get("format") or self.quantization.get("quant_method", "an unknown format")
            raise InputError(
                f"{self.path} is already quantized ({found}). Start from the BF16 release it was made from."
            )
        shapes = {name: info.shape for name, info in self.tensors.items()}
        try:
            units = find_units(shapes)
        except ValueError as error:
            raise InputError(f"{self.path}: {error}; this is not a Clef backbone (Qwen3.5).") from error
        if not units:
            raise InputError(f"{self.path} has no BF16 decoder layer that can be quantized.")
        return units

    @property
    def quantization(self) -> dict[str, Any] | None:
        """``quantization_config`` of a release that is already quantized."""
        found = self.config.get("quantization_config")
        return found if isinstance(found, dict) else None

    @property
    def shards(self) -> tuple[Path, ...]:
        """Backbone weight files in order."""
        return tuple(dict.fromkeys(info.file for info in self.tensors.values()))

    @property
    def side_files(self) -> tuple[Path, ...]:
        """Every other file at the top of the folder: head, tokenizer, processor, licence, code."""
        taken = {*self.shards, self.path / INDEX_FILE}
        return tuple(sorted(file for file in self.path.iterdir() if file.is_file() and file not in taken))

    @property
    def backbone_bytes(self) -> int:
        """Bytes of all backbone tensors."""
        return sum(info.bytes for info in self.tensors.values())

    @cached_property
    def fingerprint(self) -> str:
        """sha256 over the content of everything that decides an answer: weights, head, configuration, code,
        tokenizer.
        """
        names = ("config.json", CODE_FILE, HEAD_FILE, HEAD_CONFIG_FILE, "tokenizer.json")
        files = [self.path / name for name in names if (self.path / name).is_file()]
        return sha256_json({file.name: sha256_file(file) for file in files} | self._scan.sha256)

    @property
    def nonfinite(self) -> tuple[str, ...]:
        """Backbone tensors that hold a NaN or an infinity."""
        return self._scan.nonfinite

    @cached_property
    def _scan(self) -> Scan:
        return scan(self.tensors)


def open_release(reference: str | os.PathLike[str]) -> Release:
    """Open ``nano``, a release folder or a Hub id (downloaded into the Hub cache).

    Raises InputError when there is no such folder, or it lacks a part of a Clef release; the message names the part.
    """
    text = os.fspath(reference)
    path = _locate(text)
    config = _config(path)
    if not (path / HEAD_FILE).is_file():
        raise InputError(
            f"{path} has no {HEAD_FILE}: it is a backbone alone, not a Clef release. Give the release folder."
        )
    for name in (CODE_FILE, HEAD_CONFIG_FILE):
        if not (path / name).is_file():
            raise InputError(f"{path} has no {name}; the release is incomplete, download it again.")
    return Release(text, path, config, headers.read_backbone(path))


def _locate(reference: str) -> Path:
    if reference == NANO:
        from clefquant.release.nano import cached_nano

        return cached_nano()
    path = Path(reference).expanduser()
    if path.is_dir():
        return path
    if path.exists():
        raise InputError(f"{reference} is a file; a model is a release folder, a Hub id (ORG/NAME) or {NANO!r}.")
    looks_local = reference.startswith((".", "/", "~")) or not _HUB_ID.fullmatch(reference)
    if looks_local:
        raise InputError(f"no model at {reference}; a model is a release folder, a Hub id (ORG/NAME) or {NANO!r}.")
    return _download(reference)


def _download(hub_id: str) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import (
        HfHubHTTPError,
        HFValidationError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
    )

    try:
        with storing(hub_id):
            return Path(snapshot_download(hub_id))
    except (RepositoryNotFoundError, HFValidationError) as error:
        raise InputError(
            f"there is no folder {hub_id} here and no such model on the Hub (or it is private and no token is set). "
            "Check the spelling, or log in with `hf auth login`."
        ) from error
    except (LocalEntryNotFoundError, HfHubHTTPError, OSError) as error:
        why = str(error).splitlines()[0].removeprefix("Got: ").rstrip(".")
        raise PrerequisiteError(
            f"there is no folder {hub_id} here and the Hub cannot be reached to download it ({why}). "
            "Give a folder, or try again with a connection."
        ) from error


def _config(path: Path) -> dict[str, Any]:
    try:
        config = json.loads((path / "config.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"{path} has no config.json: it is not a release folder.") from None
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise InputError(f"{path / 'config.json'} is not JSON: {error}") from error
    architectures = config.get("architectures") if isinstance(config, dict) else None
    if architectures != [ARCHITECTURE]:
        raise InputError(
            f"{path / 'config.json'} names architectures {architectures}; a Clef release has [{ARCHITECTURE!r}]."
        )
    return dict(config)
