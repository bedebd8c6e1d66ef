"""Serving the shape of Clef-Flash (or Clef), dummy weights: this plugin, another plugin, and no head at all.

    PYTHONPATH=SITE python benchmarks/gpu/serve.py --release-code joint_schema_model.py --out serve.jsonl \\
        fp8:clef_vllm_proto:eager fp8:clef_vllm:eager,fp8:clef_vllm:graphs bf16:clef_vllm:graphs,nvfp4:clef_vllm:graphs

SITE holds vLLM (0.26 or newer) and, where it is named, the other plugin under its entry point of vllm.general_plugins.
Every argument is a wave of engines, FORMAT:PLUGIN:MODE joined by commas; mode is eager, graphs (compiled, piecewise
CUDA graphs; minutes to start) or captured (piecewise CUDA graphs of layers that are not compiled), and -tp2 behind it
asks for two tensor-parallel ranks. Engines of a wave start at the same time, because starting is most of the work, and
are measured one after another while the rest stand still. Each is a process with a time limit, and each figure is one
line of JSON in --out as soon as it is known.
Answers are noise: only speed is measured.
"""

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).resolve().parent
PLUGIN = HERE.parents[1] / "plugins" / "clef_vllm" / "clef_vllm"
NANO = HERE.parents[1] / "clefquant" / "release" / "nano"
SHAPES: dict[str, dict[str, int]] = {
    "clef-flash": {
        "hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 32, "num_attention_heads": 16,
        "num_key_value_heads": 4, "linear_num_key_heads": 16, "linear_num_value_heads": 32, "vocab_size": 248320,
        "head_dim": 256, "max_position_embeddings": 65536,
    },
    "clef": {
        "hidden_size": 5120, "intermediate_size": 17408, "num_hidden_layers": 64, "num_attention_heads": 24,
        "num_key_value_heads": 4, "linear_num_key_heads": 16, "linear_num_value_heads": 48, "vocab_size": 248320,
        "head_dim": 256, "max_position_embeddings": 65536,
    },
    "nano": {},
}  # fmt: skip
HEAD = {"width": 1024, "routing_layers": 2, "layers": 4, "heads": 16, "feedforward": 4096}


class Engine(NamedTuple):
    name: str  # FORMAT:PLUGIN:MODE
    process: subprocess.Popen[str]
    log: Path


def write_folder(folder: Path, shape: str, scheme: str, code: Path) -> Path:
    """A release without weights: nano's side files, the sizes of ``shape``, a quantization_config for ``scheme``."""
    folder.mkdir(parents=True)
    for file in NANO.iterdir():
        if file.suffix in (".json", ".jinja") and "index" not in file.name:
            shutil.copy(file, folder)
    shutil.copy(code, folder / "joint_schema_model.py")
    config = json.loads((NANO / "config.json").read_text())
    text = config["text_config"] = config["text_config"] | SHAPES[shape]
    layers = text["num_hidden_layers"]
    text["layer_types"] = ["full_attention" if i % 4 == 3 else "linear_attention" for i in range(layers)]
    sections = [11, 11, 10] if text["head_dim"] == 256 else [3, 3, 2]
    text["rope_parameters"] = text["rope_parameters"] | {"mrope_section": sections}
    config["vision_config"]["out_hidden_size"] = text["hidden_size"]
    config["vision_config"].pop("rope_parameters", None)  # transformers before 5.17 do not know its type
    config["architectures"] = ["ClefForDecision"]
    if scheme != "bf16":
        config["quantization_config"] = quantization(scheme, layers)
    (folder / "config.json").write_text(json.dumps(config))
    head = HEAD if shape != "nano" else {"width": 128, "routing_layers": 1, "layers": 2, "heads": 4,
                                               "feedforward": 256}  # fmt: skip
    (folder / "joint_head_config.json").write_text(json.dumps({"hidden_size": text["hidden_size"], **head}))
    (folder / "joint_head.safetensors").touch()  # dummy loading asks for the name and never reads it
    return folder


def quantization(scheme: str, layers: int) -> dict[str, Any]:
    """As compressed-tensors writes it: every linear but lm_head, vision, and the small inputs of linear attention."""
    ignore = ["lm_head", "re:.*visual.*"]
    ignore += [f"model.language_model.layers.{i}.linear_attn.in_proj_{part}" for i in range(layers) for part in "ab"]
    weights: dict[str, Any] = {"dynamic": False, "observer": "minmax", "symmetric": True, "type": "float"}
    if scheme == "fp8":
        name, weights = "float-quantized", weights | {"num_bits": 8, "strategy": "channel"}
        inputs = weights | {"dynamic": True, "observer": None, "strategy": "token"}
    else:
        name, weights = "nvfp4-pack-quantized", weights | {"num_bits": 4, "strategy": "tensor_group", "group_size": 16}
        inputs = weights | {"dynamic": "local"}
    group = {"format": name, "targets": ["Linear"], "weights": weights, "input_activations": inputs}
    return {"quant_method": "compressed-tensors", "quantization_status": "compressed", "format": name,
            "config_groups": {"group_0": group}, "ignore": ignore, "kv_cache_scheme": None}  # fmt: skip


