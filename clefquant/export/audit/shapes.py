"""What a Qwen3.5 backbone must hold, from ``config.json`` alone: every tensor of the text model, [out, in] of every
matrix."""

from typing import Any

from clefquant.release.units import LAYER_PREFIX

EMBEDDING = "model.language_model.embed_tokens.weight"
LM_HEAD = "lm_head.weight"
TEXT_NEEDED = (
    "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim",
    "linear_num_key_heads", "linear_num_value_heads", "linear_key_head_dim", "linear_value_head_dim",
    "linear_conv_kernel_dim", "vocab_size",
)  # fmt: skip

Shape = tuple[int, ...]


def tied(config: dict[str, Any]) -> bool:
    """Whether lm_head is the embedding; the flag may stand at the top or in ``text_config``."""
    text = config.get("text_config")
    inner = text.get("tie_word_embeddings") if isinstance(text, dict) else None
    return bool(inner if inner is not None else config.get("tie_word_embeddings", False))


def layer_types(text: dict[str, Any]) -> list[str]:
    """``linear_attention`` or ``full_attention`` for every layer."""
    if isinstance(text.get("layer_types"), list):
        return [str(kind) for kind in text["layer_types"]]
    every = int(text.get("full_attention_interval", 4))
    return ["linear_attention" if (n + 1) % every else "full_attention" for n in range(int(text["num_hidden_layers"]))]


def text_shapes(config: dict[str, Any]) -> dict[str, Shape]:
    """Tensor name to its BF16 shape for the whole text model and lm_head. Needs every key of ``TEXT_NEEDED``."""
    text = config["text_config"]
    hidden, vocabulary = int(text["hidden_size"]), int(text["vocab_size"])
    shapes: dict[str, Shape] = {EMBEDDING: (vocabulary, hidden), "model.language_model.norm.weight": (hidden,)}
    if not tied(config):
        shapes[LM_HEAD] = (vocabulary, hidden)
    for number, kind in enumerate(layer_types(text)):
        block = _gdn(text) if kind == "linear_attention" else _attention(text)
        for name, shape in {**block, **_rest(text)}.items():
            shapes[f"{LAYER_PREFIX}{number}.{name}"] = shape
    return shapes


def _rest(text: dict[str, Any]) -> dict[str, Shape]:
    hidden, inner = int(text["hidden_size"]), int(text["intermediate_size"])
    return {
        "input_layernorm.weight": (hidden,),
        "post_attention_layernorm.weight": (hidden,),
        "mlp.gate_proj.weight": (inner, hidden),
        "mlp.up_proj.weight": (inner, hidden),
        "mlp.down_proj.weight": (hidden, inner),
    }


def _gdn(text: dict[str, Any]) -> dict[str, Shape]:
    hidden, heads = int(text["hidden_size"]), int(text["linear_num_value_heads"])
    value = heads * int(text["linear_value_head_dim"])
    key = int(text["linear_num_key_heads"]) * int(text["linear_key_head_dim"])
    return {
        "linear_attn.in_proj_qkv.weight": (2 * key + value, hidden),
        "linear_attn.in_proj_z.weight": (value, hidden),
        "linear_attn.in_proj_a.weight": (heads, hidden),
        "linear_attn.in_proj_b.weight": (heads, hidden),
        "linear_attn.out_proj.weight": (hidden, value),
        "linear_attn.conv1d.weight": (2 * key + value, 1, int(text["linear_conv_kernel_dim"])),
        "linear_attn.A_log": (heads,),
        "linear_attn.dt_bias": (heads,),
        "linear_attn.norm.weight": (int(text["linear_value_head_dim"]),),
    }


def _attention(text: dict[str, Any]) -> dict[str, Shape]:
    hidden, size = int(text["hidden_size"]), int(text["head_dim"])
    queries, keys = int(text["num_attention_heads"]) * size, int(text["num_key_value_heads"]) * size
    gate = 2 if text.get("attn_output_gate", True) else 1  # q_proj also makes the output gate
    return {
        "self_attn.q_proj.weight": (gate * queries, hidden),
        "self_attn.k_proj.weight": (keys, hidden),
        "self_attn.v_proj.weight": (keys, hidden),
        "self_attn.o_proj.weight": (hidden, queries),
        "self_attn.q_norm.weight": (size,),
        "self_attn.k_norm.weight": (size,),
    }
