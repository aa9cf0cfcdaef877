"""Kernels on disk: what they are in memory, in any cut, order and process, after any interruption; nothing else mixes in."""

from __future__ import annotations

import pickle
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import ntkscope as ns
from contracts.kernel import SAME, convolutional, perceptron, seeded, tied
from ntkscope.core import UsageError
from ntkscope.core.errors import MemoryBudgetError, StoreError
from ntkscope.storage import TiledGram
from ntkscope.storage.kernel_store import KernelStore
from ntkscope.tangent.blocks.heads import Heads
from ntkscope.tangent.certify.fallback import Fallback
from ntkscope.tangent.kernel.plan import Cut, Footprint, make_cut
from ntkscope.tangent.kernel.store_source import FeatureTiles, TangentRecipe
from ntkscope.tangent.model.batches import Batch
from oracles import naive
from oracles.against import options_for, smallest_budget
from oracles.closeness import assert_kernel_close
from oracles.store_network import images, network
from oracles.unchanged import assert_unchanged, state
from strategies.networks import Case, Net, noise, randomize

KERNELS = tuple(name for name in ns.KERNELS if not name.startswith("proj-"))  # those keep features, not entries


def source(
    model: nn.Module, x1: Tensor, x2: Tensor | None, cut: Cut, *, full: bool = False, **more: Any
) -> FeatureTiles:
    """The source behind `trntk0` or `entk`, cut as asked."""
    names = frozenset(name for name, _ in model.named_parameters())
    recipe = TangentRecipe(model, None, None, names, Heads(), full, "exact")
    left, right = Batch((x1,), {}), None if x2 is None else Batch((x2,), {})
    maker = recipe.make(left, Fallback())
    more = {"memory": 2**30, "labels": {}, "fingerprint": {}, **more}
    return FeatureTiles(recipe, left, right, cut, maker, **more)


def assembled(tiles: FeatureTiles, order: list[tuple[int, int]] | None = None) -> Tensor:
    """The whole matrix, tiles computed in some order."""
    grid = tiles.grid
    whole = torch.full((grid.n, grid.m), torch.nan, dtype=tiles.dtype)
    for i, j in order or list(grid):
        made = tiles.tile(i, j)
        whole[grid.rows(i), grid.columns(j)] = made.values
        if grid.symmetric:
            whole[grid.columns(j), grid.rows(i)] = made.values.T
    return whole


# -- the numbers ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "case"),
    [
        *((name, convolutional) for name in KERNELS),
        ("trntk0", perceptron),
        ("trntk0", tied),
        ("em", tied),
        ("ck", tied),
    ],
)
def test_it_is_the_kernel_in_memory(name: str, case: Callable[[], Case], tmp_path: Path) -> None:
    model, x = seeded(case)
    options = options_for(name, model)
    for x1, x2, at in ((x, None, "one"), (x[:3], x[2:], "two")):
        expected = ns.kernel(name, model, x1, x2, **options)
        found = ns.kernel(name, model, x1, x2, store=tmp_path / at, **options)
        assert isinstance(found, TiledGram)
        assert_kernel_close(found.dense(), expected.dense(), SAME)
        assert (found.name, found.rows, found.outputs, found.symmetric) == (
            expected.name,
            expected.rows,
            expected.outputs,
            expected.symmetric,
        )
        for mine, theirs in (
            (found.row_diagonal, expected.row_diagonal),
            (found.column_diagonal, expected.column_diagonal),
        ):
            assert mine is not None
            assert theirs is not None
            assert_kernel_close(mine[None], theirs[None], SAME)
        assert torch.equal(ns.open_kernel(str(tmp_path / at)).dense(), found.dense())


@pytest.mark.parametrize("full", [False, True], ids=["trntk0", "entk"])
@pytest.mark.parametrize("cut", [(11, 4), (1, 1), (30, 29)], ids=str)
@pytest.mark.guard
def test_any_cut(full: bool, cut: tuple[int, int]) -> None:
    model, (x1, x2) = network(), images()
    for right in (None, x2):
        left = x1[:4] if cut == (1, 1) else x1
        right = right[:3] if right is not None and cut == (1, 1) else right
        expected = ns.kernel("entk" if full else "trntk0", model, left, right).dense()
        found = assembled(source(model, left, right, Cut(*cut, 2**21), full=full))
        assert_kernel_close(found, expected, SAME)
        if right is None:
            assert torch.equal(found, found.T)


