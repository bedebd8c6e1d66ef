"""Two Ray workers on this machine against the serial sweep."""

import os
import pickle
from dataclasses import replace
from pathlib import Path

import pytest

from clefquant.errors import InputError, PrerequisiteError
from clefquant.sensitivity.shards import Shard, make_shards
from clefquant.sensitivity.spread import Job, RayRunner, Worker
from clefquant.sensitivity.sweep import sweep
from clefquant.verify.cluster import unpacked

FORMATS = ("fp8", "nvfp4", "mxfp4")


def test_two_workers_of_which_one_dies_give_the_serial_table(
    cluster, tmp_path: Path, tiny_loaded, records, input_amax, swept
):
    marker = tmp_path / "died"

    class Mortal(Worker):
        def probe(self, unit, items):
            if unit.name == "layers.1.mlp" and not marker.exists():
                marker.touch()
                os._exit(1)
            return super().probe(unit, items)

    runner = RayRunner(tiny_loaded, "auto", 1 << 30, workers=2, worker=Mortal)
    table = sweep(tiny_loaded, input_amax, records, FORMATS, tmp_path, shard_tokens=2000, runner=runner)
    assert marker.exists()
    assert table == swept[1]
    assert (tmp_path / "sensitivity.json").read_bytes() == (swept[0] / "sensitivity.json").read_bytes()


def test_workers_that_always_die_end_the_sweep(cluster, tmp_path: Path, tiny_loaded, records, input_amax, monkeypatch):
    class Doomed(Worker):
        def __init__(self, job):
            pass

        def probe(self, unit, items):
            os._exit(1)

    monkeypatch.setattr("clefquant.verify.cluster.MAX_DEATHS", 1)
    runner = RayRunner(tiny_loaded, "auto", 1 << 30, workers=1, worker=Doomed)
    with pytest.raises(PrerequisiteError, match=r"2 Ray workers died .* what is finished is kept"):
        sweep(tiny_loaded, input_amax, records[:2], ["fp8"], tmp_path, runner=runner)


def test_a_worker_that_would_compute_other_numbers_refuses(tiny_loaded, records, input_amax):
    job = Job.of(tiny_loaded, make_shards(records[:2], 4096, 10**9), input_amax, 1 << 30)
    with pytest.raises(InputError, match="another model, device or package version"):
        Worker(replace(job, dtype="bfloat16"))


def test_a_job_carries_the_records_exactly(tiny_loaded, records, input_amax):
    shards = make_shards(records, 4096, 2000)
    job = pickle.loads(pickle.dumps(Job.of(tiny_loaded, shards, input_amax, 1 << 30)))
    rebuilt = [Shard(unpacked(lines, tiny_loaded.code), batch_tokens) for batch_tokens, lines in job.shards]
    assert [shard.fingerprint for shard in rebuilt] == [shard.fingerprint for shard in shards]


def test_without_ray_the_message_says_how_to_get_it(monkeypatch, tiny_loaded):
    monkeypatch.setitem(__import__("sys").modules, "ray", None)
    with pytest.raises(PrerequisiteError, match="uv pip install ray"):
        next(RayRunner(tiny_loaded, "auto", 1)([], [], {}))
