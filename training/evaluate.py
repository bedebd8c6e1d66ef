"""Marks of the shipped nano on held-out records, on the CPU: the table of README.md.

    python -m training.evaluate [FOLDER] [--count 400] [--rows 8]

Weights are read from the release folder's own files and run through the batched code, whose equality with the release's
code is tested.
"""

import argparse
import json
from pathlib import Path

import torch

from training import marks, shape
from training.batches import GROUPS, LENGTHS, MemoTokenizer, Row, collate, encode, held_out_examples, release_code
from training.model import Nano, answer

NANO = Path(__file__).parent.parent / "clefquant" / "release" / "nano"


def nano_from(folder: Path) -> Nano:
    """The trained parts of a nano release folder."""
    from safetensors.torch import load_file

    backbone = "model.language_model."
    model = Nano()
    tensors = load_file(folder / "model.safetensors")
    found = {f"backbone.{k.removeprefix(backbone)}": v for k, v in tensors.items() if k.startswith(backbone)}
    found["lm_head.weight"] = tensors["lm_head.weight"]
    found |= {f"head.{key}": value for key, value in load_file(folder / "joint_head.safetensors").items()}
    model.load_state_dict({key: value.float() for key, value in found.items()}, strict=True)
    return model.eval()


def main() -> None:
    """Print the table as Markdown and write it as JSON beside this file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", default=NANO)
    parser.add_argument("--count", type=int, default=400, help="examples per group")
    parser.add_argument("--rows", type=int, default=8, help="records of a batch")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "marks.json")
    args = parser.parse_args()
    code, tokenizer, model = release_code(), MemoTokenizer(args.folder / "tokenizer.json"), nano_from(args.folder)
    encoded = [encode(code, tokenizer, example) for example in held_out_examples("evaluation", args.count)]
    rows: list[Row] = sorted((row for row in encoded if row is not None), key=lambda row: len(row.ids))
    pad = shape.SPECIAL_TOKENS.index(shape.PAD)
    batches = []
    for start in range(0, len(rows), args.rows):
        part = rows[start : start + args.rows]
        longest = -(-max(len(row.ids) for row in part) // 64) * 64
        batches.append(collate(part, min(longest, LENGTHS[-1]), len(part), pad))
    table = marks.table(answer(model, batches, torch.device("cpu")))
    args.out.write_text(json.dumps({"groups": GROUPS, "count": args.count, "rows": table}, indent=1) + "\n")
    print(marks.text(table))


if __name__ == "__main__":
    main()