def install_plugin(site: Path) -> Path:
    """A folder for PYTHONPATH that has this checkout's plugin and its entry point, as an installation would."""
    info = site / "clef_vllm-0.dist-info"
    info.mkdir(parents=True)
    (site / "clef_vllm").symlink_to(PLUGIN)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: clef-vllm\nVersion: 0\n")
    (info / "entry_points.txt").write_text("[vllm.general_plugins]\nclef_vllm = clef_vllm.plugin:register\n")
    return site


def start(name: str, folder: Path, work: Path, args: argparse.Namespace) -> Engine:
    plugin = name.split(":")[1]
    log = args.out.with_name(f"{args.out.stem}.{name.replace(':', '-')}.log")
    environment = {
        **os.environ,
        "PYTHONPATH": f"{work / 'site'}:{os.environ.get('PYTHONPATH', '')}",
        "VLLM_PLUGINS": plugin,
        "VLLM_USE_FLASHINFER_SAMPLER": "0",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
        "VLLM_CACHE_ROOT": str(work / name.replace(":", "-")),  # compiled code of two engines must not meet
    }
    command = [sys.executable, HERE / "serve_engine.py", folder, name, str(args.records), str(args.repeats)]
    with log.open("w") as errors:
        process = subprocess.Popen(
            [*map(str, command)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True,
            env=environment, start_new_session=True,
        )  # fmt: skip
    print(f"{time.strftime('%X')} starting {name}, log in {log}", flush=True)
    return Engine(name, process, log)


def stop(engine: Engine) -> None:
    """End an engine and the processes it started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(engine.process.pid, signal.SIGKILL)
    engine.process.wait()


def events(engine: Engine, limit_s: float) -> Iterator[dict[str, Any]]:
    """What an engine reports (lines of JSON), until it ends or the limit is over, when it is ended."""
    timer = threading.Timer(limit_s, stop, [engine])
    timer.start()
    try:
        assert engine.process.stdout
        for line in engine.process.stdout:
            if line.startswith("{"):
                yield json.loads(line)
    finally:
        timer.cancel()


def run_wave(names: list[str], work: Path, args: argparse.Namespace) -> None:
    """Start every engine of a wave, then measure them one by one."""
    folders = {name: work / name.split(":")[0] for name in names}
    for name, folder in folders.items():
        if not folder.exists():
            write_folder(folder, args.shape, name.split(":")[0], args.release_code)
    engines = [start(name, folder, work, args) for name, folder in folders.items()]
    begun = time.monotonic()
    try:
        ready = []
        for engine in engines:
            event = next(events(engine, max(1.0, args.start_limit - (time.monotonic() - begun))), None)
            record(args.out, event or {"engine": engine.name, "failed": "start", "log": str(engine.log)})
            ready += [engine] if event else []
        for engine in ready:
            assert engine.process.stdin
            engine.process.stdin.write("measure\n")
            engine.process.stdin.flush()
            for event in events(engine, args.measure_limit):
                record(args.out, event)
            stop(engine)
    finally:
        for engine in engines:
            stop(engine)


def record(out: Path, event: dict[str, Any]) -> None:
    with out.open("a") as file:
        file.write(json.dumps(event) + "\n")
    print(json.dumps(event), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("waves", nargs="+", metavar="FORMAT:PLUGIN:MODE[,…]")
    parser.add_argument("--release-code", type=Path, required=True, help="joint_schema_model.py of a release")
    parser.add_argument("--out", type=Path, required=True, help="figures, appended as lines of JSON")
    parser.add_argument("--shape", choices=SHAPES, default="clef-flash")
    parser.add_argument("--records", type=int, default=192, help="records of 512 tokens a round")
    parser.add_argument("--repeats", type=int, default=3, help="rounds with and without the head, alternating")
    parser.add_argument("--start-limit", type=float, default=300.0, help="seconds for a wave to start")
    parser.add_argument("--measure-limit", type=float, default=120.0, help="seconds to measure one engine")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that `timeout` leaves no engine behind
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        install_plugin(work / "site")
        for wave in args.waves:
            run_wave(wave.split(","), work, args)


if __name__ == "__main__":
    main()
