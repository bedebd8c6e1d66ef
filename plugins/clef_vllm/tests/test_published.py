"""The four published folder shapes start, pass every check and answer as their simulation does."""

from pathlib import Path
from typing import Any

import pytest
from comparing import check, reference
from nano import records
from published import SHAPES, publish

pytest.importorskip("vllm")

from clef_vllm.checks import kernel_lines

pytestmark = pytest.mark.engine


@pytest.mark.parametrize("shape", SHAPES)
def test_serves(nano: Path, engine: Any, tmp_path: Path, shape: str, record_property: Any) -> None:
    folder, prepare = publish(shape, nano, tmp_path)
    expected = reference(nano, prepare)
    clef = engine(folder, max_num_batched_tokens=512)
    check(clef.probabilities(records()), expected, record_property)
    (lines,) = clef.llm.apply_model(kernel_lines)
    assert all("Emulated" in line for line in lines), lines
