"""How the decoder calls its layers, without running them: the embedded prompts and each layer's positions and masks."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch


class Recorder(torch.nn.Module):
    """Stands in for a decoder layer: keeps how it was called, returns its input."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden: torch.Tensor | None = None
        self.keywords: dict[str, Any] = {}

    def forward(self, hidden_states: torch.Tensor, **keywords: Any) -> torch.Tensor:
        """Keep the call; hidden states [B, L, H] pass unchanged."""
        self.hidden, self.keywords = hidden_states, keywords
        return hidden_states


@contextmanager
def recording(text_model: Any) -> Iterator[Sequence[Recorder]]:
    """Within the block a forward of the decoder only embeds, and makes positions and masks as it always does."""
    layers = text_model.layers
    recorders = [Recorder() for _ in layers]
    text_model.layers = torch.nn.ModuleList(recorders)
    try:
        yield recorders
    finally:
        text_model.layers = layers
