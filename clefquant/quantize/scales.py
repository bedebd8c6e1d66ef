"""How the scale of a block of 4-bit weights is chosen: a visible list per format family.

    a: largest absolute weight of a block; E2M1 holds 0, 0.5, 1, 1.5, 2, 3, 4, 6 and their negatives.

    NVFP4 (16 weights, scale in E4M3 under the tensor's float32 divisor)
    max            a becomes 6
    four-over-six  a becomes 6 or 4, whichever leaves less squared error in the block

    MXFP4 (32 weights, scale 2^e)
    even         e = floor(log2 a) - 2, one more from a mantissa of 1.75 on: a becomes 3.5 to 7 (then 6). What
                 compressed-tensors does, and AMD Quark under this name
    floor        e = floor(log2 a) - 2: a becomes 4 to 8 (then 6). The OCP Microscaling specification
    ceil         e = ceil(log2 a) - 2: a becomes 2 to 4; nothing is cut off
    least-error  the scale of ``floor`` or the next larger one, whichever leaves less squared error in the block

Every choice is stored in the same tensors and read by the same kernels. All but the first of a family are observers
of ours (:mod:`clefquant.quantize.observers`), so that every algorithm uses them alike.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from clefquant.errors import InputError
from clefquant.recipes.formats import Format, find_format

#: Family to its choices; the first is what llm-compressor does by itself.
CHOICES: dict[str, tuple[str, ...]] = {
    "nvfp4": ("max", "four-over-six"),
    "mxfp4": ("even", "floor", "ceil", "least-error"),
}
_FAMILIES = {"nvfp4-pack-quantized": "nvfp4", "mxfp4-pack-quantized": "mxfp4"}


@dataclass(frozen=True)
class Scales:
    """One choice per family; InputError for one that does not exist."""

    nvfp4: str = CHOICES["nvfp4"][0]
    mxfp4: str = CHOICES["mxfp4"][0]

    def __post_init__(self) -> None:
        for family, allowed in CHOICES.items():
            if (found := getattr(self, family)) not in allowed:
                raise InputError(f"--{family}-scales is {found!r}; allowed: {', '.join(allowed)}")

    def observer(self, fmt: Format) -> str | None:
        """Name of the observer that makes the scales of ``fmt``; None for llm-compressor's own."""
        family = _FAMILIES.get(fmt.ct_format)
        if family is None or (choice := getattr(self, family)) == CHOICES[family][0]:
            return None
        return f"clefquant-{family}-{choice}"

    def check(self, formats: Iterable[str]) -> None:
        """InputError when a choice is made for a family that none of the ``formats`` in use belongs to."""
        for family in self._without_units(formats):
            raise InputError(
                f"--{family}-scales {getattr(self, family)} was asked for, but no unit is {family} or "
                f"{family}a16; leave it out or choose such a format."
            )

    def used(self, formats: Iterable[str]) -> "Scales":
        """Without the choices for families that none of the ``formats`` belongs to: what a planned layout needs."""
        return replace(self, **{family: CHOICES[family][0] for family in self._without_units(formats)})

    def _without_units(self, formats: Iterable[str]) -> list[str]:
        """Families with a choice of their own that none of the ``formats`` in use belongs to."""
        used = {_FAMILIES.get(find_format(name).ct_format) for name in formats}
        return [name for name, usual in CHOICES.items() if getattr(self, name) != usual[0] and name not in used]


DEFAULT_SCALES = Scales()
