"""Change the numerical core in one place at a time, at random, and see whether the tests of that module notice:

python tools/mutants.py [--count 150] [--seed 0] [--share 0/1] [--out FILE] [FOLDER OF SOURCES ...]

Needs cosmic-ray, whose operators make the mutants (`pip install cosmic-ray`). Each mutant lives in a copy of the sources, and
the module's own tests and examples run against it in a fork of a process that has loaded everything else; a mutant is killed
when one fails, or when they take three times as long. `--share 1/4`: the second of four parts of one sample, beside the others.
A mutant that survives is printed as a difference: it needs a test, or it computes the same.
"""

from __future__ import annotations

import argparse
import difflib
import importlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
CORE = (
    "src/ntkscope/measures",
    "src/ntkscope/tangent/blocks",
    "src/ntkscope/tangent/certify",
    "src/ntkscope/core/certificate.py",
)
LEFT_OUT = (
    "__init__.py",
    "registry.py",
    "clock.py",
    "_split_kernels.py",
    "split_products.py",
)  # names; times; CUDA alone
TESTS = {  # of modules without a test file of their own name; the first that fits
    "tangent/blocks/heads": (
        "tests/tangent/certify/test_cancelling_outputs.py",
        "tests/tangent/kernel/test_output_groups.py",
    ),
    "tangent/blocks": ("tests/tangent/blocks", "tests/tangent/kernel/test_products.py", "tests/kernels/test_trace.py"),
    "tangent/certify/features": ("tests/tangent/certify", "tests/tangent/model/test_copies.py"),
    "tangent/certify": ("tests/tangent/certify",),
    "core/certificate": ("tests/tangent/certify/test_certificate.py",),
    "measures": ("tests/measures/test_measures.py",),
}
UNWANTED = (
    "RemoveDecorator",
    "ExceptionReplacer",
    "Variable",
)  # types checked at run time; errors are matched by their words
PLENTY, TIMES = 20.0, 3.0  # seconds, and times the usual ones, that tests of a mutant may take


@dataclass(frozen=True)
class Mutant:
    """One change: the file, the operator of cosmic-ray, which of its places, and what came of it."""

    file: str
    operator: str
    place: int
    at: tuple[int, int] = (0, 0)  # line and column
    outcome: str = ""
    change: str = ""


def files(folders: list[str]) -> Iterator[str]:
    for folder in folders:
        place = ROOT / folder
        for path in [place] if place.is_file() else sorted(place.rglob("*.py")):
            if path.name not in LEFT_OUT:
                yield path.relative_to(ROOT).as_posix()


def mutants(folders: list[str]) -> Iterator[Mutant]:
    """Every mutant of the files, but those of type hints."""
    from cosmic_ray.ast import ast_nodes, get_ast
    from cosmic_ray.plugins import get_operator, operator_names

    for file in files(folders):
        tree = get_ast((ROOT / file).read_text())
        for name in sorted(operator_names()):
            if any(word in name for word in UNWANTED):
                continue
            operator, place = get_operator(name)(), 0
            for node in ast_nodes(tree):
                for _ in operator.mutation_positions(node):
                    if not in_annotation(node):
                        yield Mutant(file, name, place, node.start_pos)
                    place += 1


def in_annotation(node: Any) -> bool:
    """Whether a node of the syntax tree is part of a type hint."""
    inside = None
    while node is not None:
        hint_of_result = node.type == "funcdef" and any(child is inside for child in node.children[3:-2])
        if hint_of_result or node.type in ("annassign", "tfpdef"):
            return not any(child is inside for child in node.children[3:]) if node.type == "annassign" else True
        inside, node = node, node.parent
    return False


def changed(mutant: Mutant) -> str | None:
    """The source with the change."""
    from cosmic_ray.mutating import mutate_code
    from cosmic_ray.plugins import get_operator

    made = mutate_code((ROOT / mutant.file).read_bytes(), get_operator(mutant.operator)(), mutant.place)
    return None if made is None else str(made)


def tests_of(file: str) -> list[str]:
    """The tests of a module, those of the modules beside it that import it, and the module itself for its examples."""
    path = ROOT / file
    beside = [other.stem for other in path.parent.glob("*.py") if f".{path.stem} import" in other.read_text()]
    folder = Path("tests", *Path(file).parts[2:-1])
    own = [(folder / f"test_{stem.lstrip('_')}.py").as_posix() for stem in (path.stem, *sorted(beside))]
    shared = next(paths for part, paths in TESTS.items() if part in file)
    return [*dict.fromkeys(name for name in (*own, *shared) if (ROOT / name).exists()), file]


# -- in a copy of the sources ----------------------------------------------------------------------------------------------


