"""Cyclic shifts: the same kernels as every other road, from the kernel that runs on a GPU, here interpreted."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from torch import Tensor

from ntkscope.infinite import AvgPool, Conv, Erf, GlobalAvgPool, LeakyRelu, Relu, Residual, cyclic
from ntkscope.infinite.layer import Layer, Shape
from ntkscope.infinite.pairs import Network
from ntkscope.infinite.rules import Abs, Serial

C, RING = Conv(3, W_std=1.4, b_std=0.3), Conv(3, padding="circular", W_std=1.4, b_std=0.3)
WIDE = Conv(3, W_std=1.4, b_std=0.3, width=7)
SINGLE, EQUAL = (
    2e-6,
    3e-5,
)  # float32 through three layers; of equal images, where a ninth of the angles are √ε instead of 0

Case = tuple[tuple[Layer, ...], tuple[int, ...], bool, bool]
CASES: dict[str, Case] = {
    "narrow": ((C, Relu(), C, Relu(), C, Relu()), (2, 4, 3), True, False),
    "no activation last": ((C, Relu(), C), (2, 3, 5), True, False),
    "mixed": ((C, LeakyRelu(0.2), Conv((1, 3)), Abs(normalize=True), Conv((3, 1), b_std=0.1)), (1, 3, 4), True, False),
    "rings": ((RING, Relu(normalize=True), RING, Relu()), (2, 3, 4), True, False),
    "standard": ((WIDE, Relu(), WIDE, Relu()), (2, 3, 3), True, True),
    "nngp alone": ((C, Relu(), C, Relu()), (2, 3, 3), False, False),
    "blank image": ((Conv(3), Relu(), Conv(3), Relu()), (1, 3, 3), True, False),
}


def network(layers: tuple[Layer, ...], shape: tuple[int, ...], tangent: bool = True, standard: bool = False) -> Network:
    return Network.of(Serial((*layers, GlobalAvgPool())), Shape(shape[0], shape[1:]), tangent, standard)


def images(name: str) -> Tensor:
    x = torch.randn(3, *CASES[name][1], generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return x * torch.tensor([0.0, 1.0, 1.0])[:, None, None, None] if name == "blank image" else x


def interpret(path: str) -> None:
    """What the kernel makes of every case: all pairs of three images, and the first with the others."""
    found = {}
    for name, case in CASES.items():
        net = network(*case)
        block = net.block(images(name).float())
        for warps in (1, 2):
            cross = cyclic.mean(net, block[slice(0, 1)], block[slice(1, 3)], WARPS=warps)
            found[name, warps] = (*cyclic.mean(net, block, block, WARPS=warps), *cross)
    torch.save(found, path)


@pytest.fixture(scope="module")
def interpreted(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, int], tuple[Tensor | None, ...]]:
    """In a process of its own: Triton decides on being interpreted when it is imported."""
    if find_spec("triton") is None:
        pytest.skip("needs triton, whose interpreter runs the kernel on a CPU")
    path = tmp_path_factory.mktemp("cyclic") / "found.pt"
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, __file__, str(path)], env=environment, check=True, timeout=600)
    found: dict[tuple[str, int], tuple[Tensor | None, ...]] = torch.load(path)
    return found


@pytest.mark.parametrize("warps", [1, 2])
@pytest.mark.parametrize("name", CASES)
def test_the_kernel_says_what_other_roads_say(
    name: str, warps: int, interpreted: dict[tuple[str, int], tuple[Tensor | None, ...]]
) -> None:
    net = network(*CASES[name])
    block = net.block(images(name))
    exact = net.tile(block, block)
    nngp, ntk, nngp_cross, ntk_cross = interpreted[name, warps]
    assert (ntk is None) == (exact[1] is None)
    for found, cross, expected in zip((nngp, ntk), (nngp_cross, ntk_cross), exact):
        if found is None or cross is None or expected is None:
            continue
        assert torch.equal(found, found.T)
        torch.testing.assert_close(found.triu(1).double(), expected.triu(1), rtol=SINGLE, atol=1e-12)
        torch.testing.assert_close(found.diagonal().double(), expected.diagonal(), rtol=EQUAL, atol=1e-12)
        torch.testing.assert_close(cross.double(), expected[:1, 1:], rtol=SINGLE, atol=1e-12)


@pytest.mark.parametrize(
    "layers",
    [
        (Conv(3, 2), Relu()),
        (Conv(5), Relu()),
        (Conv(3, padding="valid"), Relu()),
        (Conv(3, dilation=2), Relu()),
        (C, Erf()),
        (C, Residual(C, Relu(), C)),
        (C, Relu(), AvgPool(2)),
        (Conv(3, W_std=0.0, b_std=1.0), Relu()),
    ],
)
def test_what_takes_another_road(layers: tuple[Layer, ...]) -> None:
    assert cyclic.steps(network(layers, (2, 6, 6))) is None


def test_large_images_and_processors_take_another_road() -> None:
    assert cyclic.steps(network((C, Relu()), (2, 33, 8))) is None
    net = network((C, Relu()), (2, 6, 6))
    assert cyclic.steps(net) is not None
    assert not cyclic.applies(net, images("narrow").float())


def test_steps_carry_scales() -> None:
    """By hand: ReLU, then σ_w² / 9 on nine taps; trained weights put Σ′ into Θ′, frozen ones nothing."""
    frozen = Conv(3, W_std=2.0, b_std=0.5, train_weight=False, train_bias=False)
    first, second, last = cyclic.steps(network((C, Relu(), frozen, Relu()), (2, 6, 6))) or []
    assert (first.path, second.path, last.path) == (None, "1", "3")
    assert second.jump == pytest.approx(4 / 9)
    assert (first.ratio, second.ratio) == (1, 0)
    assert (second.offset, second.constant) == (0.25, 0.0)
    assert (last.jump, last.vertical, last.horizontal) == (1.0, 0.0, 0.0)


if __name__ == "__main__":
    interpret(str(Path(sys.argv[1])))
