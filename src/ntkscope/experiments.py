"""Experiments of installed packages, found by their entry points in the group "ntkscope.experiments"."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

import torch

from ntkscope.core import Record, Registry
from ntkscope.core.errors import UnknownName

GROUP = "ntkscope.experiments"
INSTALL = "the papers come as a package of their own; from a copy of the repository: pip install ./papers"


class Experiments(Registry[Any]):
    """Experiments by name, each imported when it is first asked for."""

    def __init__(self) -> None:
        super().__init__("experiment")
        for point in entry_points(group=GROUP):
            self.add(point.name, point)

    def __getitem__(self, name: str) -> Any:
        if not len(self):
            raise UnknownName(f"no experiment {name!r}: none is installed; {INSTALL}")
        found = super().__getitem__(name)
        return found.load() if isinstance(found, EntryPoint) else found


EXPERIMENTS = Experiments()


def run(
    name: str,
    scale: str = "smoke",
    *,
    out: str | Path,
    device: torch.device | str | None = None,
    root: str | Path | None = None,
    seed: int = 0,
    progress: bool = False,
    gather_from: Sequence[str | Path] = (),
    **overrides: Any,
) -> Record:
    """Run the experiment `name` at `scale` ("smoke" or "paper"), some settings overridden, into the folder `out`.

    Called again with the same arguments, it resumes: what is in the record is not computed again. A record made with
    other settings is refused; settings that only say which part to compute now (an experiment's `legs`) may differ, so that
    several calls fill one record. Legs that ran side by side into records of their own are taken from the folders `gather_from`
    before anything is computed. `device`: a GPU if there is one. `root`: the folder of the real data ($NTKSCOPE_DATA).

    Examples:
        >>> record = run("optimal-depth", out="record/")  # doctest: +SKIP
        >>> run("optimal-dept", out=folder)
        Traceback (most recent call last):
        ...
        ntkscope.core.errors.UnknownName: unknown experiment 'optimal-dept'; did you mean 'optimal-depth'? ...
    """
    record: Record = EXPERIMENTS[name].run(
        scale, out=out, device=device, root=root, seed=seed, progress=progress, gather_from=gather_from, **overrides
    )
    return record
