"""What the documentation tells people to type, and a folder in which they can type it."""

import json
import re
import shlex
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml

from ..export.conftest import hub  # noqa: F401  (a fixture)

ROOT = Path(__file__).parents[2]
README = Path("README.md")
PAGES = sorted(path.relative_to(ROOT) for path in (ROOT / "docs").rglob("*.md"))
_FENCED = re.compile(r"^```(\w+)(?: title=\"([^\"]+)\")?\n(.*?)^```", re.MULTILINE | re.DOTALL)
#: What a page names and a test cannot have, or that so few records cannot keep, to what stands in for it.
STAND_INS = (
    (r"Cloudflare/clef(-flash)?", "nano"),
    (r"ORG/NAME", "acme/nano"),
    (r"10\.3GB", "10.3MB"),
    (r"budget: 0\.5x", "budget: 0.6x"),
    (r"kl=0\.001", "kl=1e-7"),
    (r"time=0\.7x", "time=1x"),
    # fewer probes and candidates
    (r"clefquant sensitivity --model nano --cal", "clefquant sensitivity --candidates 1 --model nano --cal"),
    (r"(budget: \S+)(\n  candidates: \d+)?", r"\1\n  candidates: 1"),
    (r"\[fp8, nvfp4, mxfp4\]", "[fp8, nvfp4]"),
    # limits
    (r"(agreement|accuracy_change) >= \S+ %", r"\1 >= -100 %"),
    (r"kl <= \S+", "kl <= 10"),
    (r"confident_flip_rate <= \S+ %", "confident_flip_rate <= 100 %"),
)


class Block(NamedTuple):
    language: str
    title: str
    text: str


def blocks(page: Path, *languages: str) -> list[Block]:
    """The fenced blocks of a page in these languages, in order."""
    found = (Block(*parts) for parts in _FENCED.findall((ROOT / page).read_text(encoding="utf-8")))
    return [block for block in found if block.language in languages]


def commands(page: Path) -> list[str]:
    """Every command of a page's shell blocks, lines joined; of README, of every indented block."""
    if page == README:
        lines = (ROOT / page).read_text(encoding="utf-8").splitlines()
        text = "\n".join(line for line in lines if line.startswith("    "))
    else:
        text = "\n".join(block.text for block in blocks(page, "bash", "console", "sh", "shell"))
    found, held = [], ""
    for line in text.splitlines():
        held += line.strip().removesuffix("\\") + "\n"
        if line.endswith("\\") or held.count("'") % 2:
            continue
        if words := shlex.split(held, comments=True):
            found.append(shlex.join(words))
        held = ""
    assert not held.strip(), f"{page}: {held} has no end"
    return found


def stand_in(text: str) -> str:
    """``text`` with everything named that the test's folder has."""
    for pattern, replacement in STAND_INS:
        text = re.sub(pattern, replacement, text)
    return text


def write_mixture(folder: Path, name: str, split: str, count: int = 8) -> None:
    """A mixture of ``count`` short records, drawn from more that no other mixture has."""
    records = [
        {
            "state": f"{name} {number}: the parcel is late",
            "questions": {"late": {"type": "noul", "instructions": "Is it late?"}},
            "answers": {"late": True},
        }
        for number in range(50 * count)
    ]
    (folder / f"{name}.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    source = {"name": name, "kind": "file", "path": f"{name}.jsonl", "count": count, "license": "Apache-2.0"}
    (folder / f"{name}.yaml").write_text(yaml.safe_dump({"name": name, "split": split, "sources": [source]}))


@pytest.fixture
def folder(hub, tmp_path, monkeypatch):  # noqa: F811
    """The working folder: configs/ beside it, tiny mixtures under the bundled names, a loopback Hub."""
    mixtures = tmp_path / "bundled"
    mixtures.mkdir()
    for path in sorted((ROOT / "configs" / "mixtures").glob("*.yaml")):
        write_mixture(mixtures, path.stem, yaml.safe_load(path.read_text()).get("split", "calibration"))
    for path in (*(ROOT / "configs").glob("*.yaml"), *(ROOT / "configs").glob("gates/*.yaml")):
        target = tmp_path / path.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(stand_in(path.read_text()))
    monkeypatch.setattr("clefquant.calibration.mixture.BUNDLED", mixtures)
    monkeypatch.chdir(tmp_path)
    return tmp_path
