"""Building a set: sources in order, each record checked, encoded and written, and a report of all of it."""

from pathlib import Path
from typing import Any, Literal, NamedTuple

from clefquant.calibration.encoding import load_encoder
from clefquant.calibration.mixture import Mixture
from clefquant.calibration.prepare import Limits, prepare
from clefquant.calibration.sources.registry import drafts
from clefquant.calibration.stored import CODE_FILE, HEADER_FILE, KIND, RECORDS_FILE, SCHEMA_VERSION, TOKENIZER_FILE
from clefquant.progress import SILENT, Progress
from clefquant.release.artefact import new_folder, provenance, sha256_file, sha256_json, write_json
from clefquant.release.release import Release


class Built(NamedTuple):
    """A finished set: its folder and its report."""

    path: Path
    report: dict[str, Any]


def build_set(
    release: Release,
    mixture: Mixture,
    split: Literal["calibration", "evaluation"] | None,
    out: Path,
    seed: int = 0,
    *,
    progress: Progress = SILENT,
) -> Built:
    """Write the set of ``mixture`` for ``release`` to the new folder ``out``; ``split`` None: the mixture's own."""
    side = split or mixture.split
    encoder = load_encoder(release.path)
    asked = mixture.asked()
    sources, records, tokens = [], 0, 0
    with new_folder(out) as work:
        with (work / RECORDS_FILE).open("w", encoding="utf-8", newline="\n") as lines:
            for source in mixture.sources:
                limits = Limits(source.name, mixture.max_length, source.max_state_tokens, source.min_state_tokens)
                kept = source_tokens = 0
                want = asked[source.name]
                for draft in drafts(source, mixture, side, seed, encoder):
                    if kept == want:
                        break
                    outcome = prepare(draft, limits, encoder)
                    if outcome.fault is None:
                        lines.write(outcome.line + "\n")
                        kept += 1
                        source_tokens += outcome.tokens
                sources.append({"name": source.name, "asked": want, "records": kept, "tokens": source_tokens})
                records += kept
                tokens += source_tokens
        header = {
            **provenance(KIND, SCHEMA_VERSION, {"mixture": sha256_json(mixture.model_dump(mode="json"))}, seed),
            "name": mixture.name,
            "split": side,
            "records": records,
            "tokens": tokens,
            "sources": sources,
            "tokenizer_sha256": sha256_file(release.path / TOKENIZER_FILE),
            "code_sha256": sha256_file(release.path / CODE_FILE),
            "records_sha256": sha256_file(work / RECORDS_FILE),
        }
        write_json(work / HEADER_FILE, header)
    return Built(out, {"records": records, "tokens": tokens, "sources": sources})
