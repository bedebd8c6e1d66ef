"""What a measured selection found: candidates, the choice, the honest figure, the frontier. ``frontier.json``."""

from pathlib import Path
from typing import Any

from clefquant.recipes.layout import Layout
from clefquant.release.artefact import write_json
from clefquant.sensitivity.table import Figure, Part, SensitivityTable

KIND = "frontier"
SCHEMA_VERSION = 1


class Candidate(Part):
    """A joint layout that was measured on the choosing part. ``total_bytes``: weights of the release, head included."""

    units: dict[str, str]
    total_bytes: int
    predicted_kl: float
    predicted_error: float | None
    figures: dict[str, Figure]
    failed_logits: int = 0


class Selection(Part):
    """The outcome. ``held_out``: figures of the chosen layout on records used for nothing else. ``residual``:
    measured minus predicted KL on the sweep's records, with its error. ``points``: (total bytes, predicted KL) of the
    whole frontier; ``point_layouts``: one character per unit, 0 for bf16, else the place of its format in the table's
    formats, from 1. ``within``: false when no candidate was measured within a ``kl=`` ceiling."""

    kind: str = KIND
    schema_version: int = SCHEMA_VERSION
    budget: str
    chosen: int
    within: bool
    candidates: list[Candidate]
    held_out: dict[str, Figure]
    held_out_groups: dict[str, Figure]
    residual: Figure | None
    points: list[tuple[int, float]]
    point_layouts: list[str]
    exact: bool

    @property
    def choice(self) -> Candidate:
        """The chosen candidate."""
        return self.candidates[self.chosen]

    def measured(self, table: SensitivityTable) -> dict[str, Any]:
        """The figures that go into ``layout.json``."""
        noise = table.noise.figures.get("kl")
        return {
            "part": "held out: not used for scoring or choosing",
            **{name: figure.model_dump() for name, figure in self.held_out.items()},
            "choosing_kl": self.choice.figures["kl"].model_dump() if self.choice.figures else None,
            "predicted_kl": {"value": self.choice.predicted_kl, "error": self.choice.predicted_error},
            "additivity_residual": self.residual.model_dump() if self.residual else None,
            "noise_kl": noise.value if noise else None,
        }

    def layout(self, table: SensitivityTable) -> Layout:
        """The chosen layout, its measured figures with it."""
        return table.layout(self.choice.units, self.budget, self.measured(table))

    def write(self, path: Path) -> None:
        """Write ``frontier.json``."""
        write_json(path, self.model_dump())
