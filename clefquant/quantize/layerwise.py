"""Running a calibration set through the decoder one layer at a time, with one layer's weights in memory.

The set's hidden states wait between layers (on the GPU, in RAM, then on disk), source weights are read once, each
layer's while the one before it runs, and embedding rows are read from the mapped file as prompts need them. What a
layer computes is what it computes in the whole model: the model's own code makes positions and masks and runs each
layer.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

from clefquant.errors import InputError
from clefquant.progress import SILENT, Progress
from clefquant.quantize.journal import NO_JOURNAL, Journal
from clefquant.quantize.ranks import ranks
from clefquant.quantize.reader import read_layers, read_prefix
from clefquant.release.code import release_code
from clefquant.release.headers import TensorInfo
from clefquant.release.load import batch_tokens_on, default_device, default_dtype, empty_backbone, grouped
from clefquant.release.recording import recording
from clefquant.release.release import Release
from clefquant.release.states import DEFAULT_CACHE_BYTES, States
from clefquant.release.units import LAYER_PREFIX

_TEXT, _VISION = "model.language_model.", "model.visual."


@dataclass(frozen=True)
class LayerBatch:
    """One padded batch. ``real``: indices [T] of the tokens of the flattened batch that are not padding (None: all
    are real). ``calls``: each layer's keyword arguments.
    """

    number: int
    real: torch.Tensor | None
    calls: tuple[dict[str, Any], ...]

    def tokens(self, x: torch.Tensor) -> torch.Tensor:
        """The vectors [T, I] of ``x`` [B, L, I] that are not padding."""
        flat = x.flatten(0, 1)
        return flat if self.real is None else flat.index_select(0, self.real)


@dataclass(frozen=True)
class LayerStep:
    """One layer with its weights. ``source``: its tensors as stored, by full name, on the device. ``run``: every batch
    through it; the last run's outputs are what the next layer reads. ``running``: the batch that is running, for hooks.
    """

    number: int
    module: torch.nn.Module
    source: dict[str, torch.Tensor]
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
        batch_tokens: int | None = None,
        cache_bytes: int = DEFAULT_CACHE_BYTES,
    ) -> None:
        if not encoded:
            raise InputError("the calibration set has no records; build one with `clefquant calibrate`.")
        self._release, self._encoded = release, encoded
        self._device = device or default_device()
        self._dtype = dtype or default_dtype(self._device)
        self._batch_tokens = batch_tokens or batch_tokens_on(self._device)
        self._cache_bytes = cache_bytes
        self._backbone = self._skeleton()
        self._running: LayerBatch

    @torch.inference_mode()
    def steps(self, progress: Progress = SILENT, journal: Journal = NO_JOURNAL) -> Iterator[LayerStep]:
        """Yield the layers in order, from where ``journal`` left off; each must be run at least once before the next
        is asked for.
        """
        layers = self._backbone.model.language_model.layers
        tokens = sum(len(record.input_ids) for record in self._encoded)
        with (
            States(self._cache_bytes) as states,
            progress.task("calibrating", tokens, "tok") as task,
            closing(read_layers(self._release, range(journal.layer, len(layers)), self._device)) as sources,
        ):
            prepared = list(self._prepare(states))
            for batch in prepared if journal.layer else ():
                states.put(batch.number, journal.state(batch.number).to(self._device))
            task.advance(tokens * journal.layer / len(layers))
            for number, source in sources:
                layer = layers[number]
                task.note(f"layer {number}")
                _fill(layer, f"{LAYER_PREFIX}{number}.", source, self._dtype)
                yield LayerStep(
                    number, layer, source, partial(self._run, number, layer, prepared, states), lambda: self._running
                )
                for batch in prepared:
                    states.put(batch.number, states.get(("next", batch.number), self._device))
                    states.drop(("next", batch.number))
                layer.to("meta")
                source.clear()
                task.advance(tokens / len(layers))
                journal.finish(number, lambda: ((b.number, states.get(b.number, self._device)) for b in prepared))

    def _run(self, number: int, layer: torch.nn.Module, prepared: Sequence[LayerBatch], states: States) -> None:
        for batch in prepared:
            self._running = batch
            states.put(("next", batch.number), layer(states.get(batch.number, self._device), **batch.calls[number]))

    def _skeleton(self) -> Any:
        """The empty backbone, its embedding read from the file; the vision tower only when needed."""
        backbone = empty_backbone(self._release.path, self._dtype)
        text = backbone.model.language_model
        text.embed_tokens = _Rows(self._release.tensors[f"{_TEXT}embed_tokens.weight"], self._device, self._dtype)
        parts = {f"{_TEXT}norm.": text.norm}
        if any(record.media is not None for record in self._encoded):
            parts[_VISION] = backbone.model.visual
        for prefix, module in parts.items():
            _fill(module, prefix, read_prefix(self._release, prefix, self._device), self._dtype)
        for name, buffer in list(backbone.named_buffers()):
            owner, _, leaf = name.rpartition(".")
            setattr(backbone.get_submodule(owner), leaf, buffer.to(self._device))
        return backbone

    def _prepare(self, states: States) -> Iterator[LayerBatch]:
        """Embed every batch and record how the model calls its layers on it."""
        code = release_code(self._release.path)
        text = self._backbone.model.language_model
        pad = self._backbone.config.get_text_config().pad_token_id or 0
        groups = list(grouped(self._encoded, self._batch_tokens))
        if len(groups) < ranks().size:
            raise InputError(
                f"the set makes {len(groups)} batches of about {self._batch_tokens:,} tokens for {ranks().size} "
                "processes; use fewer processes or more records."
            )
        for number, group in enumerate(groups):
            if not ranks().owns(number):
                continue
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
            mask = batch["attention_mask"].flatten().bool()
            real = None if bool(mask.all()) else mask.nonzero().flatten()
            yield LayerBatch(number, real, tuple(recorder.keywords for recorder in recorders))


def _fill(module: torch.nn.Module, prefix: str, source: Mapping[str, torch.Tensor], dtype: torch.dtype) -> None:
    """Give a module the parameters of ``source`` (by full name)."""
    for name, parameter in list(module.named_parameters()):
        weight = source[prefix + name].to(dtype)
        assert weight.shape == parameter.shape, prefix + name
        owner, _, leaf = name.rpartition(".")
        setattr(module.get_submodule(owner), leaf, torch.nn.Parameter(weight, requires_grad=False))


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
