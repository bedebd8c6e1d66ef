"""A quantized release in memory as a server would run it: weights as stored, inputs rounded, nothing from any other
folder.

    weight   compressed-tensors' decompressor on the stored tensors, then cast to the compute dtype
    table    row v = float32(int8 row v) * scale[v], then cast (``clef_head/tables_int8.safetensors``)
    input    rounded as compressed-tensors rounds it, once for all linears that read the same tensor

The model is built without weights and each tensor is read, dequantized and put in place on its own, so a release
needs the memory of its BF16 form on the device and of one tensor beside it. The transformers quantizer is not
involved.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from clefquant.errors import InputError
from clefquant.quantize.model import read_tensor
from clefquant.quantize.simulate import InputRounding
from clefquant.release.code import release_code
from clefquant.release.headers import TensorInfo
from clefquant.release.load import LoadedRelease, default_device, default_dtype, empty_backbone
from clefquant.release.release import HEAD_CONFIG_FILE, HEAD_FILE, MARKER, Release, open_release
from clefquant.verify.stored_weights import int8_tables, schemes_of, stored_weight

_UNUSED_PREFIX = "mtp."  # next-token heads: in some backbones, in no decision model


@contextmanager
def load_simulated(
    release: Release | str | Path,
    *,
    activations: bool = True,
    device: torch.device | None = None,
    dtype: torch.dtype | None = None,
) -> Iterator[LoadedRelease]:
    """Yield the release as its server would answer. ``activations=False`` leaves inputs unrounded (weight-only).

    InputError when the folder is quantized in a way other than compressed-tensors, or lacks a tensor of the model.
    """
    opened = release if isinstance(release, Release) else open_release(release)
    device = device or default_device()
    dtype = dtype or default_dtype(device)
    scheme_of = schemes_of(opened)
    backbone = empty_backbone(opened.path, dtype)
    backbone.config.use_cache = False
    rounding = InputRounding()
    for name, tensors in _by_module(opened).items():
        module = _submodule(backbone, name, opened)
        local = {leaf: read_tensor(info).to(device) for leaf, info in tensors.items()}
        scheme = scheme_of(name, module) if "weight_scale" in local else None
        if scheme is None:
            for leaf, tensor in local.items():
                _install(module, leaf, tensor.to(dtype))
            continue
        weight, input_scale = stored_weight(name, local, scheme)
        _install(module, "weight", weight.to(dtype))
        if activations and scheme.input_activations is not None:
            rounding.attach(module, scheme, input_scale)
    for name, rows in int8_tables(opened, device):
        _install(_submodule(backbone, name, opened), "weight", rows.to(dtype))
    config = backbone.config
    if config.tie_word_embeddings or config.get_text_config().tie_word_embeddings:
        backbone.lm_head.weight = backbone.model.language_model.embed_tokens.weight
    if missing := [name for name, parameter in backbone.named_parameters() if parameter.is_meta]:
        raise InputError(
            f"{opened.path} lacks {len(missing)} tensors of the model, first {missing[0]}; the release is incomplete."
        )
    yield _with_head(opened, backbone.to(device), device, dtype)


def _by_module(release: Release) -> dict[str, dict[str, TensorInfo]]:
    """Module name to its stored tensors by local name."""
    found: dict[str, dict[str, TensorInfo]] = {}
    for name, info in release.tensors.items():
        if not name.startswith(_UNUSED_PREFIX):
            module, _, leaf = name.rpartition(".")
            found.setdefault(module, {})[leaf] = info
    return found


def _submodule(backbone: Any, name: str, release: Release) -> torch.nn.Module:
    try:
        module: torch.nn.Module = backbone.get_submodule(name)
    except AttributeError as error:
        raise InputError(
            f"{release.path} holds tensors of {name}, which its config.json does not have: {error}."
        ) from error
    return module


def _install(module: torch.nn.Module, leaf: str, tensor: torch.Tensor) -> None:
    expected = getattr(module, leaf, None)
    if expected is None or expected.shape != tensor.shape:
        found = "no such parameter" if expected is None else f"shape {list(expected.shape)}"
        raise InputError(
            f"a stored tensor {leaf} of shape {list(tensor.shape)} meets {found} in {type(module).__name__}."
        )
    if isinstance(expected, torch.nn.Parameter):
        setattr(module, leaf, torch.nn.Parameter(tensor, requires_grad=False))
    else:
        module.register_buffer(leaf, tensor)


def _with_head(release: Release, backbone: Any, device: torch.device, dtype: torch.dtype) -> LoadedRelease:
    """The rest of the release's own ``load_release_model``: head, processor, model."""
    from safetensors.torch import load_file
    from transformers import AutoProcessor

    code = release_code(release.path)
    head_config = json.loads((release.path / HEAD_CONFIG_FILE).read_text(encoding="utf-8"))
    head_config.pop(MARKER, None)
    head = code.JointSchemaHead(**head_config)
    head.load_state_dict(load_file(release.path / HEAD_FILE), strict=True)
    model = code.ClefModel(backbone, head.to(device=device, dtype=dtype)).eval().requires_grad_(False)
    return LoadedRelease(release, model, AutoProcessor.from_pretrained(release.path), code)
