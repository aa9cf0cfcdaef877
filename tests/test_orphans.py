"""No orphans: every file of a room that is a set of plug-ins registers something, or is declared a helper here."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

import ntkscope.data
import ntkscope.infinite.rules
import ntkscope.kernels
import ntkscope.measures
import ntkscope.models
import ntkscope.report.views
import ntkscope.surrogates
import ntkscope.tangent.trace.rules
from ntkscope.core import Registry
from ntkscope.xray import SECTIONS

MEASURES = "registry changepoint dimension faithfulness log_odds probe_agreement probes resampled spectra uncertainty"
# Files that register nothing and are meant to. Files whose name starts with `_` are helpers by their name.
HELPERS = {
    "data": {"registry", "normalise", "subsets"},
    "models": {"registry"},
    "kernels": {"registry", "costs", "tangent_machine"},
    "infinite.rules": set(),
    "surrogates": {"registry", "linearized"},
    "measures": set(MEASURES.split()),
    "report.views": {"registry"},
    "xray.sections": set(),
    "tangent.trace.rules": {"registry"},
}


def entries(room: str) -> list[Any]:
    """Everything registered in a room."""
    rooms: dict[str, Callable[[], list[Any]]] = {
        "data": lambda: list(ntkscope.data.DATASETS.values()),
        "models": lambda: list(ntkscope.models.MODELS.values()),
        "kernels": lambda: list(ntkscope.kernels.KERNELS.values()),
        "infinite.rules": lambda: list(ntkscope.infinite.registry.LAYERS.values()),
        "surrogates": lambda: [
            *ntkscope.surrogates.SURROGATES.values(),
            *ntkscope.surrogates.INPUT_SURROGATES.values(),
        ],
        "measures": lambda: list(ntkscope.measures.MEASURES.values()),
        "report.views": lambda: list(ntkscope.report.views.VIEWS.values()),
        "xray.sections": lambda: [section.run for section in SECTIONS.values()],
        "tangent.trace.rules": lambda: [
            *(rule for rule, _ in ntkscope.tangent.trace.rules.RULES.values()),
            *ntkscope.tangent.trace.rules.REWRITES.values(),
        ],
    }
    return rooms[room]()


def home(entry: Any) -> str:
    """The module that made an entry: its own `__module__`, that of a partial's function, or that of its class."""
    entry = getattr(entry, "func", entry)
    return str(getattr(entry, "__module__", type(entry).__module__))


def orphans(folder: Path, package: str, registered: Iterable[Any], helpers: Iterable[str]) -> list[str]:
    """The files of `folder` that registered nothing and are no helpers."""
    homes = {home(entry) for entry in registered}
    plugins = [path.stem for path in sorted(folder.glob("*.py")) if not path.stem.startswith("_")]
    return [stem for stem in plugins if stem not in helpers and f"{package}.{stem}" not in homes]


def folder_of(room: str) -> Path:
    return Path(ntkscope.data.__file__).parents[1] / room.replace(".", "/")


@pytest.mark.parametrize("room", HELPERS)
def test_every_file_registers_something(room: str) -> None:
    assert folder_of(room).is_dir(), f"there is no folder {room}"
    found = orphans(folder_of(room), f"ntkscope.{room}", entries(room), HELPERS[room])
    assert not found, (
        f"{room}: {', '.join(found)} register nothing; register an entry, import the file in {room}/__init__.py,"
        " or declare it a helper in tests/test_orphans.py"
    )


@pytest.mark.parametrize("room", HELPERS)
def test_every_declared_helper_exists_and_is_one(room: str) -> None:
    homes = {home(entry) for entry in entries(room)}
    for helper in HELPERS[room]:
        assert (folder_of(room) / f"{helper}.py").exists(), f"{room}/{helper}.py is declared a helper and not there"
        assert f"ntkscope.{room}.{helper}" not in homes, f"{room}/{helper}.py registers entries: it is no helper"


def test_canary_an_unregistered_file_is_found(tmp_path: Path) -> None:
    for stem in ("__init__", "_private", "registry", "good", "orphan"):
        (tmp_path / f"{stem}.py").touch()

    def entry() -> None: ...

    entry.__module__ = "room.good"
    registry: Registry[Any] = Registry("thing")
    registry.add("good", entry)
    assert orphans(tmp_path, "room", registry.values(), {"registry"}) == ["orphan"]
    entry.__module__ = "room.elsewhere"
    assert orphans(tmp_path, "room", registry.values(), {"registry"}) == ["good", "orphan"]
