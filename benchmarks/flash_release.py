"""A random release in the shape of Clef-Flash (9B) or Clef (27B), written tensor by tensor.

    python benchmarks/flash_release.py OUT [--shape clef-flash|clef] [--layers N] [--hidden N] [--device cuda]

It measures speed and memory, never quality: its answers are noise. The vision tower, the tokenizer and the processor
are those of the bundled nano, so that real records can be encoded for it.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import torch

from clefquant.quantize.writer import ShardWriter, lay_out, planned
from clefquant.release.artefact import new_folder, write_json
from clefquant.release.code import release_code
from clefquant.release.load import empty_backbone
from clefquant.release.release import open_release

SHAPES: dict[str, dict[str, int]] = {
    "clef-flash": {
        "hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 32, "num_attention_heads": 16,
        "num_key_value_heads": 4, "linear_num_key_heads": 16, "linear_num_value_heads": 32, "vocab_size": 248320,
    },
    "clef": {
        "hidden_size": 5120, "intermediate_size": 17408, "num_hidden_layers": 64, "num_attention_heads": 24,
        "num_key_value_heads": 4, "linear_num_key_heads": 16, "linear_num_value_heads": 48, "vocab_size": 248320,
    },
}  # fmt: skip
HEAD = {"width": 1024, "routing_layers": 2, "layers": 4, "heads": 16, "feedforward": 4096}
ROWS = 8192


def configuration(nano: dict[str, Any], shape: dict[str, int]) -> dict[str, Any]:
    """Nano's configuration with the sizes of ``shape``."""
    layers = shape["num_hidden_layers"]
    text = nano["text_config"] | shape
    text |= {"head_dim": 256, "max_position_embeddings": 65536}
    text["layer_types"] = ["full_attention" if i % 4 == 3 else "linear_attention" for i in range(layers)]
    text["rope_parameters"] = text["rope_parameters"] | {"rope_theta": 1e7, "mrope_section": [11, 11, 10]}
    vision = nano["vision_config"] | {"out_hidden_size": shape["hidden_size"]}
    return nano | {"text_config": text, "vision_config": vision}


def random_tensor(name: str, shape: tuple[int, ...], device: torch.device, generator: torch.Generator) -> torch.Tensor:
    """bfloat16 on ``device``: norms at rest, decays as the architecture starts them, matrices normal with 0.02."""
    if name.endswith("norm.weight") or name.endswith("norm.bias"):
        return torch.full(shape, float("linear_attn.norm" in name or "visual" in name), dtype=torch.bfloat16)
    if name.endswith("A_log"):
        return torch.linspace(1, 16, shape[0]).log().to(torch.bfloat16)
    found = torch.empty(shape, dtype=torch.bfloat16, device=device)
    for rows in found.split(ROWS):
        rows.copy_(torch.empty(rows.shape, device=device).normal_(0, 0.02, generator=generator))
    return found


def write(out: Path, shape: dict[str, int], device: torch.device) -> Path:
    """Write the release folder ``out``; the largest tensor is the most that is held."""
    from safetensors.torch import save_file

    nano = open_release("nano")
    generator = torch.Generator(device).manual_seed(0)
    with new_folder(out) as work:
        for file in nano.side_files:
            (work / file.name).write_bytes(file.read_bytes())
        write_json(work / "config.json", configuration(nano.config, shape))
        parameters = {
            name: tuple(value.shape) for name, value in empty_backbone(work, torch.bfloat16).named_parameters()
        }
        plan = {name: planned("BF16", size) for name, size in parameters.items()}
        lay_out(work, plan)
        with ShardWriter(work, plan) as writer:
            for name, size in parameters.items():
                writer.write(name, random_tensor(name, size, device, generator))
        sizes = HEAD | {"hidden_size": shape["hidden_size"]}
        torch.manual_seed(0)
        head = release_code(nano.path).JointSchemaHead(**sizes).bfloat16()
        save_file(
            {name: value.contiguous() for name, value in head.state_dict().items()}, work / "joint_head.safetensors"
        )
        (work / "joint_head_config.json").write_text(json.dumps(sizes, indent=1) + "\n")
    return out


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--shape", choices=SHAPES, default="clef-flash")
    parser.add_argument("--layers", type=int, help="fewer layers, a multiple of 4")
    parser.add_argument("--hidden", type=int)
    parser.add_argument("--intermediate", type=int)
    parser.add_argument("--vocabulary", type=int)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    return parser.parse_args()


def main() -> None:
    """Write the folder asked for."""
    options = arguments()
    given = {
        "num_hidden_layers": options.layers,
        "hidden_size": options.hidden,
        "intermediate_size": options.intermediate,
        "vocab_size": options.vocabulary,
    }
    shape = SHAPES[options.shape] | {name: value for name, value in given.items() if value}
    print(write(options.out, shape, torch.device(options.device)))


if __name__ == "__main__":
    main()
