"""One labelled decision record: what generators and public-text sources hand to training and to calibration."""

from dataclasses import dataclass
from typing import Any, Literal

Split = Literal["train", "calibration", "evaluation"]
"""Which side of the fence an example is drawn for; evaluation shares no template and no text with the others."""


@dataclass(frozen=True)
class Example:
    """A record in Clef's format with the gold option of every question.

    ``record`` is ``{"state": any JSON, "questions": {id: {"type", "instructions", "criteria"?}}}``. ``answers`` maps
    each question id to its gold option id: ``"true"``/``"false"`` for noul, the criteria's key for choice, the level's
    index as text for score. ``group`` names the family, for tables per family.
    """

    record: dict[str, Any]
    answers: dict[str, str]
    group: str
