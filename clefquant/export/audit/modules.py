"""Every module against the configuration: matched by exactly one group, stored as that group says, nothing missing."""

from collections.abc import Iterator, Mapping

from clefquant.export.audit.finding import Finding, error, warning
from clefquant.export.audit.folder import AuditFolder
from clefquant.export.audit.fused import stored_tensors
from clefquant.export.audit.schemes import QUARK, Quantization, Scheme
from clefquant.export.audit.shapes import EMBEDDING, LM_HEAD, TEXT_NEEDED, text_shapes, tied
from clefquant.release.headers import TensorInfo
from clefquant.release.release import TABLES_FILE
from clefquant.release.units import reason_kept

_AGAIN = "quantize again"
_DOWNLOAD = "download or export the release again"
_FLOATS = ("BF16", "F16", "F32")
_QUANTIZED = {
    "weight_packed",
    "weight_scale",
    "weight_global_scale",
    "weight_scale_inv",
    "weight_scale_2",
    "input_scale",
}
_NAMES_SHOWN = 3
Modules = dict[str, dict[str, TensorInfo]]


def quantized_modules(folder: AuditFolder) -> Modules:
    """Modules that are stored quantized, by name."""
    modules = stored_tensors(folder.tensors)
    return {name: held for name, held in modules.items() if _is_quantized(held)}


def _is_quantized(held: Mapping[str, TensorInfo]) -> bool:
    weight = held.get("weight")
    return bool(_QUANTIZED & set(held)) or (weight is not None and weight.dtype not in (*_FLOATS, "F64"))


def check_modules(folder: AuditFolder, quantization: Quantization | None) -> Iterator[Finding]:
    """Matching, formats, dtypes, shapes, and what should never have been quantized."""
    quantized = quantized_modules(folder)
    shapes = expected_shapes(folder)
    for name, held in quantized.items():
        file = next(iter(held.values())).file.name
        yield from _never(name, file, quantization)
        groups = quantization.groups_of(name) if quantization else []
        if len(groups) == 1:
            yield from _stored(name, held, groups[0].scheme, shapes.get(f"{name}.weight"))
            continue
        if len(groups) > 1:
            message = f"{name} is matched by {len(groups)} config groups ({', '.join(group.name for group in groups)})"
            remedy = "write exact module names as targets"
        elif quantization and quantization.ignored(name):
            message, remedy = (
                f"{name} is stored quantized, but config.json ignores it",
                "remove it from ignore, or " + _AGAIN,
            )
        else:
            message = f"{name} is stored quantized, but no config group matches it"
            remedy = "add it to the group of its format"
        yield error("group-match", message, remedy, file, name)
    yield from _plain(folder, quantization, quantized)
    yield from _inventory(folder, shapes, quantized)


def expected_shapes(folder: AuditFolder) -> dict[str, tuple[int, ...]]:
    """Tensors that the configuration asks for; empty when it is too damaged to say."""
    complete = all(isinstance(folder.text.get(name), int) for name in TEXT_NEEDED)
    return text_shapes(folder.config) if complete else {}


def _never(name: str, file: str, quantization: Quantization | None) -> Iterator[Finding]:
    reason = reason_kept(f"{name}.weight")
    if reason is None:
        return
    gates = name.endswith(("in_proj_a", "in_proj_b"))
    # Quark's own template for this family quantizes them; its measured releases are what they are.
    make = warning if gates and quantization and quantization.method == QUARK else error
    yield make(
        "never-quantized",
        f"{name} is quantized; it should stay in BF16: {reason}",
        _AGAIN + " with it ignored",
        file,
        name,
    )


