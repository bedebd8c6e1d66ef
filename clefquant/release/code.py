"""The release's own Python: its encoder, head and answer formatter, imported from its folder.

This runs code from the folder, as loading any Clef release does: open only releases you trust.
"""

import hashlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

from clefquant.errors import InputError
from clefquant.release.release import CODE_FILE

#: The file as published with Clef and Clef-Flash (and in clef-finetune 0.1.0).
PUBLISHED_SHA256 = "0e304cf7c6500e8bb59bef7e2afd2c6373f82596dfb3b57d1aa93c175e2dc3a3"


def release_code(folder: Path) -> ModuleType:
    """Import ``joint_schema_model.py`` of ``folder``; equal bytes share one module."""
    source = (folder / CODE_FILE).read_bytes()
    name = f"clef_release_{hashlib.sha256(source).hexdigest()[:16]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, folder / CODE_FILE)
    if spec is None or spec.loader is None:
        raise InputError(f"cannot import {folder / CODE_FILE}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up while it is being executed
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
