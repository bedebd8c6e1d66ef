import contextlib
import json
import os
import random
import shutil
import signal
import sqlite3
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from clefquant.errors import InputError
from clefquant.quantize.model import quantize_from_disk
from clefquant.quantize.simulate import simulated
from clefquant.release.load import option_logits
from clefquant.sensitivity import rounding, walk
from clefquant.sensitivity.metrics import question_metrics
from clefquant.sensitivity.probe import Keys, work_list
from clefquant.sensitivity.shards import check_disjoint, make_shards
from clefquant.sensitivity.store import Probe, ProbeStore
from clefquant.sensitivity.sweep import sweep
from clefquant.sensitivity.table import read_table

FORMATS = ("fp8", "nvfp4", "mxfp4")


def weights(loaded) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in loaded.model.state_dict().items()}


def test_every_unit_and_format_has_an_entry(tiny, swept):
    _, table = swept
    assert [(e.unit, e.format) for e in table.entries] == [(u.name, f) for u in tiny.units for f in FORMATS]
    assert not table.failed
    entry = table.entries[0]
    assert set(entry.figures) == {"kl", "tv", "flip", "margin_flip", "score_shift"}
    assert {"source:even", "source:odd", "type:noul", "type:choice", "type:score"} <= set(entry.groups)
    assert entry.figures["kl"].questions == sum(table.questions)
    assert sum(entry.record_kl) / sum(table.questions) == pytest.approx(entry.kl)
    assert 0 <= table.noise.kl < min(e.kl for e in table.entries)


@pytest.mark.parametrize(("number", "name"), [(1, "nvfp4"), (0, "fp8"), (6, "mxfp4")])
def test_a_probe_equals_a_full_forward_of_the_simulated_model(
    tiny, tiny_loaded, records, input_amax, swept, number, name
):
    table, unit = swept[1], tiny.units[number]
    encoded = [record.encoded for record in records]

    def flat() -> np.ndarray:
        found = dict(option_logits(tiny_loaded, encoded, batch_tokens=4096))
        return torch.cat([torch.cat(found[i]) for i in range(len(encoded))]).double().numpy()

    before = flat()
    with simulated(tiny_loaded, quantize_from_disk(tiny, unit, name, input_amax)):
        after = flat()
    sizes = np.array([len(q.option_ids) for e in encoded for q in e.questions])
    types = np.array([q.question_type for e in encoded for q in e.questions])
    kl = question_metrics(before, after, sizes, types).kl
    entry = table.entry(unit.name, name)
    assert entry is not None
    assert entry.kl == pytest.approx(kl.mean(), rel=0.02, abs=1e-12)


def test_resumed_sweeps_equal_an_uninterrupted_one(tmp_path, tiny_loaded, records, input_amax, swept, monkeypatch):
    """Killed after each of several numbers of probes, in one file, then finished."""
    out, table = swept

    def killed_after(count: int):
        def run(*args, **keywords):
            for number, probe in enumerate(walk.probes(*args, **keywords)):
                if number == count:
                    raise KeyboardInterrupt
                yield probe

        return run

    for count in (0, 3, 1, 7, 2):
        monkeypatch.setattr("clefquant.sensitivity.sweep.probes", killed_after(count))
        with pytest.raises(KeyboardInterrupt):
            sweep(tiny_loaded, input_amax, records, FORMATS, tmp_path, shard_tokens=2000)
    monkeypatch.undo()
    resumed = sweep(tiny_loaded, input_amax, records, FORMATS, tmp_path, shard_tokens=2000)
    assert resumed == table
    assert (tmp_path / "sensitivity.json").read_bytes() == (out / "sensitivity.json").read_bytes()
    assert (tmp_path / "sensitivity.csv").read_bytes() == (out / "sensitivity.csv").read_bytes()


def test_a_sweep_killed_at_random_moments_ends_with_the_same_table(tmp_path, tiny_loaded, records, input_amax, swept):
    """SIGKILL of a real process, five times; what is committed is kept and nothing else is."""
    generator, store = random.Random(5), tmp_path / "sensitivity.sqlite"

    def committed() -> int:
        if not store.exists():
            return 0
        try:
            return (
                sqlite3.connect(f"file:{store}?mode=ro", uri=True).execute("SELECT count(*) FROM probe").fetchone()[0]
            )
        except sqlite3.OperationalError:  # not created yet
            return 0

    for _ in range(5):
        process = os.fork()
        if process == 0:
            sweep(tiny_loaded, input_amax, records, FORMATS, tmp_path, shard_tokens=2000)
            os._exit(0)
        target = committed() + generator.randint(1, 8)
        while committed() < target and os.waitpid(process, os.WNOHANG) == (0, 0):
            time.sleep(0.01)
        time.sleep(0.1 * generator.random())
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)
    kept = committed()
    assert kept > 0
    assert sweep(tiny_loaded, input_amax, records, FORMATS, tmp_path, shard_tokens=2000) == swept[1]
    assert (tmp_path / "sensitivity.json").read_bytes() == (swept[0] / "sensitivity.json").read_bytes()
    assert committed() > kept


def test_a_finished_sweep_is_not_run_again(tiny_loaded, records, input_amax, swept, monkeypatch):
    out, table = swept
    monkeypatch.setattr("clefquant.sensitivity.sweep.probes", lambda *_, **__: pytest.fail("probed again"))
    assert sweep(tiny_loaded, input_amax, records, FORMATS, out, shard_tokens=2000) == table
    assert read_table(out / "sensitivity.json") == table