def forked(tree: Path, tests: list[str], seconds: float) -> tuple[str, float]:
    """Run tests in a child of this process; what came of them, and the seconds."""
    start = time.monotonic()
    child = os.fork()
    if child == 0:
        os.setpgid(0, 0)
        silent = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silent, 1)
        os.dup2(silent, 2)
        sys.path[:0] = [str(tree / "src"), str(tree / "tests"), str(tree)]
        import pytest

        code = pytest.main(["-q", "-x", "-p", "no:cacheprovider", "-p", "no:randomly", *tests])
        os._exit(int(code))
    while time.monotonic() < start + seconds:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            code = os.waitstatus_to_exitcode(status)
            return ("survived" if code == 0 else "killed"), time.monotonic() - start
        time.sleep(0.05)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return "too slow", seconds


def loaded(tree: Path, tests: list[str]) -> None:
    """Import here what the tests import of others, so that no fork does it again."""
    said = (
        "print('\\nLOADED', *(n for n, m in sys.modules.items() if 'site-packages' in str(getattr(m, '__file__', ''))))"
    )
    code = f"import pytest, sys; pytest.main(['-q', '--collect-only', *sys.argv[1:]]); {said}"
    done = subprocess.run([sys.executable, "-c", code, *tests], cwd=tree, capture_output=True, text=True, check=False)
    for name in done.stdout.rpartition("\nLOADED")[2].split():
        if not name.startswith(("ntkscope", "pytest", "_pytest", "pluggy", "hypothesis", "jaxtyping", "beartype")):
            try:
                importlib.import_module(name)
            except Exception:
                continue


def tried(chosen: list[Mutant], out: Path | None) -> list[Mutant]:
    """Each mutant with what came of it; the results so far are in `out`."""
    results: list[Mutant] = []
    usual: dict[tuple[str, ...], float] = {}
    with tempfile.TemporaryDirectory() as name:
        tree = Path(name)
        for part in ("src", "tests"):
            shutil.copytree(ROOT / part, tree / part, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
        for part in ("pyproject.toml", "conftest.py"):
            shutil.copy(ROOT / part, tree / part)
        subprocess.run([sys.executable, "-m", "compileall", "-q", str(tree)], check=False)
        sys.dont_write_bytecode = True
        os.chdir(tree)
        loaded(tree, sorted({test for mutant in chosen for test in tests_of(mutant.file) if test.startswith("tests")}))
        for mutant in chosen:
            tests, path = tests_of(mutant.file), tree / mutant.file
            before, after = path.read_text(), changed(mutant)
            if after is None or after == before:
                continue
            if tuple(tests) not in usual:
                outcome, usual[tuple(tests)] = forked(tree, tests, 900)
                if outcome != "survived":
                    raise SystemExit(f"the tests {tests} fail without a change")
            for compiled in path.parent.glob(f"__pycache__/{path.stem}.*"):
                compiled.unlink()
            path.write_text(after)
            outcome, seconds = forked(tree, tests, PLENTY + TIMES * usual[tuple(tests)])
            path.write_text(before)
            change = "".join(difflib.unified_diff(before.splitlines(True), after.splitlines(True), n=0)).split("\n", 2)[
                2
            ]
            results.append(replace(mutant, outcome=outcome, change=change))
            print(f"{outcome:9} {seconds:5.1f} s  {mutant.file}: {mutant.operator} {mutant.place}", flush=True)
            if outcome == "survived":
                print(change, flush=True)
            if out is not None:
                out.write_text(json.dumps([asdict(result) for result in results], indent=1) + "\n")
    return results


def interval(killed: int, count: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a share.

    >>> [round(end, 3) for end in interval(90, 100)]
    [0.826, 0.945]
    """
    z, share = 1.96, killed / count
    middle, half = share + z * z / (2 * count), z * ((share * (1 - share) + z * z / (4 * count)) / count) ** 0.5
    return (middle - half) / (1 + z * z / count), (middle + half) / (1 + z * z / count)


def main(folders: list[str], count: int, seed: int, share: str, out: Path | None) -> None:
    every = list(mutants(folders or [folder for folder in CORE if (ROOT / folder).exists()]))
    random.Random(seed).shuffle(every)
    spots = {
        (mutant.file, mutant.operator.partition("_")[0], mutant.at): mutant for mutant in every
    }  # one operator for each
    part, parts = map(int, share.split("/"))
    chosen = list(spots.values())[:count][part::parts]
    print(f"{len(chosen)} of {len(spots)} places", flush=True)
    results = tried(chosen, out)
    killed = sum(result.outcome != "survived" for result in results)
    low, high = interval(killed, len(results))
    print(f"{killed} of {len(results)} killed: {killed / len(results):.1%}, 95 % interval {low:.1%} to {high:.1%}")


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("folders", nargs="*")
    options.add_argument("--count", type=int, default=150)
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--share", default="0/1")
    options.add_argument("--out", type=Path)
    main(**vars(options.parse_args()))
