"""What a quantized folder stores, dequantized: linears by compressed-tensors' decompressors, tables from int8 rows."""

from collections.abc import Callable, Iterator
from typing import Any

import torch

from clefquant.errors import InputError
from clefquant.quantize.model import read_tensor
from clefquant.quantize.unit import dequantize
from clefquant.release.headers import read_header
from clefquant.release.release import TABLES_FILE, Release

#: Table name in that file to the module it stands for.
TABLE_MODULES = {"embed_tokens": "model.language_model.embed_tokens", "lm_head": "lm_head"}

SchemeOf = Callable[[str, torch.nn.Module], Any]


def schemes_of(release: Release) -> SchemeOf:
    """From a module's name and object to its compressed-tensors scheme, with ``format`` set.

    Targets are matched as compressed-tensors does: exact names, ``re:`` patterns, class names. InputError when the
    release is quantized by another method, or when a module that stores a scale is in no group or in two.
    """
    config = release.quantization
    if config is None:
        return lambda name, _: _refuse(release, name, "config.json has no quantization_config")
    method = config.get("quant_method", "compressed-tensors")
    if method != "compressed-tensors":
        raise InputError(
            f"{release.path} is quantized by {method!r}; compressed-tensors alone can be simulated. "
            "Use --backend vllm or a server's URL."
        )
    from compressed_tensors.config import CompressionFormat
    from compressed_tensors.quantization import QuantizationConfig
    from compressed_tensors.utils import is_match

    parsed = QuantizationConfig.model_validate(config)
    groups = list(parsed.config_groups.values())

    def scheme_of(name: str, module: torch.nn.Module) -> Any:
        found = [scheme for scheme in groups if is_match(name, module, scheme.targets, parsed.ignore or [])]
        if len(found) != 1:
            return _refuse(release, name, f"{len(found)} config_groups of config.json match it")
        fmt = found[0].format or parsed.format
        return found[0].model_copy(update={"format": CompressionFormat(fmt)})

    return scheme_of


def _refuse(release: Release, name: str, why: str) -> Any:
    raise InputError(f"{release.path} stores {name} quantized, but {why}; run `clefquant audit` on it.")


def stored_weight(name: str, tensors: dict[str, torch.Tensor], scheme: Any) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The dequantized weight [O, I] and the input's global scale [1], if it has one."""
    try:
        weight = dequantize(tensors, scheme)
    except (KeyError, RuntimeError, ValueError) as error:
        raise InputError(
            f"{name} cannot be read as {scheme.format.value}: {error}; run `clefquant audit` on the release."
        ) from error
    return weight, tensors.get("input_global_scale")


def int8_tables(release: Release, device: torch.device) -> Iterator[tuple[str, torch.Tensor]]:
    """Module name and dequantized rows [V, H] float32 of each table the release stores as int8; none for most
    releases."""
    path = release.path / TABLES_FILE
    if not path.is_file():
        return
    tensors = read_header(path)
    for table, module in TABLE_MODULES.items():
        if f"{table}.weight" not in tensors:
            continue
        rows = read_tensor(tensors[f"{table}.weight"]).to(device)
        scale = read_tensor(tensors[f"{table}.scale"]).to(device).float().reshape(-1, 1)
        yield module, rows.float() * scale
