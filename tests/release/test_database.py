"""A disk that takes no more of a SQLite file is something the machine lacks, not a damaged file."""

import resource
from pathlib import Path

import numpy as np
import pytest

from clefquant.calibration.seen import Seen
from clefquant.errors import PrerequisiteError
from clefquant.sensitivity.store import Probe, ProbeStore


@pytest.fixture
def small_files():
    """No file may grow beyond 30 kB."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, limits[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def probe(key: str, count: int) -> Probe:
    return Probe(key, "unit", "fp8", "shard", 0, 0.0, np.zeros(count, np.float32))


@pytest.mark.usefixtures("small_files")
def test_probes(tmp_path: Path):
    with ProbeStore(tmp_path / "store.sqlite") as store:
        store.add(probe("a", 10))
        with pytest.raises(PrerequisiteError, match=r"store.sqlite cannot be written: .*Free space"):
            store.add(probe("b", 10_000))
    with ProbeStore(tmp_path / "store.sqlite") as store:
        assert store.have(["a", "b"]) == {"a"}


@pytest.mark.usefixtures("small_files")
def test_hashes_of_records(tmp_path: Path):
    seen = Seen(tmp_path / "seen.sqlite")
    seen.commit({"used": 1})
    for number in range(1000):
        seen.add(f"{number:064x}", f"r{number}")
    with pytest.raises(PrerequisiteError, match=r"seen.sqlite cannot be written: .*Free space"):
        seen.commit({"used": 1001})
    seen.close()
    again = Seen(tmp_path / "seen.sqlite")
    assert again.state() == {"used": 1}
    assert again.add(f"{0:064x}", "r0") is None, "hashes that the state does not count are forgotten"
    again.close()
