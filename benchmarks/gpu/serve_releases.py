"""Releases with known answers (tests/contract/make_releases.py) on a GPU: every start-up check, then the answers.

    PYTHONPATH=SITE python benchmarks/gpu/serve_releases.py RELEASES NAME…

SITE holds vLLM; the plugin is this checkout's. Prints per release the
largest change of a probability against the simulation, beside what bfloat16 alone changes there. NVFP4 and MXFP4 run
weight-only on chips without FP4 units, while the simulation rounds activations: there a difference is expected.
"""

import json
import os
import sys
import tempfile
from pathlib import Path

from serve import install_plugin


def main() -> None:
    site = install_plugin(Path(tempfile.mkdtemp()) / "site")
    sys.path.insert(0, str(site))
    os.environ |= {"PYTHONPATH": f"{site}:{os.environ.get('PYTHONPATH', '')}", "VLLM_PLUGINS": "clef_vllm"}

    from clef_vllm import ClefVLLM
    from clef_vllm.probe import largest_difference

    for name in sys.argv[2:]:
        folder = Path(sys.argv[1]) / name
        expected = json.loads(folder.with_name(f"{name}.json").read_text())
        with ClefVLLM(
            folder, max_model_len=2048, kv_cache_gib=2, gpu_memory_utilization=0.3, enforce_eager=True,
            gdn_prefill_backend="triton",
        ) as clef:  # fmt: skip
            found = clef.logits(expected["records"])
        changes = sorted(map(largest_difference, expected["logits"], found))
        line = {"release": name, "max_dp": round(changes[-1], 4), "median_dp": round(changes[len(changes) // 2], 4),
                "bfloat16_alone": round(expected["noise_floor"], 4)}  # fmt: skip
        print(json.dumps(line), flush=True)


if __name__ == "__main__":  # vLLM starts processes of its own
    main()
