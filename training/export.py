"""A checkpoint's averaged weights to an ordinary Clef release folder (all but the release's own code file).

    python -m training.export CHECKPOINT TOKENIZER OUT

The vision tower is not trained: it keeps a seeded random start, scaled so that image tokens are as large as text
tokens: records with images run through every step and answers depend on the picture.
"""

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import torch

from training import shape
from training.model import Nano, load

TEMPLATE = """{%- for message in messages -%}
<|im_start|>{{ message.role }}
{% if message.content is string %}{{ message.content }}{% else %}{% for part in message.content %}\
{% if part.type == 'image' %}<|vision_start|><|image_pad|><|vision_end|>{% elif part.type == 'video' %}\
<|vision_start|><|video_pad|><|vision_end|>{% else %}{{ part.text }}{% endif %}{% endfor %}{% endif %}<|im_end|>
{% endfor -%}
{%- if add_generation_prompt -%}
<|im_start|>assistant
{% endif -%}
"""
LICENSE = Path(__file__).parent / "LICENSE"


def save_processor(tokenizer_path: Path, folder: Path) -> Any:
    """Write tokenizer and processor files; return the tokenizer."""
    from transformers import PreTrainedTokenizerFast, Qwen2VLImageProcessor, Qwen3VLProcessor, Qwen3VLVideoProcessor

    tokenizer = PreTrainedTokenizerFast(
        tokenizer_file=str(tokenizer_path), pad_token=shape.PAD, eos_token=shape.END, model_max_length=16384
    )
    tokenizer._set_model_specific_special_tokens(
        {
            "image_token": shape.IMAGE,
            "video_token": shape.VIDEO,
            "vision_bos_token": "<|vision_start|>",
            "vision_eos_token": "<|vision_end|>",
        }
    )
    tokenizer.save_pretrained(folder)
    size = {"shortest_edge": 1024, "longest_edge": 65536}
    images = Qwen2VLImageProcessor(patch_size=16, temporal_patch_size=2, merge_size=2, size=size)
    images.save_pretrained(folder)
    Qwen3VLProcessor(
        image_processor=images,
        tokenizer=tokenizer,
        video_processor=Qwen3VLVideoProcessor(patch_size=16, temporal_patch_size=2, merge_size=2),
        chat_template=TEMPLATE,
    ).save_pretrained(folder)
    return tokenizer


def _scale_vision(release: Any) -> None:
    """Make the merger's output as large as the embeddings, measured on noise."""
    visual = release.model.visual
    pixels = torch.randn(64, 3 * 2 * 16 * 16, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        seen = visual(pixels, grid_thw=torch.tensor([[1, 8, 8]]))
        tokens = seen.pooler_output if hasattr(seen, "pooler_output") else seen
        tokens = torch.cat(list(tokens)) if isinstance(tokens, (tuple, list)) else tokens
        wanted = release.model.language_model.embed_tokens.weight.square().mean().sqrt()
        visual.merger.linear_fc2.weight.mul_(wanted / tokens.square().mean().sqrt())


def export(checkpoint: Path, tokenizer_path: Path, folder: Path, name: str = "average") -> None:
    """Write the release folder, replacing the files it holds."""
    from safetensors.torch import save_file
    from transformers import GenerationConfig, Qwen3_5ForConditionalGeneration

    folder.mkdir(parents=True, exist_ok=True)
    nano = Nano()
    nano.load_state_dict({key: tensor.float() for key, tensor in load(checkpoint, name).items()})
    tokenizer = save_processor(tokenizer_path, folder)
    torch.manual_seed(0)
    config = shape.release_config(tokenizer.convert_tokens_to_ids)
    release = Qwen3_5ForConditionalGeneration(config).float()
    release.model.language_model.load_state_dict(nano.backbone.state_dict())
    release.lm_head.load_state_dict(nano.lm_head.state_dict())
    _scale_vision(release)
    release.config.dtype = torch.bfloat16
    release = release.to(torch.bfloat16)
    release.generation_config = GenerationConfig(
        eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id
    )
    release.save_pretrained(folder)
    tensors = release.state_dict()
    # The index keeps readers that take every *.safetensors from reading the head as backbone.
    index = {
        "metadata": {"total_size": sum(t.nbytes for t in tensors.values())},
        "weight_map": dict.fromkeys(sorted(tensors), "model.safetensors"),
    }
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=1) + "\n")
    head = {key: tensor.bfloat16().contiguous() for key, tensor in nano.head.state_dict().items()}
    save_file(head, folder / "joint_head.safetensors")
    (folder / "joint_head_config.json").write_text(json.dumps(shape.HEAD, indent=1) + "\n")
    shutil.copyfile(LICENSE, folder / "LICENSE")
    for path in folder.glob("*.safetensors"):
        path.chmod(0o644)  # safetensors writes 0600


if __name__ == "__main__":
    export(Path(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]))
