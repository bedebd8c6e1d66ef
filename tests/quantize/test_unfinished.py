"""A quantization killed after any layer goes on there and ends with the same bytes."""

import json

import pytest

from clefquant.errors import InputError
from clefquant.quantize import calibrated
from clefquant.quantize.algorithms import ALGORITHMS
from clefquant.quantize.calibrated import prepare
from clefquant.quantize.checkpoint import write_checkpoint
from clefquant.quantize.layerwise import Layerwise
from clefquant.quantize.unfinished import Unfinished
from clefquant.recipes.layout import uniform_layout

JOB = {"model": "one"}


class Killed(BaseException):
    """Stands for a signal: no handler in between catches it."""


def run(release, encoded, folder, algorithm, unfinished):
    layout = uniform_layout(release, "nvfp4")
    results = ALGORITHMS[algorithm](release, layout, encoded, journal=unfinished)
    return write_checkpoint(release, layout, results, folder, algorithm=algorithm, unfinished=unfinished)


def files(folder):
    """Bytes of every file, without when and how it was called."""
    found = {file.name: file.read_bytes() for file in sorted(folder.iterdir())}
    for name in ("checkpoint.json", "input_statistics.json"):
        value = json.loads(found[name])
        found[name] = json.dumps({key: value[key] for key in value if key != "command"})
    return found


@pytest.fixture(scope="module", params=["rtn", "gptq"])
def whole(request, tiny, encoded, tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole") / "out"
    return request.param, files(run(tiny, encoded, folder, request.param, Unfinished(folder, JOB, pause_seconds=0)))


@pytest.mark.parametrize("layer", [0, 1, 3])
def test_goes_on_with_the_same_bytes(tiny, encoded, folder, whole, layer, monkeypatch):
    algorithm, expected = whole
    unfinished, ran = Unfinished(folder, JOB, pause_seconds=0), []
    finish = unfinished.finish

    def killed_after(number, states):
        finish(number, states)
        if number == layer:
            raise Killed

    unfinished.finish = killed_after
    with pytest.raises(Killed):
        run(tiny, encoded, folder, algorithm, unfinished)
    assert not folder.exists()

    again = Unfinished(folder, JOB, pause_seconds=0)
    assert again.layer == layer + 1
    real = Layerwise._run
    monkeypatch.setattr(Layerwise, "_run", lambda self, number, *rest: (ran.append(number), real(self, number, *rest)))
    run(tiny, encoded, folder, algorithm, again)
    assert set(ran) == set(range(layer + 1, 4)), "finished layers are not run again"
    assert files(folder) == expected
    assert [path.name for path in folder.parent.iterdir()] == ["out"]


def interrupted(tiny, encoded, folder):
    unfinished = Unfinished(folder, JOB, pause_seconds=0)
    results = ALGORITHMS["rtn"](tiny, uniform_layout(tiny, "fp8"), encoded, journal=unfinished)
    for result in results:
        if result.unit.layer == 2:
            results.close()
            return


@pytest.mark.parametrize(
    ("job", "spoil"),
    [
        ({"model": "another"}, lambda kept: None),
        (JOB, lambda kept: next(kept.glob("states-*")).write_bytes(b"cut")),
        (JOB, lambda kept: (kept / "state.json").write_text("{")),
    ],
    ids=["another job", "states cut", "state damaged"],
)
def test_what_does_not_belong_is_not_gone_on_with(tiny, encoded, folder, job, spoil):
    interrupted(tiny, encoded, folder)
    spoil(folder.parent / ".out.quantizing" / "unfinished")
    assert Unfinished(folder, job, pause_seconds=0).layer == 0


def test_restart_discards(tiny, encoded, folder):
    interrupted(tiny, encoded, folder)
    assert Unfinished(folder, JOB, pause_seconds=0).layer == 2
    assert Unfinished(folder, JOB, restart=True).layer == 0


def test_nothing_is_saved_before_its_time(tiny, encoded, folder):
    unfinished = Unfinished(folder, JOB, pause_seconds=3600)
    list(ALGORITHMS["rtn"](tiny, uniform_layout(tiny, "fp8"), encoded, journal=unfinished))
    assert not list(folder.parent.rglob("states-*"))


def test_a_taken_folder_is_refused(folder):
    folder.mkdir()
    (folder / "mine").touch()
    with pytest.raises(InputError, match="not empty"):
        Unfinished(folder, JOB)


def test_another_version_is_another_job(tiny, folder, monkeypatch):
    job = prepare(tiny, uniform_layout(tiny, "fp8"), None, folder)
    before = job.identity()
    monkeypatch.setattr(calibrated, "__version__", "0.0.0")
    assert job.identity() != before
