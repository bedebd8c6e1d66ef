"""The release's own code, taken from the public `clef-finetune` package, whose copy is checked byte for byte."""

import hashlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

SHA256 = "0e304cf7c6500e8bb59bef7e2afd2c6373f82596dfb3b57d1aa93c175e2dc3a3"


def reference_file() -> Path:
    """joint_schema_model.py as released; installed with `--no-deps clef-finetune==0.1.0`."""
    spec = importlib.util.find_spec("clef_finetune")
    assert spec is not None, "install the test dependency clef-finetune==0.1.0 (--no-deps)"
    assert spec.submodule_search_locations
    path = Path(spec.submodule_search_locations[0]) / "_vendor" / "joint_schema_model.py"
    assert hashlib.sha256(path.read_bytes()).hexdigest() == SHA256, f"{path} is not the released file"
    return path


def load_reference() -> ModuleType:
    name = "clef_reference"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, reference_file())
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
    return sys.modules[name]
