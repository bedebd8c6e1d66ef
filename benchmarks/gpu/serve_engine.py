"""One engine of serve.py: starts, waits for a line on standard input, measures, reports lines of JSON.

serve_engine.py FOLDER FORMAT:PLUGIN:MODE RECORDS REPEATS
"""

import json
import random
import statistics
import sys
import time
from typing import Any

from clef_vllm import ARCHITECTURE, EXTRA_KEY, TASK
from clef_vllm.engine import GRAPH_TOKENS

#: Name to (tokens, questions, options, share of the records): the cases that the published figures are for.
WORKLOADS = {
    "512 tokens 1x4": (512, 1, 4, 1.0),
    "512 tokens 3x3": (512, 3, 3, 1.0),
    "1838 tokens 1x77": (1838, 1, 77, 0.25),
}
SINGLES = 31
Record = tuple[list[int], list[Any]]


def make_record(tokens: int, questions: int, options: int, rng: random.Random) -> Record:
    """Random prompt and its layout: questions at the end, every option six tokens apart."""
    at, layout = -(questions * (8 + options * 6) + 4), []
    for _ in range(questions):
        question, at, spans = [at, at + 6], at + 8, []
        for _ in range(options):
            spans.append([at, at + 5])
            at += 6
        layout.append([1, question, spans])
    return [rng.randrange(10, 250) for _ in range(tokens)], layout


def start(folder: str, mode: str) -> Any:
    from vllm import LLM
    from vllm.platforms import current_platform

    mode, _, ranks = mode.partition("-tp")
    options: dict[str, Any] = {"enforce_eager": mode == "eager", "tensor_parallel_size": int(ranks or 1)}
    if current_platform.is_cuda():
        # Several engines share the GPU: none may take what vLLM finds free.
        options |= {"gdn_prefill_backend": "triton", "gpu_memory_utilization": 0.15}
        options |= {"kv_cache_memory_bytes": 10 * 2**30}
        if mode != "eager":
            # The Triton kernel of rms_norm_gated cannot be traced on torch 2.11; its plain form can.
            plain = {"backend": "eager", "custom_ops": ["all", "-rms_norm_gated"]} if mode == "captured" else {}
            options |= {"compilation_config": {"cudagraph_capture_sizes": GRAPH_TOKENS, **plain}}
    return LLM(
        model=folder, runner="pooling", load_format="dummy", hf_overrides={"architectures": [ARCHITECTURE]},
        enable_prefix_caching=False, language_model_only=True, skip_tokenizer_init=True, max_model_len=16384,
        max_num_batched_tokens=16384, max_num_seqs=256, **options,
    )  # fmt: skip


def seconds(llm: Any, records: list[Record], nothing: Any, head: bool) -> float:
    """Wall time of one call; `nothing` is what makes the plugin leave its head out."""
    from vllm import PoolingParams

    prompts = [{"prompt_token_ids": ids} for ids, _ in records]
    params = [PoolingParams(task=TASK, extra_kwargs={EXTRA_KEY: layout} if head else nothing) for _, layout in records]
    begun = time.perf_counter()
    outputs = llm.encode(prompts, pooling_params=params, pooling_task=TASK, use_tqdm=False)
    taken = time.perf_counter() - begun
    if head:
        expected = [sum(len(options) for *_, options in layout) for _, layout in records]
        assert [output.outputs.data.numel() for output in outputs] == expected, "the head did not answer"
    return taken


def measure(llm: Any, case: tuple[int, int, int, float], count: int, repeats: int, nothing: Any) -> dict[str, float]:
    tokens, questions, options, share = case
    rng = random.Random(0)
    records = [make_record(tokens, questions, options, rng) for _ in range(max(1, int(count * share)))]
    seconds(llm, records[: 2 * 16384 // tokens], nothing, head=True)
    times: dict[bool, list[float]] = {True: [], False: []}
    for number in range(repeats):
        # The order alternates, so that a drift of the clock rate is nobody's advantage.
        for head in (True, False) if number % 2 == 0 else (False, True):
            times[head].append(seconds(llm, records, nothing, head))
    single = [seconds(llm, [one], nothing, head=True) for one in (records * SINGLES)[:SINGLES]]
    bare = [seconds(llm, [one], nothing, head=False) for one in (records * SINGLES)[:SINGLES]]
    with_head, without = (len(records) / statistics.median(times[head]) for head in (True, False))
    return {
        "records_s": round(with_head, 2),
        "records_s_without_head": round(without, 2),
        "ratio": round(with_head / without, 4),
        "single_p50_ms": round(statistics.median(single) * 1e3, 2),
        "single_p50_ms_without_head": round(statistics.median(bare) * 1e3, 2),
    }


def main() -> None:
    folder, name, count, repeats = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    _, plugin, mode = name.split(":")
    begun = time.perf_counter()
    llm = start(folder, mode)
    print(json.dumps({"engine": name, "started_s": round(time.perf_counter() - begun, 1)}), flush=True)
    sys.stdin.readline()
    nothing = {EXTRA_KEY: []} if plugin == "clef_vllm" else None
    for workload, case in WORKLOADS.items():
        found = measure(llm, case, count, repeats, nothing)
        print(json.dumps({"engine": name, "workload": workload, **found}), flush=True)


if __name__ == "__main__":  # vLLM starts processes of its own
    main()
