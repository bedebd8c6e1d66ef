"""Run by the Python of the serving environment: answers records with clef-vllm and times them.

Usage: vllm_worker.py JOB.json RESULT.json. The job has ``model``, ``records``, ``alone`` (indices timed one at a
time), ``warm_up`` and ``engine`` (keyword arguments of ClefVLLM). It is a file of its own, and no module of
clefquant: the serving environment does not have clefquant installed.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any


def answer(engine: Any, record: dict[str, Any]) -> dict[str, Any]:
    """Logits of one record, or the reason there are none."""
    try:
        return {"logits": engine.logits([record])[0]}
    except Exception as error:  # whatever the engine raises, the record has no answer and the report says why
        return {"error": f"{type(error).__name__}: {error}"}


def answer_all(engine: Any, records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """All records in one call; one by one when that fails, so that one bad record costs one answer."""
    try:
        return [{"logits": logits} for logits in engine.logits(records)]
    except Exception:
        return [answer(engine, record) for record in records]


def memory_gib() -> float:
    """Resident memory of this process and its engines."""
    import psutil

    process = psutil.Process()
    held = sum(one.memory_info().rss for one in (process, *process.children(recursive=True)))
    return float(round(held / 2**30, 2))


def main() -> None:
    """Load, warm up, time one at a time, time all together."""
    job = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    import torch
    import vllm  # type: ignore[import-not-found]
    from clef_vllm import ClefVLLM  # type: ignore[import-not-found]

    records = job["records"]
    with ClefVLLM(job["model"], **job["engine"]) as engine:
        for record in records[: job["warm_up"]]:
            answer(engine, record)
        alone, alone_answers = [], []
        for index in job["alone"]:
            start = time.perf_counter()
            alone_answers.append(answer(engine, records[index]))
            alone.append(time.perf_counter() - start)
        start = time.perf_counter()
        answers = answer_all(engine, records)
        seconds = time.perf_counter() - start
        cuda = torch.cuda.is_available()
        free, total = torch.cuda.mem_get_info() if cuda else (0, 0)
        result = {
            "answers": answers,
            "alone_s": alone,
            "alone_answers": alone_answers,
            "all_s": seconds,
            "chip": torch.cuda.get_device_name() if cuda else "CPU",
            "device_memory_gib": round((total - free) / 2**30, 2) if cuda else None,
            "host_memory_gib": memory_gib(),
            "dtype": str(engine.llm.llm_engine.vllm_config.model_config.dtype).removeprefix("torch."),
            "versions": {"vllm": vllm.__version__, "torch": torch.__version__},
        }
    Path(sys.argv[2]).write_text(json.dumps(result), encoding="utf-8")


if __name__ == "__main__":
    main()