def test_changed_inputs_are_never_mixed_in(tiny, tiny_loaded, records, input_amax):
    keys, shards = Keys.of(tiny_loaded), make_shards(records, 4096, 10**9)
    scaled = {name: 2 * value for name, value in input_amax.items()}

    def found(amax, data) -> dict[str, set[str]]:
        work = work_list(keys, tiny.units, FORMATS, data, amax)
        return {name: {item.key for item in work if item.format == name} for name in FORMATS}

    base, other_scales = found(input_amax, shards), found(scaled, shards)
    assert base["fp8"] == other_scales["fp8"]  # its input scales are dynamic
    assert not base["nvfp4"] & other_scales["nvfp4"]
    fewer = found(input_amax, make_shards(records[:-1], 4096, 10**9))
    assert not any(base[name] & fewer[name] for name in FORMATS)


def test_spilled_states_change_nothing(tmp_path, tiny_loaded, records, input_amax, swept):
    small = sweep(tiny_loaded, input_amax, records, FORMATS, tmp_path, shard_tokens=2000, cache_bytes=0)
    assert small == swept[1]
    assert sorted(file.name for file in tmp_path.iterdir()) == [
        "sensitivity.csv",
        "sensitivity.json",
        "sensitivity.sqlite",
    ]


def test_weights_are_bit_equal_afterwards_also_after_a_failure(tmp_path, tiny_loaded, records, input_amax, monkeypatch):
    before = weights(tiny_loaded)
    sweep(tiny_loaded, input_amax, records[:2], ["nvfp4"], tmp_path / "a")

    def broken(*args: object) -> torch.Tensor:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(walk, "run_mlp", broken)
    with pytest.raises(RuntimeError):
        sweep(tiny_loaded, input_amax, records[:2], ["nvfp4"], tmp_path / "b")
    after = weights(tiny_loaded)
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert list(before) == list(after)


def test_nan_probes_are_counted_shown_and_never_averaged(tmp_path, tiny_loaded, records, input_amax, monkeypatch):
    real = rounding.quantize_unit

    def poisoned(unit, weights, fmt, *rest):
        found = real(unit, weights, fmt, *rest)
        if (unit.name, fmt.name) == ("layers.1.mlp", "nvfp4"):
            for linear in found.values():
                linear.weight.fill_(torch.nan)
        return found

    monkeypatch.setattr(rounding, "quantize_unit", poisoned)
    table = sweep(tiny_loaded, input_amax, records, ["fp8", "nvfp4"], tmp_path)
    (failed,) = table.failed
    assert (failed.unit, failed.format, failed.figures) == ("layers.1.mlp", "nvfp4", {})
    assert failed.failed_logits == sum(len(q.option_ids) for r in records for q in r.encoded.questions)
    assert set(table.losses()["layers.1.mlp"]) == {"bf16", "fp8"}
    assert "layers.1.mlp,1,mlp,nvfp4" in (tmp_path / "sensitivity.csv").read_text()
    json.loads((tmp_path / "sensitivity.json").read_text(), parse_constant=pytest.fail)


def test_a_model_that_answers_nan_is_refused(tmp_path, tiny_loaded, records, input_amax):
    norm = tiny_loaded.text_model.norm.weight
    kept = norm.clone()
    norm.fill_(torch.nan)
    try:
        with pytest.raises(InputError, match="itself gives"):
            sweep(tiny_loaded, input_amax, records[:2], ["fp8"], tmp_path)
    finally:
        norm.copy_(kept)


def test_bad_input_is_refused_before_work(tmp_path, tiny_loaded, records, input_amax):
    with pytest.raises(InputError, match="no records"):
        sweep(tiny_loaded, input_amax, [], ["fp8"], tmp_path)
    with pytest.raises(InputError, match="unknown format 'fp3'"):
        sweep(tiny_loaded, input_amax, records, ["fp3"], tmp_path)
    with pytest.raises(InputError, match="no format to probe"):
        sweep(tiny_loaded, input_amax, records, ["bf16"], tmp_path)
    with pytest.raises(InputError, match="nvfp4 needs input statistics"):
        sweep(tiny_loaded, {}, records, ["nvfp4"], tmp_path)
    with pytest.raises(InputError, match="1 evaluation records are also in the calibration set, first r3"):
        check_disjoint(records[3:4], records)
    check_disjoint(records[:3], records[3:])


def test_a_store_of_another_kind_is_refused(tmp_path: Path, swept):
    (tmp_path / "text.sqlite").write_text("not a database" * 100)
    with pytest.raises(InputError, match="cannot be read as a sweep"):
        ProbeStore(tmp_path / "text.sqlite")
    newer = tmp_path / "newer.sqlite"
    shutil.copy(swept[0] / "sensitivity.sqlite", newer)
    database = sqlite3.connect(newer)
    database.execute("PRAGMA user_version = 99")
    database.close()
    with pytest.raises(InputError, match="version 99"):
        ProbeStore(newer)


def test_a_committed_probe_is_never_overwritten(tmp_path: Path):
    first = Probe("k", "u", "fp8", "s", 0, 1.0, np.array([1.5, -2.0], dtype=np.float32))
    with ProbeStore(tmp_path / "s.sqlite") as store:
        store.add(first)
        store.add(Probe("k", "u", "fp8", "s", 0, 2.0, np.zeros(2, dtype=np.float32)))
        found = store.get("k")
        assert (found.seconds, found.logits.tolist()) == (1.0, [1.5, -2.0])
        assert store.have(["k", "other"]) == {"k"}
