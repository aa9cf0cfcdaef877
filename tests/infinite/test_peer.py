"""neural-tangents says the same, where its environment was made (`make bench` makes it)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.skipif(not (ROOT / ".venv-nt" / "complete.json").exists(), reason="neural-tangents is not installed"),
]


@pytest.fixture(scope="module")
def peer() -> Iterator[Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT))
        from benchmarks.peers import Peer

        with Peer("neural-tangents-infinite") as made:
            yield made


@pytest.mark.parametrize("kind", ["nngp", "ntk"])
def test_architectures_agree(peer: Any, kind: str, tmp_path: Path) -> None:
    from benchmarks.kernels import infinite

    errors = {name: infinite.agreement(peer, tmp_path, spec, kind) for name, spec in infinite.ARCHITECTURES.items()}
    # One input is in both sets: there the peer rounds the angle to 1e-8, and we do not.
    assert max(errors.values()) < 1e-8, errors
