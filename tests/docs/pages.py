"""What the documentation tells people to type."""

import re
import shlex
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = sorted(path.relative_to(ROOT) for path in (ROOT / "docs").rglob("*.md"))
_BLOCK = re.compile(r"^```(\w+)(?: title=\"([^\"]+)\")?\n(.*?)^```", re.MULTILINE | re.DOTALL)


def blocks(page: Path | str, language: str) -> dict[str, str]:
    """Fenced blocks of a page in order, by title or number."""
    found = [match for match in _BLOCK.findall((ROOT / page).read_text(encoding="utf-8")) if match[0] == language]
    return {title or str(number): text for number, (_, title, text) in enumerate(found)}


def commands(page: Path | str) -> list[list[str]]:
    """The arguments of every `clefquant` that a page's shell blocks (or README's indented ones) call."""
    text = "\n".join(blocks(page, "bash").values())
    if Path(page).name == "README.md":
        lines = (ROOT / page).read_text(encoding="utf-8").splitlines()
        text = "\n".join(line.strip() for line in lines if line.startswith("    "))
    lines = text.replace("\\\n", " ").splitlines()
    return [shlex.split(line, comments=True)[1:] for line in lines if line.startswith("clefquant ")]
