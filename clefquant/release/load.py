"""Loading a release through its own loader, and running records through it in batches."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from clefquant.release.code import release_code
from clefquant.release.release import Release

#: Tokens of one padded batch on a CPU, where larger batches only cost memory.
DEFAULT_BATCH_TOKENS = 4096
_GPU_BATCH_TOKENS = 16384


@dataclass(frozen=True)
class LoadedRelease:
    """A release in memory: the release's own model object, its processor and its code."""

    release: Release
    model: Any
    processor: Any
    code: ModuleType

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return next(iter(self.model.parameters())).device  # type: ignore[no-any-return]

    @property
    def text_model(self) -> Any:
        """The decoder: ``embed_tokens``, ``layers``, ``norm``."""
        return self.model.language_model.model.language_model

    def module(self, name: str) -> torch.nn.Module:
        """The backbone module of a tensor's name without its last part
        (``model.language_model.layers.0.mlp.up_proj``).
        """
        return self.model.language_model.get_submodule(name)  # type: ignore[no-any-return]


def default_device() -> torch.device:
    """The GPU when there is one."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def default_dtype(device: torch.device) -> torch.dtype:
    """bfloat16 on a GPU and float32 on a CPU, where bfloat16 is some twenty times slower."""
    return torch.bfloat16 if device.type == "cuda" else torch.float32


def batch_tokens_on(device: torch.device) -> int:
    """Tokens of one padded batch: enough to keep the device busy."""
    return _GPU_BATCH_TOKENS if device.type == "cuda" else DEFAULT_BATCH_TOKENS


def empty_backbone(folder: Path, dtype: torch.dtype) -> Any:
    """The backbone of a release folder with parameters on the meta device and real buffers (rotary frequencies are in
    no file); quantization is left out.
    """
    from accelerate import init_empty_weights
    from transformers import AutoConfig, Qwen3_5ForConditionalGeneration

    config = AutoConfig.from_pretrained(folder)
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    with init_empty_weights(include_buffers=False):
        backbone = Qwen3_5ForConditionalGeneration._from_config(config, dtype=dtype)
    return backbone.eval().requires_grad_(False)


def load_release(
    release: Release, *, device: torch.device | None = None, dtype: torch.dtype | None = None, **keywords: Any
) -> LoadedRelease:
    """Load with the release's own ``load_release_model``; ``keywords`` go to ``from_pretrained``.

    ``dtype`` defaults to :func:`default_dtype`.
    """
    device = device or default_device()
    dtype = dtype or default_dtype(device)
    code = release_code(release.path)
    model, processor = code.load_release_model(release.path, device=device, dtype=dtype, **keywords)
    return LoadedRelease(release, model.eval().requires_grad_(False), processor, code)


def batches(lengths: Sequence[int], batch_tokens: int) -> Iterator[list[int]]:
    """Indices grouped by similar length so that a padded batch holds at most ``batch_tokens`` tokens (or one
    record).

    The grouping depends on the lengths alone, longest first, so that it is the same in every run and memory is met
    early.
    """
    order = sorted(range(len(lengths)), key=lambda index: (-lengths[index], index))
    current: list[int] = []
    for index in order:
        if current and lengths[current[0]] * (len(current) + 1) > batch_tokens:
            yield current
            current = []
        current.append(index)
    if current:
        yield current


def grouped(encoded: Sequence[Any], batch_tokens: int) -> Iterator[list[int]]:
    """Indices of records per batch: text by similar length, records with media alone."""
    plain = [index for index, record in enumerate(encoded) if record.media is None]
    for group in batches([len(encoded[index].input_ids) for index in plain], batch_tokens):
        yield [plain[index] for index in group]
    for index, record in enumerate(encoded):
        if record.media is not None:
            yield [index]


@torch.inference_mode()
def option_logits(
    loaded: LoadedRelease, encoded: Sequence[Any], *, batch_tokens: int = DEFAULT_BATCH_TOKENS
) -> Iterator[tuple[int, list[torch.Tensor]]]:
    """Yield (index, one float32 CPU vector of option logits per question), batch by batch.

    ``encoded``: the release's ``EncodedRecord``s. Records with media run one by one, through the vision tower.
    """
    pad = loaded.processor.tokenizer.pad_token_id
    for group in grouped(encoded, batch_tokens):
        batch = loaded.code.collate_records([encoded[index] for index in group], pad, loaded.device)
        for index, questions in zip(group, loaded.model(batch), strict=True):
            yield index, [logits.float().cpu() for logits in questions]
