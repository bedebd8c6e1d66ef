"""The vLLM plugin's source, which every release carries in ``vllm_plugin/``.

In a checkout it lies in ``plugins/clef_vllm``; an installed clefquant carries the same files as wheel data under
``share/clefquant/vllm_plugin`` of the environment (see ``design/export.md``).
"""

import sysconfig
import tomllib
from pathlib import Path

from clefquant.errors import PrerequisiteError

PLUGIN_FOLDER = "vllm_plugin"
PACKAGE = "clef_vllm"
_TOP_FILES = ("pyproject.toml", "README.md")


def plugin_source() -> Path:
    """The folder with the plugin's ``pyproject.toml``. PrerequisiteError when neither a checkout nor a wheel has it."""
    checkout = Path(__file__).resolve().parents[2] / "plugins" / PACKAGE
    installed = Path(sysconfig.get_path("data")) / "share" / "clefquant" / PLUGIN_FOLDER
    for folder in (checkout, installed):
        if all((folder / name).is_file() for name in (*_TOP_FILES, f"{PACKAGE}/__init__.py")):
            return folder
    raise PrerequisiteError(
        f"the vLLM plugin's source is neither in {checkout} nor in {installed}; a release carries it. "
        "Install clefquant from its wheel or run it from a checkout."
    )


def plugin_version(source: Path) -> str:
    """Version in the plugin's ``pyproject.toml``."""
    with (source / "pyproject.toml").open("rb") as handle:
        return str(tomllib.load(handle)["project"]["version"])


def plugin_files(source: Path) -> list[Path]:
    """Files that belong to the package, relative to ``source``: no tests, build folders or caches."""
    package = [
        file.relative_to(source)
        for file in sorted((source / PACKAGE).rglob("*"))
        if file.is_file() and (file.suffix == ".py" or file.name == "py.typed")
    ]
    return [*map(Path, _TOP_FILES), *package]


def copy_plugin(release: Path) -> str:
    """Copy the source into ``release/vllm_plugin``; returns its version."""
    source, target = plugin_source(), release / PLUGIN_FOLDER
    for relative in plugin_files(source):
        (target / relative).parent.mkdir(parents=True, exist_ok=True)
        (target / relative).write_bytes((source / relative).read_bytes())
    return plugin_version(source)
