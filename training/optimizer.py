"""Muon for the backbone's matrices, AdamW for the rest, and the moving average of the weights that is released."""

from collections import defaultdict

import torch
from torch import Tensor, nn

Named = list[tuple[str, nn.Parameter]]


def orthogonalise(update: Tensor, steps: int = 5) -> Tensor:
    """Nearest semi-orthogonal matrices of a stack [n, rows, columns] by Newton-Schulz in bfloat16 (quintic)."""
    x = update.bfloat16()
    tall = x.shape[-2] > x.shape[-1]
    x = x.mT if tall else x
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(steps):
        gram = x @ x.mT
        x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
    result: Tensor = x.mT if tall else x
    return result


class Muon:
    """Momentum, then orthogonalised updates; matrices of one shape are handled as one stack."""

    def __init__(self, parameters: list[nn.Parameter], lr: float, decay: float, momentum: float = 0.95) -> None:
        groups: dict[torch.Size, list[Tensor]] = defaultdict(list)
        for parameter in parameters:
            groups[parameter.shape].append(parameter)
        self._groups = list(groups.values())
        self._momenta = [torch.zeros(len(g), *g[0].shape, device=g[0].device) for g in self._groups]
        self.lr, self._decay, self._momentum = lr, decay, momentum

    @torch.no_grad()
    def step(self, factor: float) -> None:
        """One update at ``factor`` times the learning rate."""
        lr = self.lr * factor
        for group, momentum in zip(self._groups, self._momenta, strict=True):
            grads = torch.stack([p.grad for p in group if p.grad is not None])
            momentum.lerp_(grads, 1 - self._momentum)
            update = orthogonalise(grads.lerp_(momentum, self._momentum)).float()
            scale = max(1.0, group[0].shape[0] / group[0].shape[1]) ** 0.5
            torch._foreach_mul_(group, 1 - lr * self._decay)
            torch._foreach_add_(group, list(update.unbind()), alpha=-lr * scale)


class Optimizer:
    """Both optimizers under one schedule factor, and an exponential average of all weights."""

    def __init__(
        self, backbone: Named, head: Named, lm_head: Named, *, muon_lr: float, adam_lr: float, decay: float
    ) -> None:
        matrices = [p for name, p in backbone if p.dim() == 2 and p.shape[0] > 8 and "embed" not in name]
        chosen = {id(p) for p in matrices}
        rest = [(name, p) for name, p in backbone if id(p) not in chosen]
        self.muon = Muon(matrices, muon_lr, decay)
        groups = [
            {"params": [p for name, p in [*rest, *lm_head]], "lr": 1.5 * adam_lr, "weight_decay": 0.0},
            {"params": [p for _, p in head if p.dim() >= 2], "lr": adam_lr, "weight_decay": decay},
            {"params": [p for _, p in head if p.dim() < 2], "lr": adam_lr, "weight_decay": 0.0},
        ]
        fused = matrices[0].is_cuda
        self.adam = torch.optim.AdamW(groups, betas=(0.9, 0.98), fused=fused)
        self._base = [group["lr"] for group in self.adam.param_groups]
        self.parameters: list[Tensor] = [p for _, p in [*backbone, *head, *lm_head]]
        self.average = [p.detach().clone() for p in self.parameters]

    def step(self, factor: float, averaging: float) -> None:
        """Clip, update, clear the gradients, average."""
        torch.nn.utils.clip_grad_norm_(self.parameters, 1.0)
        for group, base in zip(self.adam.param_groups, self._base, strict=True):
            group["lr"] = base * factor
        self.muon.step(factor)
        self.adam.step()
        for parameter in self.parameters:
            parameter.grad = None
        with torch.no_grad():
            torch._foreach_lerp_(self.average, self.parameters, 1 - averaging)

    @torch.no_grad()
    def swap(self) -> None:
        """Exchange weights and averages (before and after an evaluation)."""
        for parameter, average in zip(self.parameters, self.average, strict=True):
            kept = parameter.detach().clone()
            parameter.copy_(average)
            average.copy_(kept)
