"""Sweeps of weights rounded otherwise: by GPTQ, with other block scales."""

from pathlib import Path

import pytest
import torch

from clefquant.errors import InputError
from clefquant.quantize.algorithms import gptq
from clefquant.quantize.scales import Scales
from clefquant.recipes.layout import make_layout
from clefquant.sensitivity.measure import Measurer
from clefquant.sensitivity.probe import Keys, work_list
from clefquant.sensitivity.rounding import NEAREST, Quantizer, Rounding
from clefquant.sensitivity.shards import make_shards
from clefquant.sensitivity.store import ProbeStore
from clefquant.sensitivity.sweep import STORE_FILE, sweep


@pytest.fixture(scope="module")
def by_gptq(records) -> Rounding:
    return Rounding("gptq", records=tuple(records))


def test_a_unit_is_rounded_as_quantize_rounds_it(tiny, tiny_loaded, encoded, input_amax, by_gptq):
    """With one unit quantized nothing before it has changed, so `quantize --algorithm gptq` gives the same bits."""
    unit = tiny.units[2]
    layout = make_layout(tiny, {u.name: "nvfp4" if u is unit else "bf16" for u in tiny.units}, budget=None)
    expected = next(found.linears for found in gptq(tiny, layout, encoded) if found.unit == unit)
    found = Quantizer(tiny_loaded, input_amax, by_gptq)(unit, "nvfp4")
    assert list(found) == list(expected)
    for name, linear in found.items():
        assert all(torch.equal(tensor, expected[name].tensors[key]) for key, tensor in linear.tensors.items())


def test_units_may_be_asked_for_again_from_the_first_layer(tiny, tiny_loaded, input_amax, by_gptq):
    quantizer = Quantizer(tiny_loaded, input_amax, by_gptq)
    first = quantizer(tiny.units[0], "fp8")
    quantizer(tiny.units[-1], "fp8")
    again = quantizer(tiny.units[0], "fp8")
    assert all(torch.equal(first[name].tensors["weight"], again[name].tensors["weight"]) for name in first)


def test_gptq_tables_and_layouts_are_their_own(tmp_path: Path, tiny_loaded, records, input_amax, swept, by_gptq):
    table = sweep(tiny_loaded, input_amax, records, ["nvfp4"], tmp_path, rounding=by_gptq)
    assert table.rounding == {"algorithm": "gptq"}
    nearest = {entry.unit: entry.kl for entry in swept[1].entries if entry.format == "nvfp4"}
    assert all(entry.kl != nearest[entry.unit] for entry in table.entries)
    one = {unit.name: "nvfp4" if unit.name == "layers.1.mlp" else "bf16" for unit in table.units}
    with ProbeStore(tmp_path / STORE_FILE) as store:
        measurer = Measurer(tiny_loaded, store, input_amax, rounding=by_gptq)
        (entry,) = measurer.measure([one], records, "one unit")
    assert entry.kl == pytest.approx(table.entry("layers.1.mlp", "nvfp4").kl, rel=1e-3)


def test_rounding_is_part_of_the_key_where_it_matters(tiny, tiny_loaded, records, input_amax, by_gptq):
    keys, shards = Keys.of(tiny_loaded), make_shards(records, 4096, 10**9)

    def found(rounding: Rounding) -> dict[str, set[str]]:
        work = work_list(keys, tiny.units, ["fp8", "nvfp4"], shards, input_amax, rounding)
        return {name: {item.key for item in work if item.format == name} for name in ("fp8", "nvfp4")}

    plain, other_scales = found(NEAREST), found(Rounding(scales=Scales(nvfp4="four-over-six")))
    assert plain["fp8"] == other_scales["fp8"]
    assert not plain["nvfp4"] & other_scales["nvfp4"]
    fewer = Rounding("gptq", records=by_gptq.records[:-1])
    assert not any(found(by_gptq)[name] & found(other)[name] for name in plain for other in (NEAREST, fewer))


def test_block_scales_reach_the_probe(tiny, tiny_loaded, input_amax):
    unit, other = tiny.units[0], Rounding(scales=Scales(nvfp4="four-over-six"))
    plain, chosen = (Quantizer(tiny_loaded, input_amax, rounding)(unit, "nvfp4") for rounding in (NEAREST, other))
    source = {name: tiny_loaded.module(name).weight for name in plain}
    for name in plain:
        errors = [float((linear[name].weight - source[name]).square().sum()) for linear in (plain, chosen)]
        assert errors[1] < errors[0]
    assert other.named() == {"nvfp4-scales": "four-over-six"}


def test_what_cannot_be_probed_is_refused():
    with pytest.raises(InputError, match="a sweep cannot probe 'awq'; allowed: rtn, gptq"):
        Rounding("awq")
    with pytest.raises(InputError, match="gptq needs --calibration"):
        Rounding("gptq")
