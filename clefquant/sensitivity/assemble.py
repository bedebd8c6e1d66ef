"""A table of a release: its units with their sizes, and whatever entries were made for them."""

from collections.abc import Mapping, Sequence
from typing import Literal

from clefquant.errors import InputError
from clefquant.recipes.formats import BF16, find_format
from clefquant.release.artefact import provenance, sha256_json
from clefquant.release.release import HEAD_FILE, Release
from clefquant.release.units import Unit
from clefquant.sensitivity.shards import Shard
from clefquant.sensitivity.table import KIND, SCHEMA_VERSION, Entry, SensitivityTable, UnitInfo
from clefquant.sensitivity.tabulate import Questions

Metric = Literal["measured", "fisher"]


def assemble(
    release: Release,
    formats: Sequence[str],
    shards: Sequence[Shard],
    input_amax: Mapping[str, float],
    noise: Entry,
    entries: Sequence[Entry],
    metric: Metric = "measured",
) -> SensitivityTable:
    """The table of ``entries``, whose record figures follow the records of ``shards``."""
    questions = Questions(tuple(record for shard in shards for record in shard.records))
    units = unit_infos(release, formats)
    parents = {
        "model": release.fingerprint,
        "records": sha256_json([shard.fingerprint for shard in shards]),
        "input_statistics": sha256_json(dict(input_amax)),
    }
    # without the command: a resumed, a serial and a parallel sweep write the same bytes
    head = provenance(KIND, SCHEMA_VERSION, parents)
    return SensitivityTable(
        origin={key: head[key] for key in ("parents", "versions")},
        model=release.reference,
        metric=metric,
        formats=list(formats),
        units=units,
        other_bytes=release.backbone_bytes - sum(unit.bytes[BF16.name] for unit in units),
        head_bytes=(release.path / HEAD_FILE).stat().st_size,
        record_ids=[record.record_id for record in questions.records],
        questions=questions.counted if questions.records else [],
        noise=noise,
        entries=list(entries),
    )


def unit_infos(release: Release, formats: Sequence[str]) -> list[UnitInfo]:
    """Every unit with its bytes in ``bf16`` and in each format that can store it."""
    found = []
    for unit in release.units:
        able = map(find_format, able_formats(unit, (BF16.name, *formats)))
        sizes = {fmt.name: sum(fmt.tensor_bytes(linear) for linear in unit.linears) for fmt in able}
        found.append(UnitInfo(name=unit.name, layer=unit.layer, kind=unit.kind, weights=unit.weights, bytes=sizes))
    return found


def able_formats(unit: Unit, formats: Sequence[str]) -> list[str]:
    """Those of ``formats`` that can store every linear of ``unit``."""
    return [name for name in formats if not any(find_format(name).obstacle(linear) for linear in unit.linears)]


def checked_formats(release: Release, formats: Sequence[str]) -> list[str]:
    """The formats asked, each once and without bf16; InputError on an unknown one, or when the release is quantized."""
    names = [find_format(name).name for name in dict.fromkeys(formats) if name != BF16.name]
    if not names:
        raise InputError("no format to probe; name at least one beside bf16 (--formats fp8,nvfp4).")
    if release.quantization is not None:
        raise InputError(f"{release.reference} is already quantized; a sweep needs the BF16 release.")
    return names


def check_statistics(release: Release, formats: Sequence[str], input_amax: Mapping[str, float]) -> None:
    """Refuse formats with a static input scale when the largest input of a linear is not known."""
    static = [name for name in formats if find_format(name).static_input]
    missing = [linear.name for unit in release.units for linear in unit.linears if linear.name not in input_amax]
    if static and missing:
        raise InputError(
            f"{static[0]} needs input statistics of {missing[0]} (and {len(missing) - 1} more); calibrate first."
        )
