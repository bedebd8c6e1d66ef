"""The candidate through vLLM: a worker script under the Python of the serving environment, one JSON file in and one
out.

The two environments cannot be one (they pin different compressed-tensors), and this module imports neither vLLM nor
the plugin.
"""

import json
import re
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from clefquant.calibration.stored import StoredRecord
from clefquant.errors import InputError, PrerequisiteError
from clefquant.progress import Progress
from clefquant.release.release import Release
from clefquant.verify.performance import WARM_UP, latency_rows, latency_sample, throughput
from clefquant.verify.results import Served, answers_of

WORKER = Path(__file__).with_name("templates") / "vllm_worker.py"
_LOG_TAIL_LINES = 15
_ABOUT = """
import importlib.metadata, json
found = {}
for name in ("vllm", "clef-vllm", "torch", "transformers", "compressed-tensors"):
    try:
        found[name] = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        pass
if "torch" in found:
    import torch
    if torch.cuda.is_available():
        found["chip"] = torch.cuda.get_device_name()
print(json.dumps(found))
"""
_ERROR = re.compile(r"\b\w*(?:Error|Exception): .+")


def answer_with_vllm(
    python: Path,
    release: Release,
    records: Sequence[StoredRecord],
    out: Path,
    progress: Progress,
    engine: Mapping[str, Any] | None = None,
) -> Served:
    """What the engine answered and how fast. ``engine``: keyword arguments of ``ClefVLLM``. The
    engine's own log is kept as ``vllm.log`` in ``out``.

    PrerequisiteError when the other environment lacks the plugin or the engine does not come up.
    """
    if unsendable := [record.record_id for record in records if record.encoded.media is not None]:
        raise InputError(
            f"records with images cannot be handed to the vLLM worker, first {unsendable[0]}; use a server's URL."
        )
    sample = latency_sample(records)
    job = {
        "model": str(release.path.resolve()),
        "records": [record.record for record in records],
        "alone": sample,
        "warm_up": WARM_UP,
        "engine": {"images": 0, **(engine or {})},
    }
    with tempfile.TemporaryDirectory() as folder, progress.task("candidate, vLLM", len(records), "records") as task:
        given, got = Path(folder) / "job.json", Path(folder) / "result.json"
        given.write_text(json.dumps(job, ensure_ascii=False), encoding="utf-8")
        log = out / "vllm.log"
        with log.open("w", encoding="utf-8") as handle:
            done = subprocess.run(
                [str(python), str(WORKER), str(given), str(got)], stdout=handle, stderr=handle, check=False
            )
        if done.returncode or not got.is_file():
            cause, tail = _cause(log.read_text(encoding="utf-8", errors="replace").splitlines())
            raise PrerequisiteError(
                f"the vLLM worker under {python} ended with code {done.returncode}{cause}. "
                f"All of its log: {log}\n{tail}"
            )
        result = json.loads(got.read_text(encoding="utf-8"))
        task.advance(len(records))
    about = {
        "engine": f"vLLM {result['versions']['vllm']}, clef-vllm",
        "dtype": result["dtype"],
        "versions": result["versions"],
    }
    performance = {
        **about,
        "chip": result["chip"],
        "device_memory_gib": result["device_memory_gib"],
        "host_memory_gib": result["host_memory_gib"],
        "throughput": throughput(records, result["all_s"], "all at once, offline"),
        "latency": latency_rows(records, sample, result["alone_s"]),
    }
    alone = answers_of([records[index] for index in sample], result["alone_answers"], "vLLM")
    return Served(answers_of(records, result["answers"], "vLLM"), alone, about, performance)


def environment(python: Path) -> dict[str, str]:
    """What decides an engine's numbers under ``python``: package versions and the GPU's name; absent ones are left out.

    PrerequisiteError when ``python`` does not run.
    """
    try:
        done = subprocess.run([str(python), "-c", _ABOUT], capture_output=True, text=True, check=True)
        found: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    except (OSError, subprocess.CalledProcessError, ValueError, IndexError) as error:
        why = error.stderr.strip()[-300:] if isinstance(error, subprocess.CalledProcessError) else error
        raise PrerequisiteError(f"{python} cannot be asked for its packages: {why}. Correct --python.") from error
    return found


def _cause(lines: Sequence[str]) -> tuple[str, str]:
    """The first error that a log names, which an engine in several processes repeats in other words, and its end."""
    found = (_ERROR.search(line) for line in lines)
    first = next((match[0] for match in found if match), "")
    return f": {first.rstrip('.')}" if first else "", "\n".join(lines[-_LOG_TAIL_LINES:])
