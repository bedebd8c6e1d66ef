import numpy as np
import pytest
import torch

from clefquant.errors import InputError
from clefquant.quantize.scales import Scales
from clefquant.sensitivity.fisher import fisher_table, rank_correlation
from clefquant.sensitivity.run import run_sensitivity


def test_estimate_ranks_units_as_the_measurement_does(tiny_loaded, records, input_amax, swept):
    before = {name: tensor.clone() for name, tensor in tiny_loaded.model.state_dict().items()}
    table = fisher_table(tiny_loaded, input_amax, records, ["fp8", "nvfp4"], batch_tokens=2048, shard_tokens=2000)
    entries = table.entries
    measured = [entry for entry in swept[1].entries if entry.format in ("fp8", "nvfp4")]
    assert [(e.unit, e.format) for e in entries] == [(e.unit, e.format) for e in measured]
    assert rank_correlation(entries, measured)["nvfp4"] > 0.5
    # the second-order value is the right size, not only the right order
    ratio = sum(e.kl for e in entries if e.format == "nvfp4") / sum(e.kl for e in measured if e.format == "nvfp4")
    assert 0.2 < ratio < 5
    assert table.record_ids == swept[1].record_ids
    assert all(len(e.record_kl) == len(records) for e in entries)
    after = tiny_loaded.model.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert not any(p.requires_grad for p in tiny_loaded.model.parameters())


def test_the_same_seed_gives_the_same_estimate(tiny_loaded, records, input_amax):
    first, second, other = (
        fisher_table(tiny_loaded, input_amax, records[:2], ["fp8"], seed=seed) for seed in (1, 1, 2)
    )
    assert first == second
    assert first != other


def test_rank_correlation_of_a_table_with_itself_and_its_reverse(swept):
    entries = [entry for entry in swept[1].entries if entry.format == "fp8"]
    order = np.argsort([entry.kl for entry in entries])
    turned = [
        entries[i].model_copy(update={"figures": entries[j].figures}) for i, j in zip(order, order[::-1], strict=True)
    ]
    assert rank_correlation(entries, entries)["fp8"] == pytest.approx(1)
    assert rank_correlation(entries, turned)["fp8"] == pytest.approx(-1)


def test_the_choice_of_scales_reaches_the_estimate(tiny_loaded, records, input_amax):
    plain = fisher_table(tiny_loaded, input_amax, records[:2], ["mxfp4"])
    chosen = fisher_table(tiny_loaded, input_amax, records[:2], ["mxfp4"], scales=Scales(mxfp4="floor"))
    assert (plain.rounding, chosen.rounding) == ({}, {"mxfp4-scales": "floor"})
    assert [entry.kl for entry in plain.entries] != [entry.kl for entry in chosen.entries]


@pytest.mark.parametrize("option", [{"algorithm": "gptq"}, {"adaptive": True}, {"ray_address": "auto"}])
def test_what_an_estimate_cannot_do_is_refused(option, tiny, tmp_path):
    name = {"algorithm": "--algorithm", "adaptive": "--adaptive", "ray_address": "--ray"}[next(iter(option))]
    with pytest.raises(InputError, match=f"cannot take {name}"):
        run_sensitivity(tiny, tmp_path, tmp_path, ["fp8"], "0.6x", tmp_path / "out", metric="fisher", **option)
