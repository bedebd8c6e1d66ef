"""The shape of the nano Clef: a real Qwen3.5 of eight layers and a joint head, under 16 MB in bfloat16."""

from typing import Any

SPECIAL_TOKENS = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|image_pad|>",
    "<|video_pad|>",
    "<think>",
    "</think>",
)
PAD, END, IMAGE, VIDEO = "<|endoftext|>", "<|im_end|>", "<|image_pad|>", "<|video_pad|>"
VOCABULARY = 3072
HIDDEN, INTERMEDIATE, LAYERS = 256, 512, 8
HEADS, KEY_VALUE_HEADS, HEAD_DIM = 4, 2, 64
LINEAR_KEY_HEADS, LINEAR_VALUE_HEADS, LINEAR_HEAD_DIM, CONVOLUTION = 1, 2, 128, 4
ROTARY_DIM, ROTARY_BASE = 16, 100000.0
EPSILON = 1e-6
LAYER_TYPES = tuple("full_attention" if i % 4 == 3 else "linear_attention" for i in range(LAYERS))
HEAD: dict[str, int] = {
    "hidden_size": HIDDEN,
    "width": 128,
    "routing_layers": 1,
    "layers": 2,
    "heads": 4,
    "feedforward": 256,
}
"""The keyword arguments of the release's joint head."""


def release_config(token_id: Any) -> Any:
    """The transformers configuration; ``token_id`` maps a special token's text to its id."""
    from transformers import Qwen3_5Config

    text = {
        "vocab_size": VOCABULARY,
        "hidden_size": HIDDEN,
        "intermediate_size": INTERMEDIATE,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KEY_VALUE_HEADS,
        "head_dim": HEAD_DIM,
        "linear_key_head_dim": LINEAR_HEAD_DIM,
        "linear_value_head_dim": LINEAR_HEAD_DIM,
        "linear_num_key_heads": LINEAR_KEY_HEADS,
        "linear_num_value_heads": LINEAR_VALUE_HEADS,
        "linear_conv_kernel_dim": CONVOLUTION,
        "max_position_embeddings": 16384,
        "rms_norm_eps": EPSILON,
        "tie_word_embeddings": False,
        "layer_types": list(LAYER_TYPES),
        "pad_token_id": token_id(PAD),
        "eos_token_id": token_id(END),
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": ROTARY_BASE,
            "partial_rotary_factor": ROTARY_DIM / HEAD_DIM,
            "mrope_section": [3, 3, 2],
            "mrope_interleaved": True,
        },
    }
    vision = {
        "depth": 1,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_heads": 2,
        "patch_size": 16,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
        "out_hidden_size": HIDDEN,
        "num_position_embeddings": 64,
    }
    return Qwen3_5Config(
        text_config=text,
        vision_config=vision,
        tie_word_embeddings=False,
        image_token_id=token_id(IMAGE),
        video_token_id=token_id(VIDEO),
        vision_start_token_id=token_id("<|vision_start|>"),
        vision_end_token_id=token_id("<|vision_end|>"),
    )
