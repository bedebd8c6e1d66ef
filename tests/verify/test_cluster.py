"""Ray workers on this machine against the serial run."""

import os
from dataclasses import replace

import pytest
import torch

from clefquant.errors import InputError, PrerequisiteError
from clefquant.release.load import default_device
from clefquant.verify import chunks, runner
from clefquant.verify.run import Options, verify
from clefquant.verify.runner import Job, Worker

SERIAL = Options(batch_tokens=1500)
SPREAD = replace(SERIAL, ray="auto")


@pytest.fixture(scope="module")
def one_thread(cluster):
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(autouse=True)
def many_chunks(monkeypatch):
    monkeypatch.setattr(chunks, "CHUNK_TOKENS", 1500)


@pytest.fixture(scope="module")
def serial(one_thread, tmp_path_factory, quantized, tiny, evaluation):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chunks, "CHUNK_TOKENS", 1500)
        out = tmp_path_factory.mktemp("serial") / "report"
        return verify(quantized("nvfp4").path, tiny.path, [evaluation], out, options=SERIAL)


def test_two_workers_of_which_one_dies_give_the_serial_report(
    serial, quantized, tiny, evaluation, folder, tmp_path, monkeypatch
):
    marker = tmp_path / "died"

    class Mortal(Worker):
        def answer(self, lines, batch_tokens):
            if not marker.exists():
                marker.touch()
                os._exit(1)
            return super().answer(lines, batch_tokens)

    monkeypatch.setattr(runner, "Worker", Mortal)
    report = verify(quantized("nvfp4").path, tiny.path, [evaluation], folder, options=SPREAD)
    assert marker.exists()
    assert report.value == serial.value
    assert report.html.read_bytes() == serial.html.read_bytes()


def test_killed_serial_run_goes_on_with_workers(serial, quantized, tiny, evaluation, folder, monkeypatch):
    written, real = [], chunks.write_answers

    def dies(path, *rest):
        if len(written) == 3:
            raise KeyboardInterrupt
        written.append(path)
        real(path, *rest)

    arguments = (quantized("nvfp4").path, tiny.path, [evaluation], folder)
    monkeypatch.setattr(chunks, "write_answers", dies)
    with pytest.raises(KeyboardInterrupt):
        verify(*arguments, options=SERIAL)
    monkeypatch.setattr(chunks, "write_answers", lambda path, *rest: (written.append(path), real(path, *rest)))
    assert verify(*arguments, options=SPREAD).value == serial.value
    assert len(written) == len(set(written)), "a finished chunk was computed again"


def test_a_worker_that_would_compute_other_numbers_refuses(tiny):
    device = default_device()
    same = runner._identity(tiny, device)
    job = Job(str(tiny.path), False, device.type, torch.get_num_threads(), same)
    Worker(job)
    other = same | {"package version": same["package version"] | {"torch": "0.1"}}
    with pytest.raises(InputError, match="a Ray worker has another package version than this process"):
        Worker(replace(job, identity=other))


def test_what_cannot_be(tiny, evaluation, folder, monkeypatch):
    with pytest.raises(InputError, match="leave --shard out"):
        verify(tiny.path, tiny.path, [evaluation], folder, options=replace(SPREAD, shard=(0, 2)))
    monkeypatch.setitem(__import__("sys").modules, "ray", None)
    with pytest.raises(PrerequisiteError, match="uv pip install ray"):
        verify(tiny.path, tiny.path, [evaluation], folder, options=SPREAD)
    assert not folder.exists()
