"""What all tests share, doctests of the package and of the docs too: what makes them quicker and changes nothing."""

from __future__ import annotations

import gc
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from _pytest.doctest import DoctestModule


@pytest.hookimpl(wrapper=True)
def pytest_collect_file(file_path: Path) -> Generator[None, Any, Any]:
    """Files without an example are not searched for examples."""
    found = yield
    if file_path.suffix == ".py" and b">>>" not in file_path.read_bytes():
        return [each for each in found if not isinstance(each, DoctestModule)]
    return found


def pytest_collection_finish() -> None:
    """Millions of objects that stay until the end are not looked at again whenever garbage is collected."""
    gc.collect()
    gc.freeze()
