"""What int8 tables change in the answers: option probabilities of an evaluation set, with and without them."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch

from clefquant.calibration.stored import open_set
from clefquant.errors import InputError
from clefquant.export.int8_rows import dequantize_rows, quantize_rows
from clefquant.export.tables import TABLES
from clefquant.progress import SILENT, Progress
from clefquant.release.load import LoadedRelease, load_release, option_logits
from clefquant.release.release import open_release

_BLOCK_ROWS = 4096


class TableEffect(NamedTuple):
    """``kl``: mean KL(BF16 tables ‖ int8 tables) in nats per question; ``agreement``: share with the same top
    option."""

    questions: int
    kl: float
    agreement: float
    max_difference: float


def table_effect(folder: Path, evaluation: Path, *, progress: Progress = SILENT) -> TableEffect:
    """Answer the set twice with the model in ``folder``, everything but the tables unchanged.

    Questions with a single option are left out. InputError when no other is there.
    """
    release = open_release(folder)
    keywords: dict[str, Any] = {}
    if release.quantization is not None:
        from transformers import CompressedTensorsConfig

        # decompressed weights are BF16, whatever the rest is
        keywords = {"quantization_config": CompressedTensorsConfig(run_compressed=False), "dtype": torch.bfloat16}
    loaded = load_release(release, **keywords)
    encoded = [record.encoded for record in open_set(evaluation, release.path, loaded.code)]
    if not any(len(question.option_ids) > 1 for record in encoded for question in record.questions):
        raise InputError(f"{evaluation} holds no question with two or more options; give a set that has some.")
    with progress.task("answering", 2 * len(encoded), "records") as task:
        before = {}
        for index, questions in option_logits(loaded, encoded):
            before[index] = [logits.double().log_softmax(-1) for logits in questions]
            task.advance()
        kl, same, worst = [], [], 0.0
        with int8_tables(loaded):
            for index, questions in option_logits(loaded, encoded):
                for p, logits in zip(before[index], questions, strict=True):
                    if len(p) < 2:  # one option alone always agrees
                        continue
                    q = logits.double().log_softmax(-1)
                    kl.append(float((p.exp() * (p - q)).sum()))
                    same.append(bool(p.argmax() == q.argmax()))
                    worst = max(worst, float((p.exp() - q.exp()).abs().max()))
                task.advance()
    return TableEffect(len(kl), sum(kl) / len(kl), sum(same) / len(same), worst)


@contextmanager
def int8_tables(loaded: LoadedRelease) -> Iterator[None]:
    """Within the block the model reads its tables as int8 readers do; the very same tensors are put back."""
    saved = []
    for name in TABLES.values():
        module = loaded.module(name.removesuffix(".weight"))
        weight = module.weight
        assert isinstance(weight, torch.nn.Parameter)
        read = torch.empty_like(weight.data)
        for start in range(0, len(weight), _BLOCK_ROWS):
            rows = weight.data[start : start + _BLOCK_ROWS].float()
            read[start : start + _BLOCK_ROWS] = dequantize_rows(quantize_rows(rows)).to(weight.dtype)
        module.weight = torch.nn.Parameter(read, requires_grad=False)
        saved.append((module, weight))
    try:
        yield
    finally:
        for module, weight in saved:
            module.weight = weight
