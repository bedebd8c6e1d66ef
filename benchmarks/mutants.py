"""Mutation testing: one operator or constant of a module changed at a time; tests that still pass guard nothing there.

    python benchmarks/mutants.py clefquant/recipes/formats.py clefquant/verify/totals.py [--jobs 2] [--tests PATH]

By default a module is tried with the test files of its package that import it. The libraries below are imported once
and every mutant runs in a fork, so a mutant costs its tests alone. Survivors are printed with their line; not every one
is a gap (a message's wording, a tolerance, an equal meaning). Exit code 1 when the tests fail without any change.
"""

import argparse
import ast
import contextlib
import copy
import importlib.abc
import importlib.machinery
import io
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import CodeType
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
LIMIT_S = 300
OTHER: dict[type, type] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.And: ast.Or, ast.Or: ast.And,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
}  # fmt: skip


class Mutant(NamedTuple):
    """One change. ``tree``: the whole module with it."""

    line: int
    change: str
    tree: ast.Module


class _Mutated(importlib.abc.Loader, importlib.abc.MetaPathFinder):
    """Imports one module from a tree instead of from its file."""

    def __init__(self, name: str, file: Path, tree: ast.Module) -> None:
        self.name, self.file, self.tree = name, file, tree

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        if fullname != self.name:
            return None
        return importlib.machinery.ModuleSpec(fullname, self, origin=str(self.file))

    def exec_module(self, module: Any) -> None:
        module.__file__ = str(self.file)
        code: CodeType = compile(self.tree, str(self.file), "exec")
        exec(code, module.__dict__)


def mutants(source: str) -> Iterator[Mutant]:
    """Every change of an operator, a truth value or a whole number, but not in annotations."""
    tree = ast.parse(source)
    hints = (getattr(node, field, None) for node in ast.walk(tree) for field in ("annotation", "returns"))
    skipped = {id(part) for hint in hints if hint is not None for part in ast.walk(hint)}
    for place, node in enumerate(ast.walk(tree)):
        if id(node) in skipped:
            continue
        for change in _changes(node):
            other = copy.deepcopy(tree)
            twin = next(found for at, found in enumerate(ast.walk(other)) if at == place)
            before = ast.unparse(twin)
            change(twin)
            yield Mutant(getattr(node, "lineno", 0), f"{before}  →  {ast.unparse(twin)}", other)


def _changes(node: ast.AST) -> Iterator[Any]:
    """Functions that change a node like this one in its place."""
    if isinstance(node, ast.Compare):
        for index, op in enumerate(node.ops):
            yield lambda twin, index=index, op=op: twin.ops.__setitem__(index, OTHER[type(op)]())
    elif isinstance(node, ast.BinOp | ast.BoolOp) and type(node.op) in OTHER:
        if not (isinstance(node, ast.BinOp) and isinstance(node.right, ast.JoinedStr | ast.List | ast.Tuple)):
            yield lambda twin: setattr(twin, "op", OTHER[type(node.op)]())
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield lambda twin: setattr(twin, "value", not node.value)
    elif isinstance(node, ast.Constant) and type(node.value) is int:
        yield lambda twin: setattr(twin, "value", node.value + 1)


def tests_of(module: str) -> list[str]:
    """Test files of the module's package that import it, else all of them."""
    folder = ROOT.joinpath("tests", *module.split(".")[1:-1])
    while not folder.is_dir():
        folder = folder.parent
    short = module.rpartition(".")[2]
    using = [str(file) for file in sorted(folder.rglob("test_*.py")) if f"{short} import" in file.read_text()]
    return using or [str(folder)]


def start(name: str, file: Path, tree: ast.Module, tests: Sequence[str]) -> int:
    """Process id of a fork that runs the tests on the tree; its exit code is theirs."""
    sys.stdout.flush()
    if child := os.fork():
        return child
    import pytest

    signal.alarm(LIMIT_S)  # a mutant that never ends is found out
    sys.meta_path.insert(0, _Mutated(name, file, tree))
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        code = pytest.main(["-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", *tests])
    os._exit(int(code))


def survivors(file: Path, tests: Sequence[str], jobs: int) -> tuple[int, list[Mutant]]:
    """How many mutants of a module there are, and those that the tests do not notice."""
    source = file.read_text(encoding="utf-8")
    name = ".".join(file.resolve().relative_to(ROOT).with_suffix("").parts)
    tests = tests or tests_of(name)
    if os.waitstatus_to_exitcode(os.waitpid(start(name, file, ast.parse(source), tests), 0)[1]):
        sys.exit(f"{file}: {' '.join(tests)} fail without any change")
    waiting, running, alive, count = mutants(source), {}, [], 0
    while True:
        while len(running) < jobs and (mutant := next(waiting, None)) is not None:
            running[start(name, file, mutant.tree, tests)] = mutant
            count += 1
        if not running:
            return count, sorted(alive, key=lambda mutant: mutant.line)
        child, status = os.wait()
        mutant = running.pop(child)
        if status == 0:
            alive.append(mutant)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("modules", nargs="+", type=Path)
    parser.add_argument("--tests", action="append", default=[])
    parser.add_argument("--jobs", type=int, default=2)
    asked = parser.parse_args()
    os.chdir(ROOT)
    sys.path.insert(0, str(ROOT))
    import compressed_tensors  # noqa: F401
    import hypothesis  # noqa: F401
    import pytest  # noqa: F401
    import torch  # noqa: F401
    import transformers.models.qwen3_5.modeling_qwen3_5  # noqa: F401

    for file in asked.modules:
        count, alive = survivors(file, asked.tests, asked.jobs)
        print(f"{file}: {count} mutants, {len(alive)} survive", flush=True)
        for mutant in alive:
            print(f"  {file}:{mutant.line}: {mutant.change}", flush=True)


if __name__ == "__main__":
    main()
