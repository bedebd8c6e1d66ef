"""Budgets as people write them: ``10.3GB``, ``5.2bits``, ``kl=0.002``, ``0.6x``."""

import re
from dataclasses import dataclass
from typing import Literal

from clefquant.errors import InputError

_BYTES = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30}
_NUMBER = r"(\d+(?:\.\d*)?|\.\d+)(?:[eE]([+-]?\d+))?"
_SIZE = re.compile(_NUMBER + r"\s*(B|KB|MB|GB|KiB|MiB|GiB|bits|x)", re.IGNORECASE)
_KL = re.compile(r"kl\s*=\s*" + _NUMBER, re.IGNORECASE)

BudgetKind = Literal["bytes", "bits", "fraction", "kl"]


@dataclass(frozen=True)
class Budget:
    """``text``: as written. ``bytes``: of all weights of the release, head included; ``bits``: stored bits per
    quantizable weight; ``fraction``: of the bytes of the BF16 release; ``kl``: largest predicted mean KL in nats."""

    text: str
    kind: BudgetKind
    value: float

    def show(self, value: float) -> str:
        """A value in the unit of this budget."""
        if self.kind == "bytes":
            return show_bytes(value)
        return {"bits": f"{value:.4g}bits", "fraction": f"{value:.4g}x", "kl": f"kl={value:.4g}"}[self.kind]


def parse_budget(text: str) -> Budget:
    """Read a budget; InputError says which forms there are."""
    wanted = text.strip()
    if match := _KL.fullmatch(wanted):
        return Budget(wanted, "kl", _number(match[1], match[2]))
    if not (match := _SIZE.fullmatch(wanted)):
        raise InputError(
            f"budget {text!r} is not understood; write 10.3GB, 5.2bits, 0.6x (of the BF16 bytes) or kl=0.002."
        )
    number, unit = _number(match[1], match[2]), match[3].upper()
    if unit == "BITS":
        return Budget(wanted, "bits", number)
    if unit == "X":
        return Budget(wanted, "fraction", number)
    return Budget(wanted, "bytes", number * _BYTES[unit])


def show_bytes(value: float) -> str:
    """A size for people, decimal units."""
    for unit in ("GB", "MB", "KB"):
        if value >= _BYTES[unit]:
            return f"{value / _BYTES[unit]:.4g}{unit}"
    return f"{value:.0f}B"


def _number(mantissa: str, exponent: str | None) -> float:
    return float(mantissa) * 10.0 ** int(exponent or 0)


def parse_bytes(text: str, what: str) -> int:
    """A plain size such as ``4GiB``; InputError names the option ``what``."""
    match = _SIZE.fullmatch(text.strip())
    if not match or match[3].upper() not in _BYTES:
        raise InputError(f"{what} {text!r} is not a size; write for example 4GiB or 500MB.")
    return int(_number(match[1], match[2]) * _BYTES[match[3].upper()])
