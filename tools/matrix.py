"""Try the wheel of dist/ under every supported Python and PyTorch that can be had here:

python tools/matrix.py [--index URL] [--plain] [--only PYTHON/TORCH] [TESTS ...]

For each pair an environment of its own, in which a fast part of the tests runs against the installed wheel, not the sources. A
Python that is not on this machine, and a PyTorch of which the registry has no build for the CPU, is "not found here"; `--index`
names another registry to look in, such as PyTorch's own; `--plain` takes the build for CUDA, of several gigabytes, where there
is no other. `--only 3.12/2.11`, repeatable: these pairs alone.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PYTHONS = ("3.11", "3.12", "3.13")
OLDEST = (2, 11)  # PyTorch, as pyproject.toml says
TESTS = (
    "tests/kernels/test_trace.py",
    "tests/kernels/test_conjugate.py",
    "tests/measures/test_alignment.py",
    "tests/test_cli.py",
)
NEEDED = ("pytest", "hypothesis", "beartype")
ABSENT = "not found here"


def interpreter(version: str) -> str | None:
    """The executable of a Python that runs, None if there is none."""
    name = f"python{version}"
    pyenv = sorted(Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")).glob(f"versions/{version}.*/bin"))
    for folder in [*os.environ.get("PATH", "").split(os.pathsep), *map(str, pyenv)]:
        path = os.path.join(folder, name)
        tried = [path, "-c", "import sys, venv, ensurepip; print(*sys.version_info[:2], sep='.')"]
        if os.access(path, os.X_OK):
            done = subprocess.run(tried, capture_output=True, text=True, check=False)
            if done.stdout.strip() == version:
                return path
    return None


def pip(python: str | Path, *words: str, index: str | None = None) -> subprocess.CompletedProcess[str]:
    where = ["--index-url", index] if index else []
    command = [str(python), "-m", "pip", *words, "--disable-pip-version-check", *where]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def releases(python: str, index: str | None) -> list[str]:
    """The newest patch of every minor release of PyTorch from OLDEST on."""
    said = pip(python, "index", "versions", "torch", index=index).stdout
    versions = re.findall(r"\d+\.\d+\.\d+", said.partition("Available versions:")[2].partition("\n")[0])
    newest: dict[tuple[int, ...], str] = {}
    for version in versions:  # newest first
        minor = tuple(map(int, version.split(".")[:2]))
        if minor >= OLDEST:
            newest.setdefault(minor, version)
    return [newest[minor] for minor in sorted(newest)]


def requirement(version: str, plain: bool) -> str:
    """A build for the CPU: on Linux with x86 the plain one brings gigabytes of CUDA."""
    label = "+cpu" if not plain and (sys.platform, platform.machine()) == ("linux", "x86_64") else ""
    return f"torch=={version}{label}"


def tried(python: str, version: str, wheel: Path, folder: Path, options: argparse.Namespace) -> str:
    """What the tests say of one pair, in few words."""
    subprocess.run([python, "-m", "venv", str(folder)], check=True)
    own, wanted = folder / "bin" / "python", requirement(version, plain=False)
    installed = pip(own, "install", "--quiet", "--no-compile", wanted, index=options.index)
    if "No matching distribution" in installed.stderr and options.plain:
        wanted = requirement(version, plain=True)
        installed = pip(own, "install", "--quiet", "--no-compile", wanted, index=options.index)
    if "No matching distribution" in installed.stderr:
        return ABSENT
    if not installed.returncode:
        installed = pip(own, "install", "--quiet", "--no-compile", f"{wheel}[store]", wanted, *NEEDED)
    if installed.returncode:
        return f"does not install: {installed.stderr.strip().splitlines()[-1]}"
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    pytest = ["-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-o", "pythonpath=tests"]
    command = [str(own), "-P", *pytest, *options.tests]
    done = subprocess.run(command, cwd=ROOT, env=clean, capture_output=True, text=True, check=False)
    where = [str(own), "-P", "-c", "import ntkscope; print(ntkscope.__file__)"]
    place = subprocess.run(where, cwd=ROOT, env=clean, capture_output=True, text=True, check=True).stdout
    assert str(folder) in place, place
    lines = done.stdout.strip().splitlines() or done.stderr.strip().splitlines()
    return lines[-1].strip("= ")


def rows(options: argparse.Namespace) -> Iterator[tuple[str, str, str]]:
    """Python, PyTorch and what came of it, pair by pair."""
    (wheel,) = (ROOT / "dist").glob("ntkscope-*.whl")
    found = {version: interpreter(version) for version in PYTHONS}
    torches = releases(next(filter(None, found.values()), sys.executable), options.index)
    for version, python in found.items():
        for torch in torches:
            if options.only and f"{version}/{torch.rpartition('.')[0]}" not in options.only:
                continue
            with tempfile.TemporaryDirectory() as name:
                where = Path(name) / "venv"
                yield version, torch, ABSENT if python is None else tried(python, torch, wheel, where, options)


def main(options: argparse.Namespace) -> int:
    print("| Python | PyTorch | tests |\n| --- | --- | --- |", flush=True)
    failed = 0
    for python, torch, said in rows(options):
        print(f"| {python} | {torch} | {said} |", flush=True)
        failed += said != ABSENT and (" passed" not in said or "failed" in said)
    return int(failed > 0)


if __name__ == "__main__":
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("--index")
    words.add_argument("--plain", action="store_true")
    words.add_argument("--only", action="append")
    words.add_argument("tests", nargs="*", default=list(TESTS))
    raise SystemExit(main(words.parse_args()))
