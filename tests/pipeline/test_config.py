"""Configurations: every shipped one is valid and can be planned, a wrong one is refused with its line."""

import json
import re
import shutil
from pathlib import Path

import pytest

from clefquant.errors import InputError
from clefquant.pipeline.config_file import read_config, schema_text
from clefquant.quantize.algorithms import find_algorithm
from clefquant.recipes.awq import SMOOTHED, check_smoothed
from clefquant.recipes.layout import uniform_layout
from clefquant.release.release import open_release
from clefquant.sensitivity.plan import Constraints
from clefquant.sensitivity.run import check_request

from ..shapes import SIZES, large_folder

CONFIGS = Path(__file__).parents[2] / "configs"
SHIPPED = sorted(CONFIGS.glob("*.yaml"))
GOOD = """\
model: nano
out: runs/x
calibration: {mixture: nano}
evaluation: {mixture: nano-eval}
scheme: fp8
"""
PLANNED = GOOD.replace("scheme: fp8\n", "plan: {selection: {mixture: nano}, budget: 0.6x}\n")


def test_what_is_shipped():
    wanted = {"clef-flash-fp8", "clef-flash-nvfp4", "clef-flash-mixed", "clef-nvfp4", "clef-mxfp4-awq", "clef-mixed"}
    assert wanted | {"nano-mixed", "nano-fp8"} <= {path.stem for path in SHIPPED}
    assert all(read_config(path).verify.gate for path in SHIPPED)


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_shipped_configurations_fit_their_model(path, nano, tiny, tmp_path):
    """Layout, budget and algorithm against the shapes of the model; no weight is there."""
    config = read_config(path)
    release = nano
    if config.model != "nano":
        release = open_release(large_folder(tiny.path, tmp_path / "model", SIZES[config.model]))
    find_algorithm(config.algorithm)
    if config.plan:
        constraints = Constraints(pin=dict(config.plan.pin), forbid=config.plan.forbid)
        check_request(release, config.plan.formats, config.plan.budget, constraints)
        return
    layout = uniform_layout(release, config.scheme)
    assert layout.bytes < 0.7 * release.backbone_bytes
    if config.algorithm in SMOOTHED:
        check_smoothed(config.algorithm, release.units, layout.units)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (GOOD + "colour: red\n", r"c.yaml:6: colour: there is no such field \(fields: model, "),
        (GOOD.replace("scheme", "shceme"), r"c.yaml:5: shceme: there is no such field; did you mean scheme\?"),
        (
            GOOD.replace("mixture: nano}", "mixtur: nano}"),
            r"c.yaml:3: calibration.mixtur: .* did you mean mixture\? \(fields: mixture, seed\)",
        ),
        (
            GOOD.replace("{mixture: nano}", "{seed: one, mixture: nano}"),
            r"c.yaml:3: calibration.seed: Input should be a valid integer",
        ),
        (GOOD.replace("model: nano\n", ""), r"c.yaml:1: model: Field required"),
        (GOOD.replace("scheme: fp8\n", ""), "give exactly one of scheme, layout and plan; found none"),
        (GOOD + "layout: x.json\n", "found scheme, layout"),
        (GOOD.replace("fp8", "fp9"), r"c.yaml:5: scheme: unknown format 'fp9'; allowed: fp8"),
        (GOOD.replace("nano-eval", "nano-evil"), r"c.yaml:4: evaluation.mixture: there is no mixture nano-evil"),
        (GOOD + "algorithm: magic\n", r"c.yaml:6: algorithm: Input should be 'rtn', 'gptq'"),
        (GOOD + "algorithm: awq\n", "algorithm awq scales units of 4 bits; fp8 has more"),
        (GOOD + "nvfp4_scales: best\n", r"c.yaml:6: nvfp4_scales: Input should be 'max' or 'four-over-six'"),
        (GOOD + "mxfp4_scales: ceil\n", "mxfp4_scales ceil was asked for, but no unit is mxfp4"),
        (GOOD + "max_shard_size: huge\n", r"c.yaml:6: max_shard_size: 'huge' is not a size"),
        (GOOD + "verify:\n  gate: none.yaml\n", r"c.yaml:7: verify.gate: .* cannot be read"),
        (GOOD.replace("scheme: fp8", "layout: none.json"), r"c.yaml:5: layout: there is no file none.json"),
        (PLANNED.replace("0.6x", "lots"), r"c.yaml:5: plan.budget: budget 'lots' is not understood"),
        (PLANNED.replace("0.6x", "0.6x, formats: [fp8, x]"), r"c.yaml:5: plan.formats.1: unknown format 'x'"),
        (re.sub("calibration.*\n", "", PLANNED), "calibration is missing; plan needs it"),
        (re.sub("calibration.*\n", "", GOOD).replace("fp8", "nvfp4"), "calibration is missing; scheme nvfp4 needs it"),
        (re.sub("calibration.*\n", "", GOOD) + "algorithm: gptq\n", "algorithm gptq needs it"),
        ("- a\n", "holds a list"),
        ("a: [\n", "is not YAML"),
    ],
)
def test_refusals(tmp_path, text, message):
    path = tmp_path / "c.yaml"
    path.write_text(text)
    with pytest.raises(InputError, match=message):
        read_config(path)


def test_every_fault_has_a_line_of_its_own(tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text(GOOD + "colour: red\nmax_shard_size: huge\n")
    with pytest.raises(InputError) as caught:
        read_config(path)
    assert [line.split(":")[1] for line in str(caught.value).splitlines()] == ["6", "7"]


def test_no_calibration_where_none_is_needed(tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text(re.sub("calibration.*\n", "", GOOD))
    assert read_config(path).calibration is None


def test_byte_order_mark_and_windows_lines(tmp_path):
    path = tmp_path / "c.yaml"
    path.write_bytes(b"\xef\xbb\xbf" + GOOD.replace("\n", "\r\n").encode())
    assert read_config(path).scheme == "fp8"


def test_files_are_found_beside_the_configuration(tmp_path):
    shutil.copy(CONFIGS / "mixtures" / "nano.yaml", tmp_path / "mine.yaml")
    shutil.copy(CONFIGS / "gates" / "nano.yaml", tmp_path / "gate.yaml")
    path = tmp_path / "c.yaml"
    path.write_text(GOOD.replace("mixture: nano}", "mixture: mine.yaml}") + "verify: {gate: gate.yaml}\n")
    assert read_config(path).verify.gate == "gate.yaml"


def test_the_schema_for_editors_is_up_to_date_and_documents_every_field():
    assert (CONFIGS / "run.schema.json").read_text() == schema_text(), (
        "write it anew: clefquant run --schema > configs/run.schema.json"
    )
    schema = json.loads(schema_text())
    sections = [schema, *schema["$defs"].values()]
    assert all(entry.get("description") for section in sections for entry in section["properties"].values())
    for path in SHIPPED:
        assert path.read_text().startswith("# yaml-language-server: $schema=run.schema.json\n")