@pytest.mark.parametrize("full", [False, True], ids=["trntk0", "entk"])
@pytest.mark.guard
def test_the_same_bits_in_any_order_process_and_number_of_threads(full: bool) -> None:
    model, (x1, x2) = network(), images()
    model, x1, x2 = model.float(), x1.float(), x2.float()  # single precision loses more digits to another order of sums
    threads = torch.get_num_threads()
    for right in (None, x2):
        tiles = source(model, x1, right, Cut(12, 5, 2**21), full=full)
        sent = pickle.dumps(tiles)
        expected = assembled(tiles)
        order = list(tiles.grid)
        random.Random(0).shuffle(order)
        try:
            torch.set_num_threads(1)
            assert torch.equal(assembled(pickle.loads(sent), order), expected)  # noqa: S301 - made above
            torch.set_num_threads(3)
            assert torch.equal(assembled(pickle.loads(sent), order[::-1]), expected)  # noqa: S301
        finally:
            torch.set_num_threads(threads)
        i, j = order[0]
        one, two = (tiles.tile(i, j) for _ in range(2))
        assert torch.equal(one.values, two.values)


def test_a_path_that_depends_on_the_input_gives_the_same_tile_in_any_order() -> None:
    """Some blocks use a parameter in a way the probe did not see: their tiles take another method, whichever came first."""

    def run(m: Any, x: Tensor) -> Tensor:
        h = m.a(x)
        return m.head(m.a(torch.tanh(h)) if bool((x[:, 0] > 50).any()) else torch.tanh(h))

    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = randomize(Net(run, a=nn.Linear(4, 4), head=nn.Linear(4, 2)))
    x = noise(12, 4)
    x[8, 0] = 99.0
    tiles = source(model, x, None, Cut(3, 1, 2**21))
    order = list(tiles.grid)
    expected = assembled(tiles, order)
    assert torch.equal(assembled(source(model, x, None, Cut(3, 1, 2**21)), order[::-1]), expected)
    assert_kernel_close(expected, naive.kernel("trntk0", model, x), 1e-10)


def test_chosen_outputs_and_parameters(tmp_path: Path) -> None:
    model, x = seeded(perceptron)
    for number, chosen in enumerate(
        ({"outputs": [2, 0]}, {"params": "last"}, {"params": ["0.*", "5.bias"]}, {"outputs": 1})
    ):
        expected = ns.kernel("trntk0", model, x, **chosen).dense()
        found = ns.kernel("trntk0", model, x, store=tmp_path / str(number), **chosen)
        assert_kernel_close(found.dense(), expected, SAME)


def test_a_cosine_is_kept_unnormalised_and_opened_normalised(tmp_path: Path) -> None:
    model, x = seeded(perceptron)
    found = ns.kernel("trntk", model, x, store=tmp_path / "k")
    assert torch.equal(found.diagonal(), torch.ones(len(x), dtype=torch.float64))
    store = KernelStore.open(str(tmp_path / "k"))
    assert store.labels["normalize"] is True
    raw = ns.kernel("trntk0", model, x).dense()
    assert_kernel_close(store.read(0, 0), raw, SAME)
    assert_kernel_close(ns.open_kernel(str(tmp_path / "k")).dense(), ns.kernel("trntk", model, x).dense(), SAME)


@pytest.mark.parametrize("name", ["trntk0", "em", "ptk"])
def test_nothing_of_the_model_changes(name: str, tmp_path: Path) -> None:
    model, x = seeded(convolutional)
    before = state(model)
    ns.kernel(name, model, x, x[:2], store=tmp_path / "k", **options_for(name, model)).dense()
    assert_unchanged(model, before)


# -- going on ------------------------------------------------------------------------------------------------------------


@pytest.mark.guard
def test_only_what_is_missing_is_computed(tmp_path: Path) -> None:
    model, (x, _) = network(), images()
    memory = "3.5MB"  # for 28 tiles
    first = ns.kernel("trntk0", model, x, store=tmp_path / "k", memory=memory)
    store, whole = first.store, first.dense()  # type: ignore[attr-defined]
    assert len(store.grid) > 3
    assert first.meta["run"]["computed"] == len(store.grid)
    for tile in list(store.grid)[::2]:
        store.drop(*tile)
    again = ns.kernel("trntk0", model, x, store=tmp_path / "k", memory="1GiB")  # the store's own cut is used
    assert again.meta["run"]["computed"] == len(list(store.grid)[::2])
    assert torch.equal(again.dense(), whole)


