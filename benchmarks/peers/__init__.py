"""Peers that cannot live in our environment: each gets its own, and answers one question a line.

`Peer("neural-tangents")` makes `.venv-nt` if it is not there, starts `python -m benchmarks.peers.neural_tangents` in it
and keeps it, so that its repeats can be interleaved with ours and its compilation stays outside the timed part.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.machine import ROOT, THREADS

SEARCH = str(ROOT)


class PeerUnavailable(RuntimeError):
    """A peer that could not be installed, or that died; the message is what it said last."""


@dataclass(frozen=True)
class Recipe:
    """How a peer's environment is made: packages with and without their dependencies, and whether it uses our torch.

    Without a folder it is ours.
    """

    folder: str
    module: str
    packages: tuple[str, ...] = ()
    bare: tuple[str, ...] = ()
    our_torch: bool = False


RECIPES: dict[str, Recipe] = {
    # It does not import under current JAX, and its own dependencies ask for versions that no longer go together.
    "neural-tangents": Recipe(
        ".venv-nt",
        "benchmarks.peers.neural_tangents",
        ("jax==0.4.20", "jaxlib==0.4.20", "numpy<2", "scipy<1.13", "frozendict", "opt_einsum", "tf2jax==0.3.6"),
        ("neural-tangents==0.6.5",),
    ),
    "neural-tangents-infinite": Recipe(
        ".venv-nt",
        "benchmarks.peers.infinite",
        ("jax==0.4.20", "jaxlib==0.4.20", "numpy<2", "scipy<1.13", "frozendict", "opt_einsum", "tf2jax==0.3.6"),
        ("neural-tangents==0.6.5",),
    ),
    # Without dependencies: it asks for torchvision and never imports it.
    "nngeometry": Recipe(".venv-nng", "benchmarks.peers.nngeometry", bare=("nngeometry==0.4",), our_torch=True),
    # As the libraries are: in one process, what a peer did with gigabytes of memory slows whoever comes next.
    "ntkscope": Recipe("", "benchmarks.peers.ours"),
    "trak": Recipe(".venv-trak", "benchmarks.peers.trak", ("tqdm",), ("traker==0.3.2",), our_torch=True),
    # Without dependencies: ours are newer than those it was published with, and it runs with them.
    "weightwatcher": Recipe(
        ".venv-ww",
        "benchmarks.peers.weightwatcher",
        ("matplotlib-inline", "tqdm"),
        ("weightwatcher==0.7.7", "powerlaw==2.0.0"),
        our_torch=True,
    ),
    # Without dependencies: it asks for pretty_midi, which only its music benchmark imports.
    "dattri": Recipe(".venv-dattri", "benchmarks.peers.dattri", ("tqdm", "pyyaml"), ("dattri==0.3.0",), our_torch=True),
    "torchdrift": Recipe(
        ".venv-torchdrift", "benchmarks.peers.torchdrift", (), ("torchdrift==0.1.0.post1",), our_torch=True
    ),
    # Without dependencies: of those it asks for, only these are imported by what is measured; NumPy has to be below 2.
    "alibi-detect": Recipe(
        ".venv-alibi",
        "benchmarks.peers.alibi",
        (
            *("numpy<2", "scipy<1.14", "scikit-learn<1.6", "pandas<2.3", "numba<0.60", "Pillow<11"),
            *("dill<0.4", "pydantic", "toml", "catalogue", "tqdm"),
        ),
        ("alibi-detect==0.13.0",),
        our_torch=True,
    ),
    "xrfm": Recipe(".venv-xrfm", "benchmarks.peers.xrfm", ("tqdm",), ("xrfm==0.4.5",), our_torch=True),
    "ruptures": Recipe(".venv-ruptures", "benchmarks.peers.ruptures", bare=("ruptures==1.1.10",), our_torch=True),
}


def environment(recipe: Recipe) -> Path:
    """The python of the peer's environment, made first if it is not there or not complete."""
    if not recipe.folder:
        return Path(sys.executable)
    folder = ROOT / recipe.folder
    python, marker = folder / "bin" / "python", folder / "complete.json"
    wanted = json.dumps([sys.version.split()[0], recipe.packages, recipe.bare])
    if marker.exists() and marker.read_text() == wanted:
        return python
    print(f"  making {recipe.folder} for {', '.join(recipe.bare)}", flush=True)
    _call([sys.executable, "-m", "venv", "--clear", str(folder)])
    if recipe.our_torch:
        ours = next(p for p in sys.path if p.endswith("site-packages"))
        theirs = next((folder / "lib").glob("python*/site-packages"))
        (theirs / "_ours.pth").write_text(f"import site; site.addsitedir({ours!r})\n")
    install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    if recipe.packages:
        _call([*install, *recipe.packages])
    _call([*install, "--no-deps", *recipe.bare])
    marker.write_text(wanted)
    return python


def _call(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise PeerUnavailable(f"{' '.join(command[:4])} … failed: {done.stderr.strip()[-400:]}")


class Peer:
    """A peer running in its own environment; `ask` sends one message and waits for the answer."""

    def __init__(self, name: str) -> None:
        recipe = RECIPES[name]
        self.name = name
        self._log = tempfile.NamedTemporaryFile("w+", suffix=f"-{name}.log")  # noqa: SIM115 - closed in close()
        self._process = subprocess.Popen(
            [str(environment(recipe)), "-m", recipe.module],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([SEARCH, *([] if recipe.folder else sys.path)])},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )

    def ask(self, what: str, **message: Any) -> dict[str, Any]:
        """The peer's answer to `what`; raises PeerUnavailable with its last words if it died."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps({"what": what, **message}) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            self._process.wait()
            self._log.seek(0)
            last = self._log.read().strip().splitlines()[-3:]
            raise PeerUnavailable(f"{self.name} died at {what!r} (exit {self._process.returncode}): {' / '.join(last)}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def timed(self, what: str, **message: Any) -> Callable[[], float]:
        """`ask` as something timed by the peer's own clock, its transport to us excluded."""
        return lambda: float(self.ask(what, **message)["seconds"])

    def close(self) -> None:
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._process.wait()
        self._log.close()

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def serve(answers: Mapping[str, Callable[..., dict[str, Any]]]) -> None:
    """Answer json lines from stdin until it closes; whatever the library prints goes to stderr."""
    reply, sys.stdout = sys.stdout, sys.stderr
    for line in sys.stdin:
        message = json.loads(line)
        print(json.dumps(answers[message.pop("what")](**message)), file=reply, flush=True)


__all__ = ["RECIPES", "THREADS", "Peer", "PeerUnavailable", "Recipe", "environment", "serve"]
