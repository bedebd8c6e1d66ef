"""What a configuration of ``clefquant run`` may say: every field typed, documented and checked before any work."""

from collections.abc import Callable
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from clefquant.errors import InputError
from clefquant.quantize.scales import Scales
from clefquant.recipes.awq import SMOOTHED
from clefquant.recipes.formats import BF16, find_format
from clefquant.release.shards import parse_size
from clefquant.sensitivity.budget import parse_budget


def _checked(check: Callable[[str], Any]) -> AfterValidator:
    """A validator that lets a value through when ``check`` accepts it."""

    def validate(text: str) -> str:
        try:
            check(text)
        except InputError as error:
            raise ValueError(str(error)) from None
        return text

    return AfterValidator(validate)


FormatName = Annotated[str, _checked(find_format)]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class SetConfig(_Section):
    """A set of records to build."""

    mixture: str
    """Mixture file, relative to this file or to the working directory, or the name of a bundled one."""
    seed: int = 0
    """Seed of everything drawn at random in the set."""


class PlanConfig(_Section):
    """Which formats to choose from, under which budget, and on which records."""

    selection: SetConfig
    """Records that score units and choose a layout; they share none with calibration and evaluation."""
    formats: tuple[FormatName, ...] = ("fp8", "nvfp4", "mxfp4")
    """Formats a unit may get, besides bf16."""
    budget: Annotated[str, _checked(parse_budget)]
    """Bytes of the release (10.3GB), bits a weight (5.2bits), a fraction of the BF16 bytes (0.6x), a divergence
    (kl=0.002) or a time (time=0.7x)."""
    pin: dict[str, FormatName] = Field(default_factory=dict)
    """Unit name or pattern (layers.*.mlp) to the format it must have."""
    forbid: tuple[FormatName, ...] = ()
    """Formats no unit may have; bf16 may be among them."""
    candidates: int = Field(12, ge=1)
    """Layouts near the budget to build and measure."""


class VerifyConfig(_Section):
    """How the release is compared with its source."""

    gate: str | None = None
    """YAML of limits, relative to this file or to the working directory. A figure outside them ends the run with exit
    code 1; publishing needs a passed gate."""


class RunConfig(_Section):
    """Everything ``clefquant run`` needs. Exactly one of ``scheme``, ``layout`` and ``plan`` says how units are
    stored."""

    model: str
    """Release folder, Hub id, or nano."""
    base_model: str | None = None
    """Hub id the card names as base, when model is a folder."""
    out: str
    """Folder of the run, relative to the working directory; every stage has a folder of its own below it."""
    calibration: SetConfig | None = None
    """Records whose inputs set static scales and guide gptq and awq. Formats with scales found at run time (fp8, mxfp4,
    …), rounded to nearest, need none."""
    evaluation: SetConfig
    """Records the report is made of; they take no part in any choice."""
    scheme: FormatName | None = None
    """One format for every unit: fp8, nvfp4, mxfp4, …"""
    layout: str | None = None
    """A layout file: a format for each unit."""
    plan: PlanConfig | None = None
    """Sweep every unit's sensitivity and plan a layout."""
    algorithm: Literal["rtn", "gptq", "awq", "awq-mlp"] = "rtn"
    """How weights are rounded: to nearest, by GPTQ, or to nearest after AWQ's scaling (of all units or of MLPs). A
    plan's sweep rounds in the same way; with AWQ, whose scaling is not a unit's own, it probes rounding to nearest."""
    nvfp4_scales: Literal["max", "four-over-six"] = "max"
    """How the block scales of nvfp4 and nvfp4a16 units are chosen."""
    mxfp4_scales: Literal["even", "floor", "ceil", "least-error"] = "even"
    """How the block scales of mxfp4 and mxfp4a16 units are chosen."""
    tables: Literal["bf16", "int8"] = "bf16"
    """How the embedding and lm_head tables are stored. Only the bundled plugin reads int8 ones."""
    max_shard_size: Annotated[str, _checked(parse_size)] = "5GB"
    """Largest weight file of the release."""
    verify: VerifyConfig = VerifyConfig()
    """The report on the release, and the limits it must keep."""

    @model_validator(mode="after")
    def _whole(self) -> "RunConfig":
        given = [name for name in ("scheme", "layout", "plan") if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(f"give exactly one of scheme, layout and plan; found {', '.join(given) or 'none'}")
        if self.calibration is None and (reason := self._calibrates()):
            raise ValueError(f"calibration is missing; {reason} needs it")
        if self.scheme is not None and self.algorithm in SMOOTHED and not find_format(self.scheme).four_bit:
            raise ValueError(f"algorithm {self.algorithm} scales units of 4 bits; {self.scheme} has more")
        if self.scheme is not None or self.plan is not None:
            formats = [self.scheme] if self.scheme else self.plan.formats if self.plan else []
            try:
                self.scales.check(map(str, formats))
            except InputError as error:
                raise ValueError(str(error).replace("--", "").replace("-scales", "_scales")) from error
        return self

    @property
    def scales(self) -> Scales:
        """The choices of block scales, as the quantizer wants them."""
        return Scales(self.nvfp4_scales, self.mxfp4_scales)

    def _calibrates(self) -> str | None:
        """What of this configuration needs calibration records."""
        if self.plan is not None:
            return "plan"
        if self.algorithm != "rtn":
            return f"algorithm {self.algorithm}"
        needs = self.scheme not in (None, BF16.name) and find_format(str(self.scheme)).static_input
        return f"scheme {self.scheme}" if needs else None
