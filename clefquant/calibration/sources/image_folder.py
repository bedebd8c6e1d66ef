"""A folder of pictures, each asked the same questions."""

import random
from collections.abc import Iterator
from pathlib import Path

from clefquant.calibration.draft import Draft
from clefquant.calibration.source_config import ImageFolderSource
from clefquant.errors import InputError

SUFFIXES = frozenset((".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff"))


def image_folder_drafts(source: ImageFolderSource, folder: Path, seed: int) -> Iterator[Draft]:
    """One draft a picture, by path or drawn; files of other kinds are passed over."""
    if not folder.is_dir():
        raise InputError(f"{source.name}: there is no folder {folder}; a path is relative to the mixture's folder.")
    names = sorted(file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.suffix.lower() in SUFFIXES)
    if source.order == "random":
        random.Random(f"{source.name}/{seed}").shuffle(names)
    for name in names:
        record = {"state": source.state, "questions": source.questions, "images": [name]}
        yield Draft(name, name, record, base=folder)
