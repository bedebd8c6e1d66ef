"""The fused groups llm-compressor does not know: a guarded, version-gated patch of its list.

Servers run ``in_proj_qkv`` and ``in_proj_z`` of a GDN block as one matrix product with one NVFP4 global scale.
llm-compressor 0.14 shares scales within the groups of ``FUSED_LAYER_NAMES``, which lacks that pair: quantized apart,
the member with the larger values shrinks in the server and answers change without an error.
"""

import importlib.metadata
from collections.abc import Iterator
from contextlib import contextmanager

from clefquant.errors import PrerequisiteError

GDN_PAIR = ("in_proj_qkv", "in_proj_z")
_SUPPORTED = "0.14."


@contextmanager
def fused_gdn_inputs() -> Iterator[None]:
    """Within the block llm-compressor shares one weight global scale between ``in_proj_qkv`` and ``in_proj_z``.

    The list is put back afterwards. Raises PrerequisiteError when this llm-compressor is not one the patch was
    tested with.
    """
    from llmcompressor.observers import helpers

    version = importlib.metadata.version("llmcompressor")
    groups = getattr(helpers, "FUSED_LAYER_NAMES", None)
    if not version.startswith(_SUPPORTED) or not isinstance(groups, list):
        raise PrerequisiteError(
            f"llmcompressor {version} is installed; shared GDN scales were tested with {_SUPPORTED}*: "
            f"uv pip install 'llmcompressor=={_SUPPORTED}*'"
        )
    if GDN_PAIR in groups:
        yield
        return
    groups.append(GDN_PAIR)
    try:
        yield
    finally:
        groups.remove(GDN_PAIR)
