"""A run that is killed, or whose disk is full, and goes on: has it the bytes of a run that nothing happened to?

    python benchmarks/crash.py [--kills 30] [--at-changes 30] [--full-disks 10] [--seed 0]

A small run of nano with every stage is done twice without interruption and must give the same files. Then it is killed
with SIGKILL at a random moment (--kills), or right before a random one of the changes it makes to its folder
(--at-changes: moments that last too short to be met by chance), and started again with the same command; or it is done
on a file system of a random size below what it needs (--full-disks), where it must end with exit code 2 or 3 and one
line that says why, and started again once there is room. One line a trial; exit code 1 when anything is wrong.

Mounts a tmpfs: run it as root, or under `unshare -Urm`. Not compared are durations and peaks of memory: ``seconds`` and
``peak_memory_bytes`` in run.json and in the reports of sets, and the column ``seconds`` of sensitivity.sqlite.
"""

import argparse
import hashlib
import os
import random
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import yaml

SOURCES = [{"name": family, "kind": "generator", "family": family, "count": 4} for family in ("routing", "game")]
RUN = {
    "model": "nano",
    "calibration": {"mixture": "few.yaml"},
    "evaluation": {"mixture": "few.yaml", "seed": 1},
    "plan": {
        "selection": {"mixture": "few.yaml", "seed": 2}, "formats": ["fp8", "nvfp4"], "budget": "0.6x", "candidates": 1,
    },
    "tables": "int8",
}  # fmt: skip
#: clefquant that counts the changes it is about to make to files below FOLDER and kills itself before number LAST.
CLEFQUANT = """
import atexit, os, signal, sys
seen = 0
def count(event, args):
    global seen
    if event == "open":
        changes = str(args[0]).startswith(os.environ["FOLDER"]) and args[2] & (os.O_WRONLY | os.O_RDWR)
    else:
        changes = event in ("os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.link", "os.truncate")
    if changes:
        seen += 1
        if seen == int(os.environ["LAST"]):
            os.write(2, f"before {event} {args[0]}".encode())
            os.kill(os.getpid(), signal.SIGKILL)
sys.addaudithook(count)
atexit.register(lambda: os.write(2, f"\\nchanges: {seen}".encode()))
from clefquant.cli.app import main
main()
"""
ROOM_BYTES = 1 << 30


def content(path: Path) -> bytes:
    """A file's bytes without durations and peaks of memory."""
    if path.suffix == ".sqlite":
        rows = sqlite3.connect(path).execute("SELECT key, subject, format, shard, failed, logits FROM probe")
        return repr(sorted(rows)).encode()
    measured = rb'"(seconds|peak_memory_bytes)": [\d.]+'
    return re.sub(measured, b"", path.read_bytes()) if path.name in ("run.json", "report.json") else path.read_bytes()


class Campaign:
    """One configuration in ``work``, always run into ``work/disk/out``."""

    def __init__(self, work: Path) -> None:
        self.work, self.disk, self.out = work, work / "disk", work / "disk" / "out"
        (work / "few.yaml").write_text(yaml.safe_dump({"name": "few", "sources": SOURCES}))
        (work / "run.yaml").write_text(yaml.safe_dump({**RUN, "out": str(self.out)}))
        self.needed_bytes = 0

    def run(self, kill_after: float = float("inf"), last: int = 0) -> tuple[int, str]:
        """Exit code (-9 when killed), and what was said."""
        said = self.work / "said.txt"
        variables = {"FOLDER": str(self.disk), "LAST": str(last), "OMP_NUM_THREADS": "1"}
        with said.open("w") as file:
            process = subprocess.Popen(
                [sys.executable, "-c", CLEFQUANT, "run", self.work / "run.yaml"],
                stdout=file, stderr=file, start_new_session=True, env=os.environ | variables,
            )  # fmt: skip
            end = time.monotonic() + kill_after
            while process.poll() is None:
                self.needed_bytes = max(self.needed_bytes, shutil.disk_usage(self.disk).used)
                if time.monotonic() > end:
                    os.killpg(process.pid, signal.SIGKILL)
                time.sleep(0.01)
        return process.returncode, said.read_text()

    def finished(self) -> dict[str, str]:
        """Run to the end; sha256 of every file, and what is a folder."""
        code, said = self.run()
        if code:
            return {f"exit {code}: {said[-2000:]}": ""}
        return {
            str(path.relative_to(self.out)): hashlib.sha256(content(path)).hexdigest() if path.is_file() else "folder"
            for path in self.out.rglob("*")
        }

    def uninterrupted(self) -> None:
        """Learn what the run gives, how long it takes and what room it needs."""
        self.expected = self.finished()
        shutil.rmtree(self.out)
        start = time.monotonic()
        _, said = self.run()
        self.seconds, self.changes = time.monotonic() - start, int(said.rsplit("changes: ", 1)[-1])
        print(f"{len(self.expected)} files and folders, {self.needed_bytes / 1e6:.1f} MB needed, {self.seconds:.0f} s, "
              f"{self.changes} changes; twice: {self.verdict()}", flush=True)  # fmt: skip

    def verdict(self, before: str = "") -> str:
        """Run (again) until the end: what is wrong, or ``the same``."""
        found = self.finished()
        names = sorted(name for name in self.expected | found if self.expected.get(name) != found.get(name))
        shutil.rmtree(self.out, ignore_errors=True)
        return f"WRONG: {before} {', '.join(names)}" if names or before else "the same"

    def killed(self, draw: random.Random) -> str:
        after = draw.uniform(0, self.seconds)
        code, _ = self.run(kill_after=after)
        return f"killed after {after:.1f} s (exit {code}): {self.verdict()}"

    def killed_at_change(self, draw: random.Random) -> str:
        last = draw.randint(1, self.changes)
        code, said = self.run(last=last)
        where = said.splitlines()[-1].replace(str(self.disk), "").strip()
        return f"killed at change {last}, {where} (exit {code}): {self.verdict()}"

    def full(self, draw: random.Random) -> str:
        size = draw.randint(1, self.needed_bytes // 4096 - 1) * 4096
        subprocess.run(["mount", "-o", f"remount,size={size}", self.disk], check=True)
        code, said = self.run()
        subprocess.run(["mount", "-o", f"remount,size={ROOM_BYTES}", self.disk], check=True)
        errors = [line for line in said.splitlines() if "error" in line.lower()]
        clean = code in (2, 3) and len(errors) == 1 and "Traceback" not in said
        why = errors[0].replace(str(self.disk), "") if clean else ""
        return f"{size / 1e6:.1f} MB (exit {code}, {why}): {self.verdict('' if clean else said[-2000:])}"


def main() -> None:
    """Run the campaign."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--at-changes", type=int, default=30)
    parser.add_argument("--full-disks", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    os.nice(5)
    draw, wrong = random.Random(options.seed), 0
    with tempfile.TemporaryDirectory(prefix="crash-") as name:
        campaign = Campaign(Path(name))
        campaign.disk.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={ROOM_BYTES}", "tmpfs", campaign.disk], check=True)
        try:
            campaign.uninterrupted()
            trials = [campaign.full] * options.full_disks + [campaign.killed_at_change] * options.at_changes
            for trial in trials + [campaign.killed] * options.kills:
                line = trial(draw)
                wrong += "WRONG" in line
                print(line, flush=True)
        finally:
            subprocess.run(["umount", campaign.disk], check=True)
    print(f"{options.kills} kills, {options.at_changes} at changes, {options.full_disks} full disks: {wrong} wrong")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
