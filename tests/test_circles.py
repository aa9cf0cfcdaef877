"""Modules do not import each other in circles, not even inside functions."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

TOOL = Path(__file__).resolve().parents[1] / "tools" / "import_circles.py"


@pytest.fixture(name="circles")
def _circles() -> Callable[[str], list[Any]]:
    spec = importlib.util.spec_from_file_location("import_circles", TOOL)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.circles


def test_there_are_none(circles: Callable[[str], list[Any]]) -> None:
    assert circles("ntkscope") == []


def test_imports_inside_functions_count_and_those_for_types_do_not(
    circles: Callable[[str], list[Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    typed = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from round_house import late\n"
    sources = {
        "__init__": "",
        "early": "from round_house import middle\n",
        "middle": "from round_house.late import last\n",
        "late": "def last():\n    from round_house import early\n",
        "typed": "from round_house.other import thing\n",
        "other": typed.replace("late", "typed") + "thing = 1\n",
    }
    (tmp_path / "round_house").mkdir()
    for name, source in sources.items():
        (tmp_path / "round_house" / f"{name}.py").write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))
    early, middle, late = (f"round_house.{name}" for name in ("early", "middle", "late"))
    assert circles("round_house") == [{early: [middle], late: [early], middle: [late]}]
