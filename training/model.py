"""Backbone, lm_head and joint head together: logits, losses, answers on held-out batches."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from clefquant.calibration.generators import FAMILIES
from training import shape
from training.backbone import Backbone
from training.batches import GROUPS, Ints
from training.head import BatchedHead, HeadBatch
from training.marks import Answer


class Moved:
    """A batch on its device: one copy of one flat buffer, cut into named tensors."""

    def __init__(self, arrays: dict[str, Ints], device: torch.device) -> None:
        flat = torch.from_numpy(np.concatenate([a.reshape(-1) for a in arrays.values()]))
        if device.type == "cuda":
            flat = flat.pin_memory()
        moved = flat.to(device, non_blocking=True).long()
        self._host = flat  # kept until the copy is done
        tensors: dict[str, Tensor] = {}
        start = 0
        for name, array in arrays.items():
            tensors[name] = moved[start : start + array.size].view(array.shape)
            start += array.size
        self.ids, self.label, self.group = tensors["ids"], tensors["label"], tensors["group"]
        self.tokens = int(arrays["length"].sum())
        slots = tuple(int(np.max(arrays[n])) + 1 for n in ("question_slot", "option_slot", "option_column"))
        names = [name for name in HeadBatch._fields if name != "slots"]
        self.head = HeadBatch(**{name: tensors[name] for name in names}, slots=slots)  # type: ignore[arg-type]


class Nano(nn.Module):
    """Everything that is trained. The vision tower is not: it keeps its random start (see export)."""

    def __init__(self, dropout: float = 0.1) -> None:
        super().__init__()
        self.backbone = Backbone()
        self.lm_head = nn.Linear(shape.HIDDEN, shape.VOCABULARY, bias=False)
        nn.init.normal_(self.lm_head.weight, std=0.05)
        self.head = BatchedHead(dropout)
        with torch.no_grad():
            # From zero scales the head would learn slowly: start with the gate half open and cosines that matter.
            nn.init.constant_(self.head.get_parameter("joint_logit_scale"), 1.5)

    def forward(self, batch: Moved) -> tuple[Tensor, Tensor]:
        """Logits [Q, options] and final hidden states. On a GPU in bfloat16, else in float32."""
        cuda = batch.ids.is_cuda
        hidden = self.backbone(batch.ids, torch.bfloat16 if cuda else torch.float32)
        with torch.autocast(batch.ids.device.type, torch.bfloat16, enabled=cuda):
            logits = self.head(hidden, batch.ids, batch.head, self.lm_head.weight)
        return logits.float(), hidden

    def loss(
        self, batch: Moved, language: float, smoothing: float = 0.0, samples: int = 16384
    ) -> tuple[Tensor, Tensor]:
        """Cross-entropy of the answers, and with weight ``language`` that of the next token at sampled places.

        ``smoothing`` of the labels is for public text alone: its few rows are seen many times and would be learnt
        by heart.

        The joint head reads lm_head's rows as word meanings; the second loss gives them one.
        """
        logits, hidden = self(batch)
        log_share = logits.log_softmax(-1)
        there = torch.isfinite(logits)
        gold = -log_share.gather(1, batch.label[:, None]).squeeze(1)
        spread = -log_share.masked_fill(~there, 0.0).sum(1) / there.sum(1)
        amount = smoothing * (batch.group >= len(FAMILIES)).float()
        answers = (gold + amount * (spread - gold)).mean()
        rows, length = batch.ids.shape
        place = torch.randint(rows * length, (min(samples, rows * length),), device=batch.ids.device)
        inside = (place % length + 1) < batch.head.length[place // length]
        target = batch.ids.reshape(-1)[(place + 1).clamp(max=rows * length - 1)]
        scores = F.linear(hidden.reshape(rows * length, -1)[place], self.lm_head.weight.to(hidden.dtype)).float()
        words = F.cross_entropy(scores, target.masked_fill(~inside, -100))
        return answers + language * words, gold.mean().detach()


@torch.no_grad()
def answer(model: Nano, batches: Iterable[dict[str, Ints]], device: torch.device) -> list[Answer]:
    """Every question's probabilities."""
    was_training = model.training
    model.eval()
    answers: list[Answer] = []
    for arrays in batches:
        logits = model(Moved(arrays, device))[0].double().softmax(-1).cpu().numpy()
        counts = np.bincount(arrays["option_question"], minlength=len(arrays["label"]))
        for index, count in enumerate(counts):
            answers.append(
                Answer(
                    GROUPS[arrays["group"][index]],
                    int(arrays["question_type"][index]),
                    int(arrays["label"][index]),
                    logits[index, :count],
                )
            )
    model.train(was_training)
    return answers


def save(tensors: dict[str, Tensor], folder: Path, name: str, dtype: torch.dtype, files: int) -> None:
    """Write ``name-I.safetensors``, cut by size into ``files``."""
    from safetensors.torch import save_file

    total, done = sum(t.numel() for t in tensors.values()), 0
    parts: list[dict[str, Tensor]] = [{} for _ in range(files)]
    for key, tensor in tensors.items():
        parts[min(files - 1, done * files // total)][key] = tensor.detach().to("cpu", dtype).contiguous()
        done += tensor.numel()
    folder.mkdir(parents=True, exist_ok=True)
    for index, part in enumerate(parts):
        save_file(part, folder / f"{name}-{index}.safetensors")


def load(folder: Path, name: str) -> dict[str, Any]:
    """All tensors of ``name-*.safetensors``."""
    from safetensors.torch import load_file

    found: dict[str, Any] = {}
    for path in sorted(folder.glob(f"{name}-*.safetensors")):
        found.update(load_file(path))
    if not found:
        raise FileNotFoundError(f"no {name}-*.safetensors in {folder}")
    return found
