"""Infinite-width kernels on disk: what they are in memory, cut anyhow, on any number of threads, gone on with."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import ntkscope as ns
from ntkscope.core.errors import MemoryBudgetError, StoreError
from ntkscope.infinite import Conv, Dense, Flatten, GlobalAvgPool, Relu, serial
from ntkscope.infinite.layer import Layer, Shape
from ntkscope.infinite.limit import _tiled
from ntkscope.infinite.pairs import Network
from ntkscope.infinite.rules.serial import Serial
from ntkscope.infinite.tile_source import PairCut, PairTiles
from ntkscope.storage import TiledGram
from oracles.closeness import assert_kernel_close
from strategies.networks import noise

SAME = 1e-12  # only the order of additions may differ
NETWORKS: dict[str, tuple[Layer, Tensor]] = {
    "vectors": (serial(Dense(), Relu(), Dense(), Relu(), Dense()), noise(23, 5)),
    "images": (serial(Conv(4, 3), Relu(), Flatten(), Dense()), noise(7, 2, 5, 5)),
    "pooled": (serial(Conv(4, 3), Relu(), GlobalAvgPool(), Dense()), noise(7, 2, 5, 5)),
}
everywhere = pytest.mark.parametrize("which", NETWORKS)


@everywhere
@pytest.mark.parametrize("kind", ["ntk", "nngp"])
def test_it_is_the_kernel_in_memory(which: str, kind: str, tmp_path: Path) -> None:
    net, x = NETWORKS[which]
    for x2, at in ((None, "one"), (x[2:5], "two")):
        expected = ns.infinite.kernel(net, x, x2, kind)
        found = ns.infinite.kernel(net, x, x2, kind, store=tmp_path / at)
        assert isinstance(found, TiledGram)
        assert (found.name, found.symmetric, found.meta["parametrization"]) == (f"infinite-{kind}", x2 is None, "ntk")
        assert_kernel_close(found.dense(), expected.dense(), SAME)
        for mine, theirs in (
            (found.row_diagonal, expected.row_diagonal),
            (found.column_diagonal, expected.column_diagonal),
        ):
            assert (mine is None) == (theirs is None)
            if mine is not None and theirs is not None:
                assert_kernel_close(mine[None], theirs[None], SAME)


@everywhere
def test_the_same_bits_in_any_order_process_and_number_of_threads(which: str) -> None:
    net, x = NETWORKS[which]
    network = Network.of(Serial((net,)), Shape(x.shape[1], tuple(x.shape[2:])), True, False)
    threads = torch.get_num_threads()
    for right in (None, x[1:6]):
        tiles = PairTiles(network, x, right, "ntk", PairCut(5, 2, 2**22), 2**26, _tiled, "cpu")
        expected = {at: tiles.tile(*at).values for at in tiles.grid}
        sent = pickle.loads(pickle.dumps(tiles))  # noqa: S301 - made here
        try:
            for count in (1, 3):
                torch.set_num_threads(count)
                for at in reversed(list(tiles.grid)):
                    assert torch.equal(sent.tile(*at).values, expected[at])
        finally:
            torch.set_num_threads(threads)
        if right is None:
            assert all(torch.equal(v, v.T) for (i, j), v in expected.items() if i == j)


def test_it_goes_on_with_its_own_cut_and_refuses_another_kernel(tmp_path: Path) -> None:
    net, x = NETWORKS["vectors"]
    first = ns.infinite.kernel(net, x, store=tmp_path / "k", memory=40_000)
    store, whole = first.store, first.dense()  # type: ignore[attr-defined]
    assert len(store.grid) > 1
    store.drop(0, 0)
    assert torch.equal(ns.infinite.kernel(net, x, store=tmp_path / "k").dense(), whole)
    store.drop(0, 0)
    with pytest.raises(MemoryBudgetError, match="the smallest budget that works"):
        ns.infinite.kernel(net, x, store=tmp_path / "k", memory=20_000)
    for other, words in (
        ({"kind": "nngp"}, "kernel is 'infinite-nngp'"),
        ({"x1": x + 1}, "row inputs"),
        ({"net": serial(Dense(), Relu(), Dense())}, "network"),
        (
            {"parametrization": "standard", "net": nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 1))},
            "parametrization",
        ),
    ):
        with pytest.raises(StoreError, match=words):
            ns.infinite.kernel(**{"net": net, "x1": x, "store": tmp_path / "k", "init": "default", **other})
