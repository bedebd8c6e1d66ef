"""int8 tables: the rows of one rank, and of several ranks whose number does not divide the vocabulary."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from clef_vllm.tables import HostTable, Int8Table

VOCABULARY, HIDDEN = 37, 8


@pytest.fixture
def stored(tmp_path: Path) -> tuple[Path, torch.Tensor]:
    """A table file, and the float rows it means."""
    torch.manual_seed(0)
    rows = torch.randint(-127, 128, (VOCABULARY, HIDDEN), dtype=torch.int8)
    scale = torch.rand(VOCABULARY) * 0.1
    path = tmp_path / "tables_int8.safetensors"
    save_file({"lm_head.weight": rows, "lm_head.scale": scale, "embed_tokens.weight": rows.flip(0).contiguous(),
               "embed_tokens.scale": scale.flip(0).contiguous()}, path)  # fmt: skip
    return path, rows.float() * scale[:, None]


@pytest.mark.parametrize("ranks", [1, 2, 3, 5, 8, 36, 40])
@pytest.mark.parametrize("kind", [Int8Table, HostTable])
def test_rows_over_ranks_sum_to_the_table(stored: tuple[Path, torch.Tensor], ranks: int, kind: type[Int8Table]) -> None:
    path, expected = stored
    parts: list[torch.Tensor] = []
    ids = torch.arange(VOCABULARY)
    for rank in range(ranks):
        table = kind.for_rank(VOCABULARY, HIDDEN, rank, ranks, reduce=lambda part: part)
        table.load(path, "lm_head")
        parts.append(table.lookup(ids, torch.device("cpu")) if isinstance(table, HostTable) else table(ids))
    assert parts[0].shape == (VOCABULARY, HIDDEN)
    torch.testing.assert_close(torch.stack(parts).sum(0), expected, rtol=0, atol=0)
    held = torch.stack([(part != 0).any(-1) for part in parts]).sum(0)
    assert int(held.max()) == 1, "two ranks hold the same row"


def test_output_dtype_follows_the_model(stored: tuple[Path, torch.Tensor]) -> None:
    path, expected = stored
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        table = Int8Table.for_rank(VOCABULARY, HIDDEN, 0, 1, reduce=lambda part: part)
    finally:
        torch.set_default_dtype(before)
    table.load(path, "embed_tokens")
    out = table(torch.tensor([0, 36]))
    assert out.dtype == torch.bfloat16
    torch.testing.assert_close(out, expected[[36, 0]].bfloat16(), rtol=0, atol=0)


def test_files_that_do_not_fit_are_refused(stored: tuple[Path, torch.Tensor], tmp_path: Path) -> None:
    path, _ = stored
    with pytest.raises(ValueError, match=r"I8 \[37, 8\].*asks for I8 \[38, 8\]"):
        Int8Table.for_rank(38, HIDDEN, 0, 1, reduce=lambda part: part).load(path, "lm_head")
    broken = tmp_path / "broken.safetensors"
    save_file({"lm_head.weight": torch.zeros(VOCABULARY, HIDDEN, dtype=torch.int8)}, broken)
    table = Int8Table.for_rank(VOCABULARY, HIDDEN, 0, 1, reduce=lambda part: part)
    with pytest.raises(ValueError, match=r"lacks \['lm_head.scale'\]"):
        table.load(broken, "lm_head")
    save_file({"lm_head.weight": torch.zeros(VOCABULARY, HIDDEN, dtype=torch.int8),
               "lm_head.scale": torch.full((VOCABULARY,), float("nan"))}, broken)  # fmt: skip
    with pytest.raises(ValueError, match="non-finite"):
        table.load(broken, "lm_head")


def test_a_host_table_stays_in_host_memory() -> None:
    """Models are built with the accelerator as the default device ("meta" stands in for it here)."""
    with torch.device("meta"):
        kept = HostTable.for_rank(VOCABULARY, HIDDEN, 0, 1, reduce=lambda part: part)
        moved = Int8Table.for_rank(VOCABULARY, HIDDEN, 0, 1, reduce=lambda part: part)
    assert (kept.rows.device.type, kept.scale.device.type) == ("cpu", "cpu")
    assert moved.rows.device.type == "meta"
