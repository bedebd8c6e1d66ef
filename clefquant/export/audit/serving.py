"""Who can serve the folder: vLLM versions, and whether its matrices divide over tensor-parallel ranks."""

from collections.abc import Iterator

from clefquant.export.audit.finding import Finding, error, info
from clefquant.export.audit.folder import AuditFolder
from clefquant.export.audit.modules import expected_shapes, quantized_modules
from clefquant.export.audit.schemes import QUARK, Quantization

_SPLIT_ROWS = ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj", "in_proj_qkv", "in_proj_z")
_SPLIT_COLUMNS = ("o_proj", "down_proj", "out_proj")
_HEADS = ("num_attention_heads", "linear_num_key_heads", "linear_num_value_heads")
_READERS = {
    "mxfp8-quantized": "vLLM 0.26 or newer reads it with compressed-tensors 0.17",
    "nvfp4-pack-quantized": "4-bit inputs need a Blackwell GPU; elsewhere it runs weight-only",
    "mxfp4-pack-quantized": "native on GPUs with MXFP4 kernels; elsewhere emulated or refused",
}


def check_serving(folder: AuditFolder, quantization: Quantization | None) -> Iterator[Finding]:
    """One remark: what reads this folder."""
    if folder.is_clef:
        head_at_root = folder.head_file is not None and "/" not in folder.head_file
        if folder.tables is not None:
            served = "vLLM 0.26 to 0.33 with the clef-vllm plugin alone (int8 tables)"
        elif head_at_root:
            served = "vLLM 0.26 to 0.33 with the clef-vllm plugin; stock vLLM from 0.33 on"
        else:
            served = (
                "vLLM 0.26 to 0.33 with the clef-vllm plugin (the head lies in a folder stock vLLM does not look into)"
            )
    else:
        served = "vLLM 0.26 to 0.33 as a text generator"
    formats = sorted({group.scheme.format for group in quantization.groups}) if quantization else []
    notes = [_READERS[name] for name in formats if name in _READERS]
    if quantization and quantization.method == QUARK:
        notes.append("read by vLLM's Quark loader; transformers needs amd-quark")
    yield info("serving", "; ".join([f"read by {served}", *notes]))


def check_ranks(folder: AuditFolder, quantization: Quantization | None, ranks: int) -> Iterator[Finding]:
    """Divisibility of heads, rows, columns and scale groups by ``ranks``."""
    if ranks <= 1:
        return
    remedy = f"serve with fewer ranks than {ranks}, or with data parallelism"
    for name in _HEADS:
        heads = folder.text.get(name)
        if isinstance(heads, int) and heads % ranks:
            yield error(
                "tensor-parallel", f"{name} is {heads}, which {ranks} ranks do not divide", remedy, "config.json"
            )
    shared = folder.text.get("num_key_value_heads")
    if isinstance(shared, int) and shared % ranks and ranks % shared:
        yield error(
            "tensor-parallel", f"num_key_value_heads {shared} and {ranks} ranks do not divide", remedy, "config.json"
        )
    shapes = expected_shapes(folder)
    for module in quantized_modules(folder):
        groups = quantization.groups_of(module) if quantization else []
        shape, leaf = shapes.get(f"{module}.weight"), module.rsplit(".", 1)[-1]
        if len(groups) != 1 or shape is None:
            continue
        scheme = groups[0].scheme
        rows, columns = scheme.block or (1, scheme.group or 1)
        unit, size = (
            (rows, shape[0]) if leaf in _SPLIT_ROWS else (columns, shape[1]) if leaf in _SPLIT_COLUMNS else (1, ranks)
        )
        if size % ranks or size // ranks % unit:
            axis = "outputs" if leaf in _SPLIT_ROWS else "inputs"
            whole = f"in whole groups of {unit}" if unit > 1 else "evenly"
            message = f"{module} has {size} {axis}, which {ranks} ranks do not divide {whole}"
            yield error("tensor-parallel", message, remedy, None, module)
