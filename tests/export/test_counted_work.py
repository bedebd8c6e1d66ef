"""Long work counts what it reads to the byte, and tables are reported with their rows."""

from contextlib import contextmanager

import torch
from safetensors.torch import save_file

from clefquant.export.audit import audit
from clefquant.export.card import render_card
from clefquant.export.table_rows import write_int8
from clefquant.release.headers import read_header


class Counter:
    """A Progress and a Task in one."""

    def __init__(self) -> None:
        self.done, self.asked = 0.0, []

    @contextmanager
    def task(self, title, total, unit=""):
        self.asked.append((title, total, unit))
        yield self

    def advance(self, steps=1):
        self.done += steps

    note = warn = staticmethod(lambda text: None)


def test_an_audit_counts_the_bytes_of_all_shards(tmp_path):
    for number in (1, 2):
        save_file({f"m{number}": torch.ones(number, 4)}, tmp_path / f"model-{number}.safetensors")
    counter = Counter()
    audit(tmp_path, progress=counter)
    assert counter.done == 16 + 32
    size = sum(file.stat().st_size for file in tmp_path.iterdir())
    assert counter.asked == [("reading weights", size, "bytes")]


def test_tables_count_their_source_bytes(tmp_path):
    save_file({"table": torch.ones(5, 3, dtype=torch.bfloat16)}, tmp_path / "source.safetensors")
    counter = Counter()
    source = read_header(tmp_path / "source.safetensors")["table"]
    (report,) = write_int8(tmp_path / "out.safetensors", {"table": source}, tmp_path, counter)
    assert (counter.done, report.rows, report.zero_rows) == (30, 5, 0)


def test_a_card_is_text_that_ends_with_one_line_feed(release):
    text = render_card(release, {}, None, None)
    assert text.endswith("\n")
    assert not text.endswith("\n\n")


def test_a_card_of_a_release_that_names_no_scheme(edit):
    edit.json("config.json", lambda value: value["clefquant"].pop("scheme"))
    assert "# release quantized\n" in render_card(edit.folder, {}, None, None)
