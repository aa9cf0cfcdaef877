"""Our TRAK has the scores of the `traker` package, where its environment was made (`make bench` makes it)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import ntkscope as ns
from ntkscope.core import Part, generator
from ntkscope_papers.own import trak

ROOT = Path(__file__).resolve().parents[3]
pytestmark = [
    pytest.mark.nightly,
    pytest.mark.skipif(not (ROOT / ".venv-trak" / "complete.json").exists(), reason="traker is not installed"),
]
POINTS, ITEMS, CLASSES, DAMPING = 400, 20, 3, 0.1


@pytest.fixture(scope="module")
def peer() -> Iterator[Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT))
        from benchmarks.peers import Peer

        with Peer("trak") as made:
            yield made


def test_scores_of_a_network(peer: Any, tmp_path: Path) -> None:
    """Equal up to the factor TRAK divides by; with projections as alike as two projections of our own."""
    draw = generator(0, "test", "traker")
    train, test = (
        Part(torch.randn(k, 8, generator=draw), torch.randint(0, CLASSES, (k,), generator=draw))
        for k in (POINTS, ITEMS)
    )
    model = ns.models.build("mlp", in_features=8, classes=CLASSES, widths=12, depth=1, seed=0)
    ns.training.fit(model, train, optimizer="adam", lr=1e-2, epochs=5, batch_size=50, measure=False).final()
    arrays = {"x": train.x, "y": train.y, "x_test": test.x, "y_test": test.y, "networks": torch.tensor(1)}
    for layer, linear in enumerate(m for m in model.modules() if isinstance(m, torch.nn.Linear)):
        arrays |= {f"0.weight{layer}": linear.weight.detach(), f"0.bias{layer}": linear.bias.detach()}
    np.savez(tmp_path / "case.npz", **{k: v.numpy() for k, v in arrays.items()})
    length = sum(p.numel() for p in model.parameters())

    def ours(dim: int | None, seed: int = 0) -> np.ndarray:
        found = trak.features(model, train, test, dim, seed)
        return (trak.whitened(found, None, DAMPING) * found.doubt.double().numpy()).ravel()

    def theirs(dim: int) -> np.ndarray:
        size = float(trak.features(model, train, test, None, 0).train.double().square().sum()) / length
        damping = DAMPING * size / (length if dim == 0 else 1)  # of the mean eigenvalue; its projections are not scaled
        peer.ask("scores", file=str(tmp_path / "case.npz"), out=str(tmp_path / "out.npy"), damping=damping, dim=dim)
        return np.load(tmp_path / "out.npy").ravel()

    def alike(a: np.ndarray, b: np.ndarray) -> float:
        return float(np.corrcoef(a, b)[0, 1])

    assert alike(ours(None), theirs(0)) > 1 - 1e-5  # float32 on both sides
    noise = [alike(ours(64, s), ours(64, s + 1)) for s in range(4)]
    assert min(noise) - 0.1 < alike(ours(64), theirs(64)) < max(noise) + 0.1
    assert max(noise) < 0.99