CHANGES: dict[str, tuple[str, dict[str, Any]]] = {
    "model": ("model is", {"model": network(0.1)}),
    "inputs": ("row inputs is", {"x1": images(0.1)[0]}),
    "more inputs": ("rows is", {"x1": images()[0][:-1]}),
    "columns": ("column inputs is", {"x2": images()[1]}),
    "kernel": ("kernel is 'pntk' now and 'trntk0'", {"name": "pntk"}),
    "outputs": ("outputs is '0, 1' now and 'all'", {"outputs": [0, 1]}),
    "parameters": ("parameters is '5.weight, 5.bias'", {"params": "last"}),
    "dtype": ("computed in is 'float32' now and 'float64'", {"dtype": torch.float32}),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_differs_is_refused_by_its_name(change: str, tmp_path: Path) -> None:
    given: dict[str, Any] = {"name": "trntk0", "model": network(), "x1": images()[0], "store": tmp_path / "k"}
    ns.kernel(**given)
    words, other = CHANGES[change]
    with pytest.raises(StoreError, match="holds another kernel") as error:
        ns.kernel(**given | other)
    assert words in str(error.value)
    found = ns.kernel(**given)
    assert found.meta["run"]["computed"] == 0


def test_another_forward_with_the_same_weights_is_refused(tmp_path: Path) -> None:
    class Mine(nn.Linear):
        def forward(self, input: Tensor) -> Tensor:
            return super().forward(input).tanh()

    theirs = type(
        "Mine", (nn.Linear,), {"forward": lambda self, x: nn.Linear.forward(self, x).relu(), "__module__": __name__}
    )
    x, one = noise(4, 3), Mine(3, 2).double()
    two = theirs(3, 2).double()
    two.load_state_dict(one.state_dict())
    ns.kernel("trntk0", one, x, store=tmp_path / "k")
    with pytest.raises(StoreError, match="code of the model"):
        ns.kernel("trntk0", two, x, store=tmp_path / "k")


def test_too_little_memory_for_the_stores_tiles_states_the_smallest(tmp_path: Path) -> None:
    model, (x, _) = network(), images()
    first = ns.kernel("trntk0", model, x, store=tmp_path / "k")
    first.store.drop(0, 0)  # type: ignore[attr-defined]

    def call(memory: int) -> Any:
        return ns.kernel("trntk0", model, x, store=tmp_path / "k", memory=memory)

    smallest = smallest_budget(call)
    with pytest.raises(MemoryBudgetError, match="tiles of 31 samples"):
        call(int(0.9 * smallest))
    assert torch.equal(call(smallest).dense(), ns.open_kernel(str(tmp_path / "k")).dense())


@pytest.mark.guard
def test_a_new_store_in_too_little_memory_states_the_smallest(tmp_path: Path) -> None:
    model, x = network(), images()[0][:5]
    smallest = smallest_budget(lambda memory: ns.kernel("trntk0", model, x, store=tmp_path / "k", memory=memory))
    assert not (tmp_path / "k").exists()
    found = ns.kernel("trntk0", model, x, store=tmp_path / "k", memory=smallest)
    assert_kernel_close(found.dense(), ns.kernel("trntk0", model, x).dense(), SAME)


def test_what_has_no_tiles_is_refused_with_a_remedy(tmp_path: Path) -> None:
    model, x = seeded(perceptron)
    for name, options, words in (
        ("trntk0", {"per_layer": True}, "per_layer=True"),
        ("ptk", {"form": "features"}, "form='dual'"),
    ):
        with pytest.raises(UsageError, match=words):
            ns.kernel(name, model, x, store=tmp_path / "k", **options)
    with pytest.raises(UsageError, match="pass store="):
        ns.kernel("trntk0", model, x, executor="tcp://localhost:1")
    assert not (tmp_path / "k").exists()


# -- the cut -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("memory", [2**22, 2**24, 2**26, 2**28, 2**31])
@pytest.mark.parametrize("n", [1, 100, 2100, 20000])
def test_a_cut_fits_its_memory_and_covers_the_inputs(memory: int, n: int) -> None:
    each = Footprint(113_000, 400_000, 4, 1, 30_000)
    cut = make_cut(n, None, each, memory, workers=2)
    assert cut.needs(each) <= each.slack * memory
    assert 1 <= cut.block <= cut.size <= max(n, cut.block)
    assert cut.workers(each, memory, 8) >= 1
    larger = make_cut(n, None, each, 2 * memory, workers=2)
    assert larger.size * 1.5 >= cut.size  # even tiles are a little smaller than the largest
    assert Cut.from_json(cut.to_json(), "here") == cut


def test_heavier_networks_get_smaller_tiles() -> None:
    sizes = [make_cut(10**5, None, Footprint(1, 1, 4, 1, cost), 2**34, 2).size for cost in (1e4, 1e6, 1e8)]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] > sizes[-1]
