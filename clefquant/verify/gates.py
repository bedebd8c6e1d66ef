"""Limits a release must keep, from a YAML file, judged on the report's rows.

    judge: value                  # or bound: the unfavourable end of the 95 % interval
    limits: ["agreement >= 98.5 %", "kl <= 0.003", "confident_flips == 0"]
    groups: {"*": ["agreement >= 95 %"], banking77: ["agreement >= 97 %"]}

``groups`` limits apply to the rows of the group table; ``*`` to every group.
"""

import operator
import re
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict

from clefquant.errors import InputError
from clefquant.release.yaml_text import parse_yaml
from clefquant.verify.tables import COUNTS, Row
from clefquant.verify.totals import DIFFERENCES, RATIOS

MEASURES = (*RATIOS, "ece", "ece_reference", *DIFFERENCES, "kl_median", "kl_p99", "kl_max", "flips", *COUNTS)
_COMPARE = {">=": operator.ge, "<=": operator.le, "==": operator.eq, ">": operator.gt, "<": operator.lt}
_LIMIT = re.compile(
    r"(?P<measure>\w+)\s*(?P<sign>>=|<=|==|>|<)\s*(?P<limit>[-+]?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?)\s*(?P<percent>%?)"
)


class GateFile(BaseModel):
    """The YAML file."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    judge: Literal["value", "bound"] = "value"
    limits: list[str] = []
    groups: dict[str, list[str]] = {}


class Limit(NamedTuple):
    """One limit as written and as parsed."""

    text: str
    measure: str
    sign: str
    limit: float


def read_gate(path: Path) -> GateFile:
    """Read and check a gate file; InputError names the line that cannot be understood."""
    try:
        gate = GateFile.model_validate(parse_yaml(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}.") from error
    except ValueError as error:
        raise InputError(f"{path} is not a gate file (judge, limits, groups): {error}") from error
    if not gate.limits and not gate.groups:
        raise InputError(f"{path} sets no limit; write e.g. `limits: [agreement >= 98.5 %]`.")
    for text in (*gate.limits, *(text for texts in gate.groups.values() for text in texts)):
        parse_limit(text)
    return gate


def parse_limit(text: str) -> Limit:
    """``MEASURE SIGN NUMBER [%]``; InputError lists the measures."""
    match = _LIMIT.fullmatch(text.strip())
    if match is None:
        raise InputError(
            f"limit {text!r} is not MEASURE >= NUMBER (signs: {' '.join(_COMPARE)}; a percent sign may follow)."
        )
    if match["measure"] not in MEASURES:
        raise InputError(f"limit {text!r} names no measure; allowed: {', '.join(MEASURES)}.")
    number = float(match["limit"])
    return Limit(text.strip(), match["measure"], match["sign"], number / 100 if match["percent"] else number)


def judge(gate: GateFile, tables: dict[str, list[Row]]) -> list[dict[str, Any]]:
    """Every limit applied to every row it concerns: ``{"row", "limit", "found", "passed", "why"}``."""
    groups = {row["name"]: row for row in tables["groups"]}
    if unknown := sorted(set(gate.groups) - set(groups) - {"*"}):
        raise InputError(f"the gate limits group {unknown[0]!r}; the evaluation set has {', '.join(groups)}.")
    results = [_apply(text, tables["all"][0], gate.judge) for text in gate.limits]
    for name, texts in gate.groups.items():
        results += [
            _apply(text, row, gate.judge)
            for row in (groups.values() if name == "*" else [groups[name]])
            for text in texts
        ]
    return results


def _apply(text: str, row: Row, mode: str) -> dict[str, Any]:
    limit = parse_limit(text)
    value, why = row[limit.measure], ""
    if isinstance(value, dict):
        end = {">=": "low", ">": "low", "<=": "high", "<": "high"}.get(limit.sign, "value")
        value = value[end if mode == "bound" else "value"]
    if value is None:
        passed, why = False, "not defined on these questions"
    elif (
        row["nan"] + row["nan_reference"]
        and limit.measure not in COUNTS
        and limit.measure not in ("agreement", "accuracy")
    ):
        # means over the finite rest would hide them
        passed, why = False, f"{row['nan'] + row['nan_reference']} questions are NaN"
    else:
        passed = bool(_COMPARE[limit.sign](value, limit.limit))
    return {
        "row": row["name"],
        "limit": limit.text,
        "measure": limit.measure,
        "found": value,
        "passed": passed,
        "why": why,
    }
