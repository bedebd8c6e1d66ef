"""A random-weight Clef release of a few million parameters: the shape of the real ones, small enough for a CPU.

The head's logit scales are raised so that answers differ clearly between options and depend on the prompt; with
all-random weights every distribution would be near uniform and hide any fault.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from reference import load_reference, reference_file
from safetensors.torch import save_file

VOCABULARY, HIDDEN = 4096, 192
HEAD = {"hidden_size": HIDDEN, "width": 128, "routing_layers": 1, "layers": 2, "heads": 4, "feedforward": 256}
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>",
           "<|video_pad|>", "<think>", "</think>"]  # fmt: skip
CORPUS = ["The quick brown fox jumps over the lazy dog. OPTION FIELD TYPE INSTRUCTION ALLOWED OPTIONS STATE SCHEMA "
          "the invoice was paid on time and the customer asks for a refund of the order, description option_id "
          f'number {n} of {n * 7} items, team billing technical support outage urgent {{"description":"item {n * 7}",'
          f'"option_id":"option {n}"}} Our checkout started returning errors and orders are blocked. Today This week '
          "Can wait Bugs or outages Payments or invoices Which team should handle the message? Is a service down?"
          for n in range(200)]  # fmt: skip


def make_tokenizer(folder: Path) -> Any:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(
        CORPUS, trainers.BpeTrainer(vocab_size=VOCABULARY, special_tokens=SPECIAL, initial_alphabet=alphabet)
    )
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<|endoftext|>", eos_token="<|im_end|>", model_max_length=16384
    )
    names = {"image_token": "<|image_pad|>", "video_token": "<|video_pad|>",
             "vision_bos_token": "<|vision_start|>", "vision_eos_token": "<|vision_end|>"}  # fmt: skip
    fast._set_model_specific_special_tokens(names)
    fast.save_pretrained(folder)
    return fast


def make_config(tokenizer: Any, key_heads: int, vocabulary: int) -> Any:
    from transformers import Qwen3_5Config

    token = tokenizer.convert_tokens_to_ids
    text = {
        "vocab_size": vocabulary, "hidden_size": HIDDEN, "intermediate_size": 3 * HIDDEN, "num_hidden_layers": 8,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64, "linear_key_head_dim": 128,
        "linear_value_head_dim": 128, "linear_num_key_heads": key_heads, "linear_num_value_heads": 2 * key_heads,
        "linear_conv_kernel_dim": 4, "max_position_embeddings": 16384, "tie_word_embeddings": False,
        "layer_types": ["full_attention" if i % 4 == 3 else "linear_attention" for i in range(8)],
        "pad_token_id": token("<|endoftext|>"), "eos_token_id": token("<|im_end|>"),
        "rope_parameters": {"rope_type": "default", "rope_theta": 100000.0, "partial_rotary_factor": 0.25,
                            "mrope_section": [3, 3, 2], "mrope_interleaved": True},
    }  # fmt: skip
    vision = {"depth": 1, "hidden_size": 64, "intermediate_size": 128, "num_heads": 2, "patch_size": 16,
              "spatial_merge_size": 2, "temporal_patch_size": 2, "out_hidden_size": HIDDEN,
              "num_position_embeddings": 64}  # fmt: skip
    return Qwen3_5Config(
        text_config=text, vision_config=vision, tie_word_embeddings=False,
        image_token_id=token("<|image_pad|>"), video_token_id=token("<|video_pad|>"),
        vision_start_token_id=token("<|vision_start|>"), vision_end_token_id=token("<|vision_end|>"),
    )  # fmt: skip


def make_release(folder: Path, key_heads: int = 1, vocabulary: int = VOCABULARY) -> Path:
    """Write the release.

    key_heads: of linear attention, the most tensor-parallel ranks it can run on. vocabulary: rows of both tables.
    The backbone gets an index, so that vLLM does not read the head as backbone weights.
    """
    from transformers import (
        Qwen2VLImageProcessor,
        Qwen3_5ForConditionalGeneration,
        Qwen3VLProcessor,
        Qwen3VLVideoProcessor,
    )

    folder.mkdir(parents=True)
    torch.manual_seed(0)
    tokenizer = make_tokenizer(folder)
    config = make_config(tokenizer, key_heads, vocabulary)
    config.dtype = torch.bfloat16
    model = Qwen3_5ForConditionalGeneration(config)
    with torch.no_grad():
        # Layers write a modest share into the residual stream, as trained ones do. Fully random layers are chaotic:
        # 4-bit activations then differ as much between bf16 and fp32 of one model as between two models.
        for name, parameter in model.named_parameters():
            if name.endswith("embed_tokens.weight"):
                parameter.mul_(14.0)
            elif name.endswith("visual.merger.linear_fc2.weight"):
                parameter.mul_(150.0)  # image tokens as large as text tokens
    model.to(torch.bfloat16).save_pretrained(folder)
    shards = {name: "model.safetensors" for name in model.state_dict()}
    index = {"metadata": {"total_size": sum(t.nbytes for t in model.state_dict().values())}, "weight_map": shards}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))

    head = load_reference().JointSchemaHead(**HEAD)
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05)
        head.prior_logit_scale.fill_(2.0)
        head.joint_logit_scale.fill_(2.0)
    save_file({k: v.bfloat16().contiguous() for k, v in head.state_dict().items()}, folder / "joint_head.safetensors")
    (folder / "joint_head_config.json").write_text(json.dumps(HEAD))
    shutil.copy(reference_file(), folder / "joint_schema_model.py")
    Qwen3VLProcessor(
        image_processor=Qwen2VLImageProcessor(
            patch_size=16, temporal_patch_size=2, merge_size=2, size={"shortest_edge": 1024, "longest_edge": 65536}
        ),
        tokenizer=tokenizer,
        video_processor=Qwen3VLVideoProcessor(
            patch_size=16, temporal_patch_size=2, merge_size=2, size={"shortest_edge": 4096, "longest_edge": 524288}
        ),
        chat_template="{{ messages }}",
    ).save_pretrained(folder)
    return folder


def records() -> list[dict[str, Any]]:
    """Short, long (chunked at 256 tokens), many options, many questions, every type."""
    team = {"type": "choice", "instructions": "Which team should handle the message?",
            "criteria": {"billing": "Payments or invoices", "technical": "Bugs or outages", "other": None}}  # fmt: skip
    urgency = {"type": "score", "instructions": "How urgent?", "criteria": ["Can wait", "This week", "Today"]}
    outage = {"type": "noul", "instructions": "Is a service down?"}
    many = {
        "type": "choice",
        "instructions": {"pick": "one"},
        "criteria": {f"option {i}": f"item {i * 7}" for i in range(77)},
    }
    text = "Our checkout started returning errors and orders are blocked. "
    return [
        {"state": text, "questions": {"team": team, "urgency": urgency, "outage": outage}},
        {"state": {"text": text * 40, "n": 7}, "questions": {"team": team, "outage": outage}},
        {"state": text * 3, "questions": {"many": many}},
        {"state": None, "questions": {f"q{i}": (team, urgency, outage)[i % 3] for i in range(12)}},
        {"state": ["short"], "questions": {"one": {"type": "choice", "criteria": {"only": None}}, "outage": outage}},
        {"state": "the invoice was paid " * 90, "questions": {"urgency": urgency}},
    ]


def make_image(seed: int, width: int, height: int) -> Any:
    """A PIL image of random blocks."""
    from PIL import Image

    generator = torch.Generator().manual_seed(seed)
    blocks = torch.randint(0, 255, (6, 6, 3), generator=generator, dtype=torch.uint8)
    return Image.fromarray(blocks.numpy()).resize((width, height), Image.Resampling.NEAREST)
