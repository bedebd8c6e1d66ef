"""Checksums, missing side files, and files that do not belong."""

from collections.abc import Iterator, Mapping
from pathlib import Path

from clefquant.export.audit.finding import Finding, error, info, warning
from clefquant.export.audit.folder import POINTER, AuditFolder
from clefquant.export.sums import SUMS_FILE, parse_sums, release_files
from clefquant.release.artefact import sha256_file
from clefquant.release.release import CODE_FILE, HEAD_CONFIG_FILE, HEAD_FILE, HEAD_FOLDER

_AGAIN = "download the file again, or export again if the change was meant"
_LOADED = {".safetensors", ".bin", ".pt", ".json", ".py", ".jinja"}
#: Written by the Hub or a file system, never part of a release.
_FOREIGN = {".gitattributes", ".gitignore", ".DS_Store"}
_ANY_OF = (
    ("tokenizer.json",),
    ("tokenizer_config.json",),
    ("processor_config.json", "preprocessor_config.json"),
)
_WANTED = ("generation_config.json", "LICENSE")
_LEFTOVERS = (
    ("*.partial", "an interrupted write"), (".*.partial", "an interrupted write"),
    ("*.incomplete", "an interrupted download"),
    ("pytorch_model*", "another save"), ("consolidated*", "another save"), ("adapter_*", "an adapter"),
    ("optimizer*", "a training run"), ("hf_quant_config.json", "another quantizer"),
)  # fmt: skip


def check_files(folder: AuditFolder) -> Iterator[Finding]:
    """Side files that loading needs, leftovers, pointers among the small files."""
    for names in _ANY_OF:
        if not any((folder.path / name).is_file() for name in names):
            yield error("missing-file", f"{' or '.join(names)} is missing", "copy it from the BF16 release", names[0])
    if not (folder.path / "chat_template.jinja").is_file():
        yield info(
            "missing-file", "chat_template.jinja is missing", "copy it from the BF16 release", "chat_template.jinja"
        )
    for name in _WANTED:
        if not (folder.path / name).is_file():
            yield warning("missing-file", f"{name} is missing", "copy it from the BF16 release", name)
    if folder.is_clef:
        yield from _head_files(folder.path)
    for pattern, origin in _LEFTOVERS:
        for file in sorted(folder.path.glob(pattern)):
            yield warning("leftover", f"{file.name} is left from {origin}", "remove it", file.name)
    for name in release_files(folder.path):
        if (folder.path / name).suffix not in (".safetensors", "") and _is_pointer(folder.path / name):
            yield error("lfs-pointer", f"{name} is a Git LFS pointer", "fetch it with `git lfs pull`", name)


def check_sums(folder: AuditFolder, known: Mapping[str, str]) -> Iterator[Finding]:
    """``SHA256SUMS`` against the files. ``known``: digests that were computed while values were read."""
    path = folder.path / SUMS_FILE
    if not path.is_file():
        remedy = "clefquant export writes it; clefquant audit --repair --out DIR adds it"
        yield info("no-checksums", f"there is no {SUMS_FILE}: changed bytes cannot be found", remedy, SUMS_FILE)
        return
    sums = parse_sums(path.read_text(encoding="utf-8", errors="replace"))
    for line in sums.unread:
        yield error("checksum-line", f"{line[:60]!r} is no checksum line", "write the file again", SUMS_FILE)
    for name, digest in sums.files.items():
        file = folder.path / name
        if Path(name).is_absolute() or ".." in Path(name).parts or "\\" in name:
            yield error(
                "path-escape",
                f"{SUMS_FILE} names {name!r}, which leaves the folder",
                "do not use this release",
                SUMS_FILE,
            )
        elif file.is_symlink() and not file.resolve().is_relative_to(folder.path.resolve()) and not _in_cache(file):
            yield error("path-escape", f"{name} is a link out of the folder", "replace it by the file", name)
        elif not file.is_file():
            yield error("checksum-missing", f"{name} is listed in {SUMS_FILE} but not there", _AGAIN, name)
        elif (known.get(name) or sha256_file(file)) != digest:
            yield error("checksum-changed", f"{name} does not have the bytes that {SUMS_FILE} says", _AGAIN, name)
    for name in release_files(folder.path):
        if name not in sums.files and Path(name).name not in _FOREIGN:
            make = error if Path(name).suffix in _LOADED else warning
            yield make("checksum-extra", f"{name} is not listed in {SUMS_FILE}", "remove it, or export again", name)


def _in_cache(file: Path) -> bool:
    """Files of a Hub cache are links to blobs beside the snapshot."""
    return "blobs" in file.resolve().parts


def _head_files(path: Path) -> Iterator[Finding]:
    for name in (HEAD_FILE, HEAD_CONFIG_FILE):
        if not (path / name).is_file() and not (path / HEAD_FOLDER / name).is_file():
            yield error("missing-file", f"{name} is missing: nothing can answer", "copy it from the BF16 release", name)
    if not (path / CODE_FILE).is_file():
        yield error("missing-file", f"{CODE_FILE} is missing", "copy it from the BF16 release", CODE_FILE)


def _is_pointer(file: Path) -> bool:
    try:
        with file.open("rb") as handle:
            return handle.read(len(POINTER)) == POINTER
    except OSError:
        return False
