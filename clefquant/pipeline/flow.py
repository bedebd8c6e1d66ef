"""The stages of ``clefquant run`` in order: each is one public function of the library on the folders of the run."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, Protocol

from clefquant.calibration.build import build_set
from clefquant.calibration.mixture import load_mixture
from clefquant.calibration.stored import StoredSet, open_set
from clefquant.errors import CheckFailed, InputError
from clefquant.export.audit import audit, has_errors
from clefquant.export.release_folder import export_release
from clefquant.export.replace import settle
from clefquant.export.tables import shrink_tables
from clefquant.pipeline.config import PlanConfig, RunConfig, SetConfig
from clefquant.pipeline.config_file import read_config, resolve
from clefquant.pipeline.journal import Journal, Watch
from clefquant.pipeline.probe import make_probe
from clefquant.progress import SILENT, Progress
from clefquant.quantize.calibrated import chosen_layout, quantize
from clefquant.recipes.awq import SMOOTHED
from clefquant.recipes.layout import Layout, read_layout
from clefquant.release.artefact import sha256_file, write_json
from clefquant.release.code import release_code
from clefquant.release.locks import locked
from clefquant.release.release import TABLES_FILE, Release, open_release
from clefquant.release.shards import parse_size
from clefquant.sensitivity.plan import Constraints
from clefquant.sensitivity.run import STATISTICS_FILE, run_sensitivity
from clefquant.verify.run import Options, verify

STAGES = ("calibration", "selection", "evaluation", "sensitivity", "checkpoint", "release", "audit", "report")
Split = Literal["calibration", "evaluation"]


class View(Watch, Progress, Protocol):
    """Who draws a run."""


@dataclass
class Flow:
    """One run: its configuration, its folder, its journal, and the results of the stages done so far."""

    config_file: Path
    config: RunConfig
    journal: Journal
    progress: Progress = SILENT
    results: dict[str, Any] = field(default_factory=dict)

    @cached_property
    def release(self) -> Release:
        """The source model."""
        return open_release(resolve(self.config.model, self.config_file))

    @property
    def out(self) -> Path:
        """Folder of the run."""
        return self.journal.out

    def stages(self, until: str) -> list[str]:
        """The stages up to ``until``, without those that the configuration does not ask for."""
        left_out = {"selection", "sensitivity"} if self.config.plan is None else set()
        left_out |= {"calibration"} if self.config.calibration is None else set()
        return [name for name in STAGES[: STAGES.index(until) + 1] if name not in left_out]

    def watched_by(self, view: "View") -> None:
        """Tell ``view`` of stages and of the work in them."""
        self.progress = self.journal.watch = view

    def run(self, until: str = STAGES[-1]) -> None:
        """Do every stage up to ``until`` that was not done before from the same inputs."""
        with locked(self.out, self.out / ".lock"):
            for name in self.stages(until):
                stage: Callable[[], dict[str, Any]] = getattr(self, f"_{name}")
                self.results[name] = stage()

    def _calibration(self) -> dict[str, Any]:
        assert self.config.calibration is not None
        return self._build("calibration", "calibration", self.config.calibration, against=())

    def _selection(self) -> dict[str, Any]:
        return self._build("selection", "calibration", self._plan.selection, against=("calibration",))

    def _evaluation(self) -> dict[str, Any]:
        others = [name for name in ("calibration", "selection") if name in self.results]
        return self._build("evaluation", "evaluation", self.config.evaluation, against=others)

    def _sensitivity(self) -> dict[str, Any]:
        plan = self._plan
        inputs = {
            "model": self.release.fingerprint,
            "calibration": self._prints("calibration"),
            "selection": self._prints("selection"),
            "plan": plan.model_dump(mode="json", exclude={"selection"}),
            "algorithm": self._probed_by,
            "scales": asdict(self.config.scales),
        }

        def work(target: Path) -> dict[str, Any]:
            outcome = run_sensitivity(
                self.release, self.out / "calibration", self.out / "selection", plan.formats, plan.budget, target,
                constraints=Constraints(pin=dict(plan.pin), forbid=plan.forbid), algorithm=self._probed_by,
                scales=self.config.scales, candidates=plan.candidates, progress=self.progress,
            )  # fmt: skip
            return {"layout": str(outcome.files["layout"]), "formats": list(outcome.layout.formats())}

        return self.journal.stage("sensitivity", inputs, work, keeps_partial=True)

    def _checkpoint(self) -> dict[str, Any]:
        layout = self._layout()
        scales = self.config.scales.used(layout.units.values()) if self.config.plan else self.config.scales
        inputs = {
            "model": self.release.fingerprint,
            "calibration": self._prints("calibration") if self._calibration_set else None,
            "layout": layout.units,
            "algorithm": self.config.algorithm,
            "scales": asdict(scales),
            "tables": self.config.tables,
        }

        def work(target: Path) -> dict[str, Any]:
            settle(target)
            if not target.exists():  # it appears whole
                quantize(
                    self.release, layout, self._calibration_set, target, algorithm=self.config.algorithm, scales=scales,
                    earlier=self.out / "sensitivity" / STATISTICS_FILE, progress=self.progress,
                )  # fmt: skip
            if self.config.tables == "int8" and not (target / TABLES_FILE).exists():
                shrink_tables(target, progress=self.progress)
            return {"sha256": sha256_file(target / "checkpoint.json"), "bytes": layout.bytes}

        return self.journal.stage("checkpoint", inputs, work, keeps_partial=True)

    def _release(self) -> dict[str, Any]:
        inputs = {
            "checkpoint": self.results["checkpoint"],
            "tables": self.config.tables,
            "configuration": sha256_file(self.config_file),
            "max_shard_size": self.config.max_shard_size,
            "evaluation": self._prints("evaluation"),
        }

        def work(target: Path) -> dict[str, Any]:
            probe = make_probe(self.out / "checkpoint", list(self._stored("evaluation")))
            if probe is None:
                self.progress.warn(
                    "the release gets no probe: of the shortest evaluation records without media, none has answers "
                    "that rounding leaves alone. Servers will not check their answers at start."
                )
            exported = export_release(
                self.out / "checkpoint", target, config=self.config_file, probe=probe,
                max_shard_bytes=parse_size(self.config.max_shard_size),
                calibration=self._calibration_set, base_model=self.config.base_model, progress=self.progress,
            )  # fmt: skip
            return {"sha256": exported.sums_sha256, "files": exported.files, "bytes": exported.bytes}

        return self.journal.stage("release", inputs, work)

    def _audit(self) -> dict[str, Any]:
        def work(target: Path) -> dict[str, Any]:
            findings = audit(self.out / "release", progress=self.progress)
            target.mkdir()
            write_json(target / "findings.json", [finding.to_json() for finding in findings])
            if has_errors(findings):
                worst = next(finding for finding in findings if finding.severity == "error")
                raise CheckFailed(
                    f"the release does not pass its audit: {worst.message} All: {target / 'findings.json'}"
                )
            return {"findings": len(findings)}

        return self.journal.stage("audit", {"release": self.results["release"]}, work)

    def _report(self) -> dict[str, Any]:
        gate = resolve(self.config.verify.gate, self.config_file) if self.config.verify.gate else None
        inputs = {
            "release": self.results["release"],
            "model": self.release.fingerprint,
            "evaluation": self._prints("evaluation"),
            "gate": None if gate is None else Path(gate).read_text(encoding="utf-8"),
        }

        def work(target: Path) -> dict[str, Any]:
            report = verify(
                self.out / "release", self.release.reference, [self.out / "evaluation"], target,
                gate=None if gate is None else Path(gate),
                options=Options(sensitivity=self.out / "sensitivity" if self.config.plan else None),
                progress=self.progress,
            )  # fmt: skip
            return report.summary

        return self.journal.stage("report", inputs, work, keeps_partial=True)

    @property
    def _plan(self) -> PlanConfig:
        assert self.config.plan is not None
        return self.config.plan

    @property
    def _probed_by(self) -> str:
        """How the sweep rounds. AWQ's scales are shared by a layer's units, so there is no probing one unit by it."""
        return "rtn" if self.config.algorithm in SMOOTHED else self.config.algorithm

    @property
    def _calibration_set(self) -> Path | None:
        return None if self.config.calibration is None else self.out / "calibration"

    def _layout(self) -> Layout:
        if self.config.plan is not None:
            return read_layout(self.out / "sensitivity" / "layout.json", self.release)
        file = resolve(self.config.layout, self.config_file) if self.config.layout else None
        return chosen_layout(self.release, self.config.scheme, None if file is None else Path(file))

    def _stored(self, name: str) -> StoredSet:
        return open_set(self.out / name, self.release.path, release_code(self.release.path))

    def _prints(self, name: str) -> str:
        return str(self.results[name]["fingerprint"])

    def _build(self, stage: str, split: Split, chosen: SetConfig, against: Sequence[str]) -> dict[str, Any]:
        mixture = load_mixture(resolve(chosen.mixture, self.config_file))
        inputs = {
            "model": self.release.fingerprint,
            "mixture": mixture.model_dump(mode="json"),
            "split": split,
            "seed": chosen.seed,
            "against": [self._prints(name) for name in against],
        }

        def work(target: Path) -> dict[str, Any]:
            others = [self.out / name for name in against]
            build_set(
                self.release, mixture, split, target, chosen.seed,
                against=others, drop_overlap=True, progress=self.progress,
            )  # fmt: skip
            stored = self._stored(stage)
            return {"records": len(stored), "tokens": stored.tokens, "fingerprint": stored.fingerprint}

        return self.journal.stage(stage, inputs, work, keeps_partial=True)


def open_flow(config_file: Path, force: Iterable[str] = (), out: Path | None = None) -> Flow:
    """Read the configuration and the run's journal. InputError on a wrong field or an unknown stage.

    ``force``: stages to do again whatever their inputs are. ``out``: instead of the configuration's.
    """
    forced = frozenset(force)
    for stage in sorted(forced):
        check_stage(stage)
    config = read_config(config_file)
    journal = Journal(out or Path(config.out), forced, configuration=sha256_file(config_file))
    return Flow(config_file, config, journal)


def check_stage(name: str) -> None:
    """InputError when there is no such stage."""
    if name not in STAGES:
        raise InputError(f"there is no stage {name}; stages are {', '.join(STAGES)}.")
