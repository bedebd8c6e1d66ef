"""A split of a Hub data set as Parquet files. Loading scripts are never run: they are code, and the Hub no longer runs
them.

Files are looked for where the Hub keeps them: ``data/SPLIT-*.parquet``, ``CONFIG/SPLIT-*.parquet``, else, on the Hub,
in the branch that its converter writes (``refs/convert/parquet``: ``CONFIG/SPLIT/0000.parquet``).
"""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from clefquant.calibration.source_config import HubSource
from clefquant.errors import InputError, PrerequisiteError
from clefquant.release.cache import not_stored

CONVERTED = "refs/convert/parquet"


class Located(NamedTuple):
    """The files of a split in order, the folder they are under, and the commit they are of (empty: a local copy)."""

    files: list[Path]
    folder: Path
    commit: str


def locate(source: HubSource, mixture_folder: Path) -> Located:
    """Find (and on the Hub: download) the Parquet files of a split.

    InputError when the data set has none; PrerequisiteError when the Hub cannot be reached and nothing is cached.
    """
    if source.path is not None:
        folder = (mixture_folder / source.path).expanduser()
        names = (
            sorted(file.relative_to(folder).as_posix() for file in folder.rglob("*.parquet")) if folder.is_dir() else []
        )
        chosen = split_files(names, source.config, source.split)
        if not chosen:
            raise InputError(
                f"{source.name}: {folder} holds no Parquet file of split {source.split!r}; {_found(names)}"
            )
        return Located([folder / name for name in chosen], folder, "")
    return _download(source)


def split_files(names: Iterable[str], config: str | None, split: str) -> list[str]:
    """The names, among a data set's, that hold a split."""
    names = sorted(name for name in names if name.endswith(".parquet"))
    wanted = re.escape(split)
    folders = [re.escape(config)] if config else ["data", "default", re.escape("plain_text"), r"[^/]+"]
    for folder in folders:
        for pattern in (rf"{folder}/{wanted}(-\d+-of-\d+)?\.parquet", rf"{folder}/{wanted}/[^/]+\.parquet"):
            found = [name for name in names if re.fullmatch(pattern, name)]
            if len({name.rsplit("/", 1)[0] for name in found}) == 1:
                return found
    if config:
        return []
    return [name for name in names if re.fullmatch(rf"{wanted}(-\d+-of-\d+)?\.parquet", name)]


def _download(source: HubSource) -> Located:
    import httpx
    from huggingface_hub import HfApi, snapshot_download
    from huggingface_hub.errors import (
        HfHubHTTPError,
        HFValidationError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    revisions: list[str | None] = [source.revision] if source.revision else [None, CONVERTED]
    listed: list[str] = []
    try:
        for revision in revisions:
            try:
                info = HfApi().dataset_info(source.dataset, revision=revision)
            except RevisionNotFoundError:
                if revision == source.revision:
                    raise
                continue  # the converter has not been here
            names = [item.rfilename for item in info.siblings or ()]
            listed += names
            if chosen := split_files(names, source.config, source.split):
                # By the name of the revision, not its commit: the cache then knows it without the Hub.
                kept = snapshot_download(source.dataset, repo_type="dataset", revision=revision, allow_patterns=chosen)
                return Located([Path(kept) / name for name in chosen], Path(kept), Path(kept).name)
    except RevisionNotFoundError as error:
        raise InputError(f"{source.name}: {source.dataset} has no revision {source.revision!r}.") from error
    except (RepositoryNotFoundError, HFValidationError) as error:
        raise InputError(
            f"{source.name}: there is no data set {source.dataset} on the Hub (or no access to it)."
        ) from error
    except (LocalEntryNotFoundError, HfHubHTTPError, httpx.HTTPError, OSError) as error:
        cached = _cached(source, revisions)
        if cached is not None:
            return cached
        if told := not_stored(f"{source.name}: {source.dataset}", error):
            raise told from error
        raise PrerequisiteError(
            f"{source.name}: {source.dataset} is not in the Hub cache and the Hub cannot be reached "
            f"({str(error).rstrip('. ')}). "
            "Download the data set's Parquet files elsewhere and give their folder as path: in the mixture."
        ) from error
    script = any(name.endswith(".py") for name in listed)
    raise InputError(
        f"{source.name}: {source.dataset} has no Parquet file of split {source.split!r}"
        + (f", configuration {source.config!r}" if source.config else "")
        + (" (only a loading script, which is not run)" if script else f"; {_found(listed)}")
        + ". Use a Parquet copy of it, or download the files and give their folder as path: in the mixture."
    )


def _cached(source: HubSource, revisions: list[str | None]) -> Located | None:
    """The split in the Hub's local cache. Looked up by hand: the client asks for every file of the data set there."""
    from huggingface_hub.constants import HF_HUB_CACHE

    kept = Path(HF_HUB_CACHE) / f"datasets--{source.dataset.replace('/', '--')}"
    for revision in revisions:
        reference = kept / "refs" / (revision or "main")
        commit = reference.read_text().strip() if reference.is_file() else str(revision)
        folder = kept / "snapshots" / commit
        names = [file.relative_to(folder).as_posix() for file in folder.rglob("*.parquet")]
        if chosen := split_files(names, source.config, source.split):
            return Located([folder / name for name in chosen], folder, commit)
    return None


def _found(names: Iterable[str]) -> str:
    shown = [name for name in sorted(names) if name.endswith(".parquet")][:6]
    return "it has " + (", ".join(shown) if shown else "no Parquet files")
