"""Running a calibration set through the decoder one layer at a time, with one layer's weights in memory.

The set's hidden states wait between layers (in RAM up to a limit, then on disk), source weights are read once, and
embedding rows are read from the mapped file as prompts need them. What a layer computes is what it computes in the
whole model: the model's own code makes positions and masks and runs each layer.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

from clefquant.errors import InputError
from clefquant.progress import SILENT, Progress
from clefquant.quantize.model import read_tensor
from clefquant.release.code import release_code
from clefquant.release.headers import TensorInfo
from clefquant.release.load import DEFAULT_BATCH_TOKENS, default_device, default_dtype, empty_backbone, grouped
from clefquant.release.recording import recording
from clefquant.release.release import Release
from clefquant.release.states import DEFAULT_CACHE_BYTES, States
from clefquant.release.units import LAYER_PREFIX

_TEXT, _VISION = "model.language_model.", "model.visual."


@dataclass(frozen=True)
class LayerBatch:
    """One padded batch. ``real_BL``: true where a token is not padding. ``calls``: each layer's keyword arguments."""

    number: int
    real_BL: torch.Tensor
    calls: tuple[dict[str, Any], ...]


@dataclass(frozen=True)
class LayerStep:
    """One layer with its weights. ``run``: every batch through it; the last run's outputs are what the next layer
    reads.

    ``running``: the batch that is running, for hooks.
    """

    number: int
    module: torch.nn.Module
    run: Callable[[], None]
    running: Callable[[], LayerBatch]


class Layerwise:
    """The decoder of ``release`` over ``encoded`` (the release's ``EncodedRecord``s); ``dtype`` as in
    ``load_release``.
    """

    def __init__(
        self,
        release: Release,
        encoded: Sequence[Any],
        *,
        device: torch.device | None = None,
        dtype: torch.dtype | None = None,
        batch_tokens: int = DEFAULT_BATCH_TOKENS,
        cache_bytes: int = DEFAULT_CACHE_BYTES,
    ) -> None:
        if not encoded:
            raise InputError("the calibration set has no records; build one with `clefquant calibrate`.")
        self._release, self._encoded, self._batch_tokens = release, encoded, batch_tokens
        self._device = device or default_device()
        self._dtype = dtype or default_dtype(self._device)
        self._cache_bytes = cache_bytes
        self._backbone = self._skeleton()
        self._running: LayerBatch

    @torch.inference_mode()
    def steps(self, progress: Progress = SILENT) -> Iterator[LayerStep]:
        """Yield the layers in order; each must be run at least once before the next is asked for."""
        text = self._backbone.model.language_model
        tokens = sum(len(record.input_ids) for record in self._encoded)
        with States(self._cache_bytes) as states, progress.task("calibrating", tokens, "tok") as task:
            prepared = list(self._prepare(states))
            for number, layer in enumerate(text.layers):
                task.note(f"layer {number}")
                self._fill(layer, f"{LAYER_PREFIX}{number}.")
                yield LayerStep(
                    number, layer, partial(self._run, number, layer, prepared, states), lambda: self._running
                )
                for batch in prepared:
                    states.put(batch.number, states.get(("next", batch.number), self._device))
                    states.drop(("next", batch.number))
                layer.to("meta")
                task.advance(tokens / len(text.layers))

    def _run(self, number: int, layer: torch.nn.Module, prepared: Sequence[LayerBatch], states: States) -> None:
        for batch in prepared:
            self._running = batch
            states.put(("next", batch.number), layer(states.get(batch.number, self._device), **batch.calls[number]))

    def _skeleton(self) -> Any:
        """The empty backbone, its embedding read from the file; the vision tower only when needed."""
        backbone = empty_backbone(self._release.path, self._dtype)
        backbone.model.language_model.embed_tokens = _Rows(
            self._release.tensors[f"{_TEXT}embed_tokens.weight"], self._device, self._dtype
        )
        self._fill(backbone.model.language_model.norm, f"{_TEXT}norm.")
        if any(record.media is not None for record in self._encoded):
            self._fill(backbone.model.visual, _VISION)
        return backbone

    def _fill(self, module: torch.nn.Module, prefix: str) -> None:
        """Read a module's parameters from the source."""
        for name, parameter in list(module.named_parameters()):
            weight = read_tensor(self._release.tensors[prefix + name]).to(self._device, self._dtype)
            assert weight.shape == parameter.shape, prefix + name
            owner, _, leaf = name.rpartition(".")
            setattr(module.get_submodule(owner), leaf, torch.nn.Parameter(weight, requires_grad=False))

    def _prepare(self, states: States) -> Iterator[LayerBatch]:
        """Embed every batch and record how the model calls its layers on it."""
        code = release_code(self._release.path)
        text = self._backbone.model.language_model
        pad = self._backbone.config.get_text_config().pad_token_id or 0
        for number, group in enumerate(grouped(self._encoded, self._batch_tokens)):
            batch = code.collate_records([self._encoded[index] for index in group], pad, self._device)
            model = self._backbone.model if batch["media"] else text
            with recording(text) as recorders:
                model(
                    input_ids=batch["input_ids"],
                    attention_mask=batch["attention_mask"],
                    use_cache=False,
                    **batch["media"],
                )
            assert recorders[0].hidden is not None
            states.put(number, recorders[0].hidden)
            yield LayerBatch(number, batch["attention_mask"].bool(), tuple(recorder.keywords for recorder in recorders))


class _Rows(torch.nn.Module):
    """An embedding whose rows are read from the mapped weight file when they are asked for."""

    def __init__(self, info: TensorInfo, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__()
        if info.dtype != "BF16":
            raise InputError(f"{info.file} stores the embedding as {info.dtype}; a Clef release has BF16.")
        self._table = np.memmap(info.file, dtype=np.int16, mode="r", offset=info.start, shape=info.shape)
        self._device, self._dtype = device, dtype

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Rows [..., H] of token ids [...]."""
        rows = torch.from_numpy(self._table[ids.cpu().numpy()])
        return rows.view(torch.bfloat16).to(self._device, self._dtype)
