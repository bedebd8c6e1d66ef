"""Where the candidate's answers come from: simulated in this process, vLLM in another environment, or a running
server."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from clefquant.calibration.stored import StoredRecord
from clefquant.errors import InputError
from clefquant.progress import Progress
from clefquant.release.artefact import package_versions, provenance, sha256_json
from clefquant.release.load import default_device
from clefquant.release.release import Release
from clefquant.verify.answers import KIND, SCHEMA_VERSION, Answer, read_answers, write_answers
from clefquant.verify.chunks import Pass, Shard, answer_in_chunks, discard
from clefquant.verify.reference import ONE_AT_A_TIME, origin
from clefquant.verify.results import Served
from clefquant.verify.runner import release_runner, tables_hash
from clefquant.verify.runner_http import about_server, answer_over_http
from clefquant.verify.runner_vllm import answer_with_vllm, environment

SIMULATE, VLLM = "simulate", "vllm"


@dataclass(frozen=True)
class Candidate:
    """Answers with how they were made. ``performance`` is None unless an engine really served them.

    ``variants``: some questions answered again by the same engine, one record at a time.
    """

    answers: list[Answer]
    variants: dict[str, list[Answer]]
    file: Path
    backend: dict[str, Any]
    performance: dict[str, Any] | None = field(default=None)


def check_backend(backend: str, python: Path | None) -> str:
    """``simulate``, ``vllm`` or ``http``; InputError for anything else, or vLLM without its environment."""
    if backend.startswith(("http://", "https://")):
        return "http"
    if backend not in (SIMULATE, VLLM):
        raise InputError(
            f"unknown backend {backend!r}; allowed: simulate, vllm, or the URL of a running server (http://HOST:PORT)."
        )
    if backend == VLLM and python is None:
        raise InputError(
            "--backend vllm needs --python PATH: the Python of the environment that has clef-vllm installed."
        )
    if python is not None and not python.is_file():
        raise InputError(
            f"--python {python} does not exist; give the Python of the environment that has clef-vllm installed."
        )
    return backend


def candidate_answers(
    backend: str,
    release: Release,
    records: Sequence[StoredRecord],
    sets: dict[str, str],
    out: Path,
    *,
    device: torch.device | None,
    batch_tokens: int,
    python: Path | None,
    engine: Mapping[str, Any],
    key_file: Path | None,
    shard: Shard,
    ray: str | None,
    progress: Progress,
) -> Candidate:
    """The candidate's answers to every question, from ``out`` when this very run was finished before."""
    kind = check_backend(backend, python)
    device = device or default_device()
    decides = origin(release, sets, device, batch_tokens, backend=backend, tables=tables_hash(release))
    if kind != SIMULATE:  # an engine chooses these itself, in an environment of its own
        about_engine = environment(python) if python is not None and kind == VLLM else about_server(backend, key_file)
        decides |= {"dtype": "", "device": "", "chip": "", "batch_tokens": 0, "engine": dict(engine)}
        decides["versions"] = about_engine
    key = sha256_json(decides)[:16]
    path = out / f"candidate-{key}.parquet"
    if not path.is_file():
        head = {
            **provenance(KIND, SCHEMA_VERSION, {"model": release.fingerprint}),
            "model": release.reference,
            "origin": decides,
        }
        if kind == SIMULATE:
            runner = release_runner(release, device, ray, simulate=True)
            (answers,) = answer_in_chunks(
                [Pass(out / ".parts" / key, records, batch_tokens)], runner,
                head={"part_of": key}, title="candidate, simulated", shard=shard, progress=progress,
            )  # fmt: skip
            served = Served(answers, [], _simulated_by(decides), {})
        elif kind == VLLM:
            assert python is not None
            served = answer_with_vllm(python, release, records, out, progress, engine)
        else:
            served = answer_over_http(backend, records, progress, key_file)
        about = {"kind": kind, **served.about}
        again = {ONE_AT_A_TIME: served.alone} if served.alone else {}
        write_answers(
            path, served.answers, {**head, "backend": about, "performance": served.performance or None}, again
        )
        discard(out / ".parts" / key)
    file = read_answers(path)
    return Candidate(file.answers, file.variants, path, file.head["backend"], file.head["performance"])


def _simulated_by(decides: dict[str, Any]) -> dict[str, Any]:
    return {
        "engine": "transformers, weights as stored, inputs rounded",
        "dtype": decides["dtype"],
        "device": decides["device"],
        "versions": package_versions(),
    }
