"""Budgets as people write them: ``10.3GB``, ``5.2bits``, ``kl=0.002``, ``0.6x``, ``time=0.7x``, ``time=1.5ms``."""

import re
from dataclasses import dataclass
from typing import Literal

from clefquant.errors import InputError
from clefquant.release.shards import parse_size

_NUMBER = r"((?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?)"
_SIZE_UNITS = ("B", "KB", "MB", "GB", "KiB", "MiB", "GiB")

BudgetKind = Literal["bytes", "bits", "fraction", "kl", "time", "milliseconds"]

_FORMS: tuple[tuple[BudgetKind, str], ...] = (
    ("bytes", _NUMBER + rf"\s*({'|'.join(_SIZE_UNITS)})"),
    ("bits", _NUMBER + r"\s*bits"),
    ("fraction", _NUMBER + r"\s*x"),
    ("kl", r"kl\s*=\s*" + _NUMBER),
    ("time", r"time\s*=\s*" + _NUMBER + r"\s*x"),
    ("milliseconds", r"time\s*=\s*" + _NUMBER + r"\s*ms"),
)
_SHOWN = {
    "bits": "{:.4g}bits", "fraction": "{:.4g}x", "kl": "kl={:.4g}", "time": "time={:.4g}x",
    "milliseconds": "time={:.4g}ms",
}  # fmt: skip


@dataclass(frozen=True)
class Budget:
    """``text``: as written. ``bytes``: of all weights of the release, head included; ``bits``: stored bits per
    quantizable weight; ``fraction``: of the bytes of the BF16 release; ``kl``: largest predicted mean KL in nats;
    ``time``: of the units' matrix products, as a fraction of theirs in BF16; ``milliseconds``: of them per 1,000
    tokens."""

    text: str
    kind: BudgetKind
    value: float

    def show(self, value: float) -> str:
        """A value in the unit of this budget."""
        return show_bytes(value) if self.kind == "bytes" else _SHOWN[self.kind].format(value)


def parse_budget(text: str) -> Budget:
    """Read a budget; InputError says which forms there are."""
    wanted = text.strip()
    for kind, form in _FORMS:
        if match := re.fullmatch(form, wanted, re.IGNORECASE):
            number = float(match[1])
            return Budget(wanted, kind, number * parse_size(f"1{match[2]}") if kind == "bytes" else number)
    raise InputError(
        f"budget {text!r} is not understood; write 10.3GB, 5.2bits, 0.6x (of the BF16 bytes), kl=0.002, time=0.7x (of "
        "BF16's matrix products) or time=1.5ms (per 1,000 tokens)."
    )


def show_bytes(value: float) -> str:
    """A size for people, decimal units."""
    for unit in ("GB", "MB", "KB"):
        if value >= parse_size(f"1{unit}"):
            return f"{value / parse_size(f'1{unit}'):.4g}{unit}"
    return f"{value:.0f}B"
