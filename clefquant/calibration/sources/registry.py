"""Which function reads which kind of source, and which local files a source depends on."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from clefquant.calibration.draft import Draft
from clefquant.calibration.encoding import Encoder
from clefquant.calibration.example import Split
from clefquant.calibration.generators import FAMILIES
from clefquant.calibration.source_config import (
    EventLogSource,
    FileSource,
    GeneratorSource,
    HubSource,
    ImageFolderSource,
    PublicTextSource,
    RequestLogSource,
    Source,
)
from clefquant.calibration.sources.event_log import event_log_drafts
from clefquant.calibration.sources.generated import generator_drafts, public_text_drafts
from clefquant.calibration.sources.hub import locate
from clefquant.calibration.sources.image_folder import image_folder_drafts
from clefquant.calibration.sources.rows import open_rows
from clefquant.calibration.sources.table_records import check_adapter, request_drafts, table_drafts
from clefquant.errors import InputError


def drafts(
    source: Source, folder: Path, split: Split, seed: int, count: int | None, encoder: Encoder
) -> tuple[Iterator[Draft], dict[str, Any]]:
    """The drafts of one source, in an order fixed by source, split and seed; and where they come from, for the header.

    ``folder``: where relative paths start. Raises InputError or PrerequisiteError when the source is not there.
    """
    match source:
        case GeneratorSource():
            return generator_drafts(source, split, seed), {"origin": f"generator {source.family}"}
        case EventLogSource():
            assert count is not None  # the mixture refuses an endless source without one
            logs = event_log_drafts(source, split, seed, count, encoder.state_tokens)
            return logs, {"origin": "generator event_log"}
        case PublicTextSource():
            from clefquant.calibration.public_text import DATASETS

            found = DATASETS.get(source.dataset)
            about = {"origin": found.source, "license": found.licence} if found else {}
            return public_text_drafts(source, split, seed), about
        case FileSource():
            path = (folder / source.path).expanduser()
            return table_drafts(source, [open_rows(path)], path.parent, seed, count), {"origin": path.name}
        case RequestLogSource():
            path = (folder / source.path).expanduser()
            return request_drafts(source, open_rows(path), path.parent, seed, count), {"origin": path.name}
        case ImageFolderSource():
            path = (folder / source.path).expanduser()
            return image_folder_drafts(source, path, seed), {"origin": path.name}
        case HubSource():
            located = locate(source, folder)
            rows = table_drafts(source, [open_rows(file) for file in located.files], located.folder, seed, count)
            about = {"origin": source.dataset, "revision": located.commit or source.revision or "local copy"}
            return rows, about


def check_sources(sources: Sequence[Source], folder: Path) -> None:
    """InputError for the first wrong name or missing file (of a source that is not optional), before any slow step."""
    for source in sources:
        if isinstance(source, GeneratorSource) and source.family not in FAMILIES:
            raise InputError(f"{source.name}: there is no family {source.family!r}; use one of {', '.join(FAMILIES)}.")
        if isinstance(source, (FileSource, HubSource)):
            check_adapter(source)
        for path in local_files(source, folder):
            if not path.exists() and not source.optional:
                raise InputError(f"{source.name}: there is no {path}; paths are relative to the mixture's folder.")


def local_files(source: Source, folder: Path) -> list[Path]:
    """Files and folders of this machine that a source reads."""
    if isinstance(source, (FileSource, RequestLogSource, ImageFolderSource)):
        return [(folder / source.path).expanduser()]
    return [(folder / source.path).expanduser()] if isinstance(source, HubSource) and source.path else []
