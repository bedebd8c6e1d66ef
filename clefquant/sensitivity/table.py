"""The sensitivity table: what every unit loses in every format, what it weighs, and how sure that is. JSON and CSV."""

import csv
import io
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, ValidationError

from clefquant.errors import InputError
from clefquant.recipes.formats import BF16, find_format
from clefquant.recipes.layout import Layout
from clefquant.release.artefact import read_json, write_json, write_text

KIND = "sensitivity table"
SCHEMA_VERSION = 1


class Part(BaseModel):
    """Base of everything in the table."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class UnitInfo(Part):
    """A unit: its place, its weights, and its exact bytes in every format that can store it (``bf16`` included)."""

    name: str
    layer: int
    kind: str
    weights: int
    bytes: dict[str, int]


class Figure(Part):
    """A mean over questions with its standard error over records (None from fewer than two)."""

    value: float
    error: float | None
    questions: int


class Rank(Part):
    """A unit's rank by KL among the units in one format (1 = least), and the middle 90 % of its ranks over records
    drawn anew."""

    rank: int
    low: float
    high: float


class Entry(Part):
    """One unit in one format. A failed entry (NaN or infinite logits) has no figures and is never planned with.

    ``figures``: kl, tv, flip, margin_flip, score_shift. ``groups``: KL per ``source:…``, ``type:…`` and ``length:…``.
    ``record_kl``: sum of the questions' KL of every record, in the order of the table's records; of the first of them
    alone when an adaptive sweep was sure enough.
    """

    unit: str
    format: str
    failed_logits: int = 0
    figures: dict[str, Figure] = {}
    groups: dict[str, Figure] = {}
    record_kl: list[float] = []
    rank: Rank | None = None

    @property
    def kl(self) -> float:
        """Mean KL over questions, in nats."""
        return self.figures["kl"].value


class SensitivityTable(Part):
    """A finished sweep, enough to plan with and without the model at hand.

    ``other_bytes``: of backbone tensors that no unit stores; ``head_bytes``: of the joint head's file. ``questions``:
    how many questions of each record count (those with two options or more). ``noise``: the unchanged model against
    itself in other batches. ``metric``: whether KL was measured by a sweep or estimated (``fisher``). ``rounding``:
    options of `clefquant quantize` that were not left at their defaults.
    """

    kind: str = KIND
    schema_version: int = SCHEMA_VERSION
    origin: dict[str, Any] = {}
    model: str
    metric: str = "measured"
    rounding: dict[str, str] = {}
    formats: list[str]
    units: list[UnitInfo]
    other_bytes: int
    head_bytes: int
    record_ids: list[str]
    questions: list[int]
    noise: Entry
    entries: list[Entry]

    def entry(self, unit: str, format_name: str) -> Entry | None:
        """The entry of a unit in a format, or None when it was not probed."""
        return next((e for e in self.entries if (e.unit, e.format) == (unit, format_name)), None)

    @property
    def failed(self) -> list[Entry]:
        """Probes with NaN or infinite logits."""
        return [entry for entry in self.entries if entry.failed_logits]

    def losses(self) -> dict[str, dict[str, float]]:
        """KL per unit and usable format, ``bf16`` (0) included."""
        found = {unit.name: {BF16.name: 0.0} for unit in self.units}
        for entry in self.entries:
            if not entry.failed_logits:
                found[entry.unit][entry.format] = entry.kl
        return found

    def record_sums(self, entry: Entry) -> NDArray[np.float64]:
        """Each record's summed KL under ``entry``: [records].

        Records it was not probed on get its mean, and the deviations of the others grow by as much: sum and standard
        error over all records then are those of the probed ones.
        """
        questions, probed = np.array(self.questions, dtype=np.float64), len(entry.record_kl)
        if probed == len(questions):
            return np.array(entry.record_kl)
        expected = entry.kl * questions
        found: NDArray[np.float64] = expected.copy()
        scale = questions.sum() / (questions[:probed].sum() or 1.0)
        found[:probed] += (np.array(entry.record_kl) - expected[:probed]) * scale
        return found

    def record_losses(self, units: dict[str, str]) -> NDArray[np.float64]:
        """Sum over a layout's units of each record's summed KL: [records]. Failed and bf16 units count nothing."""
        kept = [e for e in self.entries if units.get(e.unit) == e.format and not e.failed_logits]
        rows = np.array([np.zeros(len(self.record_ids)), *map(self.record_sums, kept)])
        total: NDArray[np.float64] = rows.sum(axis=0)
        return total

    def backbone_bytes(self, units: dict[str, str]) -> int:
        """Bytes of all backbone tensors of a layout."""
        return self.other_bytes + sum(unit.bytes[units[unit.name]] for unit in self.units)

    def total_bytes(self, units: dict[str, str]) -> int:
        """Bytes of the weights of a whole release: backbone (tables, vision) and joint head."""
        return self.head_bytes + self.backbone_bytes(units)

    def layout(self, units: dict[str, str], budget: str | None, measured: dict[str, Any] | None = None) -> Layout:
        """The same layout that ``make_layout`` makes of ``units`` with the release at hand."""
        stored = sum(unit.bytes[units[unit.name]] for unit in self.units)
        return Layout(
            model=self.model,
            units={unit.name: units[unit.name] for unit in self.units},
            bytes=self.other_bytes + stored,
            bits_per_weight=round(8 * stored / sum(unit.weights for unit in self.units), 4),
            budget=budget,
            measured=measured,
        )

    def write(self, path: Path) -> None:
        """Write ``sensitivity.json``."""
        write_json(path, self.model_dump())

    def write_csv(self, path: Path) -> None:
        """Write one line per unit and format."""
        names = sorted({name for entry in self.entries for name in entry.figures})
        text = io.StringIO()
        out = csv.writer(text, lineterminator="\n")
        columns = [column for name in names for column in (name, f"{name}_error")]
        out.writerow(["unit", "layer", "kind", "format", "bytes", "records", "failed_logits", *columns])
        known = {unit.name: unit for unit in self.units}
        for entry in self.entries:
            unit = known[entry.unit]
            shown = [entry.figures.get(name) for name in names]
            numbers = [number for f in shown for number in ((f.value, f.error) if f else ("", ""))]
            place = [entry.unit, unit.layer, unit.kind, entry.format]
            out.writerow([*place, unit.bytes[entry.format], len(entry.record_kl), entry.failed_logits, *numbers])
        write_text(path, text.getvalue())


def read_table(path: Path) -> SensitivityTable:
    """Read ``sensitivity.json``. InputError when it is none, damaged, or newer than this version."""
    value = read_json(path, KIND, SCHEMA_VERSION)
    try:
        table = SensitivityTable.model_validate(value)
    except ValidationError as error:
        raise InputError(f"{path} is no readable {KIND}: {error.errors()[0]['msg']}; run the sweep again.") from error
    for name in table.formats:
        find_format(name)
    return table