def _stored(
    name: str, held: Mapping[str, TensorInfo], scheme: Scheme, shape: tuple[int, ...] | None
) -> Iterator[Finding]:
    if shape is None or len(shape) != 2:
        return
    wanted = scheme.tensors(shape[0], shape[1])
    if wanted is None:
        return
    file = next(iter(held.values())).file.name
    if missing := [local for local in wanted if local not in held]:
        message = f"{name} lacks {', '.join(missing)}, which {scheme.format} stores"
        yield error("missing-tensor", message, _AGAIN, file, f"{name}.{missing[0]}")
    for local, info in held.items():
        full = f"{name}.{local}"
        if local not in wanted:
            if local == "weight" or (local == "weight_zero_point" and scheme.symmetric):
                yield error("wrong-form", f"{full} does not belong to {scheme.format}", _AGAIN, file, full)
            continue
        dtypes, expected = wanted[local]
        if info.dtype not in dtypes:
            yield error(
                "wrong-dtype",
                f"{full} is {info.dtype}, {scheme.format} stores {' or '.join(dtypes)}",
                _AGAIN,
                file,
                full,
            )
        same = info.shape == expected or (expected in ((1,), (shape[0], 1)) and info.shape in ((), (shape[0],), (1,)))
        if not same or (info.shape in ((), (1,)) and expected == (shape[0], 1)):
            message = f"{full} is {list(info.shape)}, {scheme.format} needs {list(expected)}"
            yield error("wrong-shape", message, _AGAIN, file, full)


def _plain(folder: AuditFolder, quantization: Quantization | None, quantized: Modules) -> Iterator[Finding]:
    for name, info in folder.tensors.items():
        module, _, local = name.rpartition(".")
        if module in quantized:
            continue
        if info.dtype not in _FLOATS:
            yield error(
                "wrong-dtype", f"{name} is {info.dtype}; what is not quantized is BF16", _AGAIN, info.file.name, name
            )
        linear = local == "weight" and len(info.shape) == 2 and "embed" not in module.rsplit(".", 1)[-1]
        if linear and quantization and quantization.groups_of(module):
            group = quantization.groups_of(module)[0].name
            message = f"{name} is stored plain, but {group} of config.json says it is quantized"
            yield error("group-match", message, f"add {module} to ignore, or {_AGAIN}", info.file.name, module)


def _inventory(folder: AuditFolder, shapes: Mapping[str, tuple[int, ...]], quantized: Modules) -> Iterator[Finding]:
    tensors = folder.tensors
    for name, shape in shapes.items():
        module = name.rpartition(".")[0]
        if module in quantized:
            continue
        info = tensors.get(name)
        if info is None:
            if name in (EMBEDDING, LM_HEAD):
                if folder.tables is None:
                    message = f"{name} is in no shard and there is no {TABLES_FILE}: servers start and answer NaN"
                    yield error("missing-tables", message, _DOWNLOAD, None, name)
            else:
                message = f"{name} is missing; it would stay uninitialized"
                yield error("missing-tensor", message, _DOWNLOAD, None, name)
        elif info.shape != shape:
            message = f"{name} is {list(info.shape)}, config.json asks for {list(shape)}"
            yield error("wrong-shape", message, _DOWNLOAD, info.file.name, name)
    if tied(folder.config) and LM_HEAD in tensors:
        message = "tie_word_embeddings is set, but lm_head is stored: which of the two answers depends on the reader"
        yield error("tied-tables", message, "set the flag to false, or drop lm_head", "config.json", LM_HEAD)
    if unknown := [name for name in tensors if not _known(name, shapes, quantized)]:
        shown = ", ".join(unknown[:_NAMES_SHOWN]) + (" …" if len(unknown) > _NAMES_SHOWN else "")
        message = f"{len(unknown)} tensors belong to no module of this family: {shown}"
        yield warning(
            "unknown-tensor",
            message,
            "save again through the whole model's class",
            tensors[unknown[0]].file.name,
            unknown[0],
        )


def _known(name: str, shapes: Mapping[str, tuple[int, ...]], quantized: Modules) -> bool:
    module = name.rpartition(".")[0]
    named = name in shapes or (module in quantized and (not shapes or f"{module}.weight" in shapes))
    return named or not shapes or name.startswith(("model.visual.", "mtp.")) or name == LM_HEAD
