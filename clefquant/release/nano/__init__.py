"""The bundled nano Clef: trained weights in this folder, written out as an ordinary release.

``joint_schema_model.py`` is Cloudflare's file and not ours to ship: it is copied from the installed ``clef-finetune``
package, which carries it unmodified, and its hash is checked.
"""

import os
import shutil
import tempfile
from importlib.util import find_spec
from pathlib import Path

from clefquant import __version__
from clefquant.errors import InputError, PrerequisiteError
from clefquant.release.artefact import new_folder, sha256_file

BUNDLED = Path(__file__).parent
_INSTALL = "uv pip install --no-deps clef-finetune==0.1.0"


def write_nano(folder: Path) -> Path:
    """Write nano as an ordinary release folder; ``folder`` must not hold anything yet.

    Raises PrerequisiteError when clef-finetune is not installed or carries another ``joint_schema_model.py``.
    """
    code = _code_file()
    with new_folder(folder) as work:
        for file in sorted(BUNDLED.iterdir()):
            if file.is_file() and not file.name.startswith("__init__"):
                shutil.copyfile(file, work / file.name)
        shutil.copyfile(code, work / code.name)
    return folder


def cached_nano() -> Path:
    """The release folder that the reference ``nano`` stands for, written once per version of its files."""
    stamp = sha256_file(BUNDLED / "model.safetensors")[:12]
    name = f"nano-{__version__}-{stamp}"
    for root in _cache_roots():
        folder = root / "clefquant" / name
        if not (folder / _code_file().name).is_file():
            try:
                write_nano(folder)
            except (InputError, OSError):  # a read-only home, a full disk: the next one
                continue
        return folder
    raise PrerequisiteError("no writable cache folder for nano; set XDG_CACHE_HOME to one.")


def _cache_roots() -> tuple[Path, ...]:
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return home, Path(tempfile.gettempdir()) / f"clefquant-{os.getuid()}"


def _code_file() -> Path:
    from clefquant.release.code import PUBLISHED_SHA256

    spec = find_spec("clef_finetune")
    if spec is None or spec.origin is None:
        raise PrerequisiteError(f"nano needs the model code of clef-finetune, which is not installed: {_INSTALL}")
    file = Path(spec.origin).parent / "_vendor" / "joint_schema_model.py"
    if not file.is_file() or sha256_file(file) != PUBLISHED_SHA256:
        raise PrerequisiteError(f"the installed clef-finetune does not carry the published model code: {_INSTALL}")
    return file
