"""Nobody resumes another's run: every change of a network, its data or its recipe, tried on every kind of store.

Each change is refused (the files stay as they were), and what is unchanged resumes with one piece computed again.
"""

from __future__ import annotations

import functools
import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import ntkscope as ns
from ntkscope.core import NtkscopeError, Part
from ntkscope.core.errors import RecordError, StoreError
from ntkscope.infinite import Activation, Conv, Dense, Flatten, Relu, serial
from ntkscope.kernels._stored import NetworkTiles
from ntkscope.storage.feature_store import FeatureStore
from ntkscope.storage.kernel_store import KernelStore
from ntkscope.training import fit
from oracles.resumed import CHANGES, NOTHING, Reading, changed, inputs, made

PROJECTED = tuple(name for name in ns.KERNELS if name.startswith("proj-"))
EXACT = tuple(name for name in ns.KERNELS if name not in PROJECTED)
FEW = "activation swapped, digits beyond six, closure variable, helper of the helper, global constant, hook"
QUICK = FEW.split(", ")


def files(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


@dataclass
class Store:
    """A kind of store: how a network is put into one."""

    call: Callable[..., Any]  # (model, inputs, folder)
    error: type[NtkscopeError]


def kernel(name: str, model: nn.Module, x: Tensor, folder: Path) -> Tensor:
    options = {"dim": 64, "kind": "gaussian"} if name.startswith("proj") else {}
    return ns.kernel(name, model, x, store=folder, **options).dense()


def trained(model: nn.Module, x: Tensor, folder: Path, **settings: Any) -> Tensor:
    y = settings.pop("y", torch.arange(len(x)) % 3)
    settings = {"lr": 0.05, "steps": 3, "batch_size": 4, **settings}
    return fit(model, Part(x, y), store=folder, **settings).final().params["readout.weight"]


def xrayed(model: nn.Module, x: Tensor, folder: Path, **settings: Any) -> Tensor:
    y = settings.pop("y", torch.arange(len(x)) % 3)
    how: dict[str, Any] = {"kernels": ["ck"], "untrained": True, "progress": False}
    record = ns.xray(model, (x, y), (x + 0.1, y), folder, **how, **settings)
    return torch.from_numpy(record.arrays["kernels.trntk0.train"].copy())


STORES: dict[str, Store] = {
    **{name: Store(functools.partial(kernel, name), StoreError) for name in (*EXACT, *PROJECTED)},
    "fit": Store(trained, RecordError),
    "xray": Store(xrayed, RecordError),
}


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A folder of each kind, filled by the unchanged network."""
    folders: dict[str, Path] = {}

    def find(kind: str) -> Path:
        if kind not in folders:
            folders[kind] = tmp_path_factory.mktemp("begun") / kind
            STORES[kind].call(made(), items(kind), folders[kind])
        return folders[kind]

    return find


def items(kind: str) -> Tensor:
    return inputs(24) if kind == "xray" else inputs()


def refused(kind: str, folder: Path, model: nn.Module, x: Tensor | None = None, **more: Any) -> str:
    """The error's text; the files are the same before and after."""
    before = files(folder)
    with pytest.raises(STORES[kind].error) as caught:
        STORES[kind].call(model, items(kind) if x is None else x, folder, **more)
    assert files(folder) == before
    return str(caught.value)


EVERYWHERE = [(kind, change) for kind in STORES for change in CHANGES if (kind, change) != ("xray", "training flag")]


@pytest.mark.guard
@pytest.mark.parametrize(("kind", "change"), EVERYWHERE)
def test_another_network_is_refused(begun: Callable[[str], Path], kind: str, change: str) -> None:
    assert "another folder" in refused(kind, begun(kind), changed(change))


@pytest.mark.parametrize("kind", ["trntk0", "proj-trntk", "fit"])
def test_some_other_networks_are_refused(begun: Callable[[str], Path], kind: str) -> None:
    for change in QUICK:
        refused(kind, begun(kind), changed(change))


@pytest.mark.guard
@pytest.mark.parametrize("kind", STORES)
def test_other_items_and_their_order_are_refused(begun: Callable[[str], Path], kind: str) -> None:
    x = items(kind)
    nudged = x.clone()
    nudged[1, 1] += 1e-6
    for other in (x.flip(0), nudged):
        refused(kind, begun(kind), made(), other)


@pytest.mark.guard
@pytest.mark.parametrize("kind", STORES)
@pytest.mark.parametrize("change", NOTHING)
def test_the_same_network_resumes(
    begun: Callable[[str], Path], kind: str, change: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / kind
    shutil.copytree(begun(kind), folder)
    expected = STORES[kind].call(made(), items(kind), folder)
    before = files(folder)
    tiles: list[tuple[int, int]] = []
    whole = NetworkTiles.tile

    def noting(self: NetworkTiles, i: int, j: int) -> Any:
        tiles.append((i, j))
        return whole(self, i, j)

    monkeypatch.setattr(NetworkTiles, "tile", noting)
    assert torch.equal(STORES[kind].call(made(NOTHING[change]), items(kind), folder), expected)
    assert files(folder) == before
    assert len(tiles) == (1 if kind in EXACT else 0)


# -- what a recipe is made of ------------------------------------------------------------------------------------------------


def quadratic(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs - targets[:, None]).square().mean(1)


BASE: dict[str, Any] = {
    "loss": lambda outputs, targets: (outputs - targets[:, None]).square().mean(1),
    "schedule": lambda step: 1.0 / (1 + step),
    "augment": lambda x, generator: x * 1.5,
    "optimizer": lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.5),
}
SETTINGS: dict[str, dict[str, Any]] = {
    "loss": {"loss": lambda outputs, targets: (outputs - targets[:, None]).abs().mean(1)},
    "a loss by name": {"loss": quadratic},
    "schedule": {"schedule": lambda step: 1.0 / (2 + step)},
    "augmentation": {"augment": lambda x, generator: x * 1.6},
    "optimizer": {"optimizer": lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.6)},
    "partial optimizer": {"optimizer": functools.partial(torch.optim.SGD, lr=0.05, momentum=0.5)},
    "seed": {"seed": 1},
    "digits of the rate": {"lr": 0.05 + 1e-12},
    "batch size": {"batch_size": 5},
    "labels": {"y": (torch.arange(9) + 1) % 3},
    "mode": {"mode": "stop-first"},
    "moments": {"snapshots": 1},
    "decay": {"weight_decay": 1e-12},
}


def test_another_recipe_of_training_is_refused(tmp_path: Path) -> None:
    trained(made(), inputs(), tmp_path / "run", **BASE)
    for what, other in SETTINGS.items():
        text = refused("fit", tmp_path / "run", made(), **BASE | other)
        assert "another run" in text, what
    assert torch.equal(
        trained(made(), inputs(), tmp_path / "run", **BASE), trained(made(), inputs(), tmp_path / "new", **BASE)
    )


def test_an_option_of_the_optimizer_and_of_a_loss(tmp_path: Path) -> None:
    base: dict[str, Any] = {"optimizer": "adam", "optimizer_options": {"betas": (0.9, 0.99)}}
    trained(made(), inputs(), tmp_path / "run", **base)
    refused("fit", tmp_path / "run", made(), optimizer="adam", optimizer_options={"betas": (0.9, 0.999)})
    smooth = ns.training.CrossEntropy(label_smoothing=0.1)
    refused("fit", tmp_path / "run", made(), **base, loss=smooth)


@pytest.mark.parametrize("measure", [False, True])
def test_a_loss_that_answers_differently_is_noticed(tmp_path: Path, measure: bool) -> None:
    """The network's outputs are the same; the first update, repeated, is not, or a snapshot's metrics are not."""
    number = tmp_path / "number"

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        read = torch.is_grad_enabled() != measure  # where it is measured, updates stay as they were
        return quadratic(outputs, targets) * (float(number.read_text()) if read else 1.0)

    number.write_text("1.0")
    trained(made(), inputs(), tmp_path / "run", loss=loss, measure=measure)
    number.write_text("1.1" if measure else "1.0000001")
    text = refused("fit", tmp_path / "run", made(), loss=loss, measure=measure)
    assert ("computed again, is" if measure else "its first update, repeated, gives other parameters") in text
    number.write_text("1.0")
    trained(made(), inputs(), tmp_path / "run", loss=loss, measure=measure)


def test_a_network_with_sparse_gradients_resumes(tmp_path: Path) -> None:
    def words() -> nn.Module:
        with torch.random.fork_rng():
            torch.manual_seed(0)
            return nn.Sequential(nn.EmbeddingBag(11, 4, sparse=True), nn.Linear(4, 3))

    part = Part(torch.arange(36).reshape(9, 4) % 11, torch.arange(9) % 3)
    first, again = (fit(words(), part, lr=0.1, steps=3, store=tmp_path / "run").final() for _ in range(2))
    assert all(torch.equal(first.params[name], again.params[name]) for name in first.params)


@pytest.mark.guard
def test_another_recipe_of_an_xray_is_refused(begun: Callable[[str], Path]) -> None:
    other: dict[str, dict[str, Any]] = {
        "labels": {"y": (torch.arange(24) + 1) % 3},
        "seed": {"seed": 1},
        "options": {"options": {"width": 6}},
        "initial": {"initial": made()},
        "classes": {"classes": ["a", "b", "c"]},
    }
    for what, change in other.items():
        assert "another" in refused("xray", begun("xray"), made(), **change), what


# -- infinite width ------------------------------------------------------------------------------------------------------------


def bent(z: Tensor) -> Tensor:
    return torch.sin(z) + 0.1 * z


def images() -> Tensor:
    return torch.randn(5, 2, 6, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def wide(**given: Any) -> Any:
    options = {"dilation": 1, "W_std": 1.0000001, "fn": bent, "train_weight": True, "terms": 64, "stride": 1, **given}
    fn, terms = options.pop("fn"), options.pop("terms")
    return serial(Conv(3, width=4, **options), Activation(fn, terms=terms), Flatten(), Dense(), Relu(), Dense())


INFINITE: dict[str, dict[str, Any]] = {
    "dilation": {"dilation": 2},
    "frozen weights": {"train_weight": False},
    "digits beyond six": {"W_std": 1.0000002},
    "stride": {"stride": 2},
    "another function": {"fn": torch.tanh},
    "another lambda": {"fn": lambda z: torch.sin(z) + 0.2 * z},
    "a partial": {"fn": functools.partial(torch.add, other=0.0)},
    "terms": {"terms": 32},
}


@pytest.mark.parametrize("kind", ["ntk", pytest.param("nngp", marks=pytest.mark.guard)])
def test_another_infinite_network_is_refused(kind: str, tmp_path: Path) -> None:
    x = images()
    first = ns.infinite.kernel(wide(), x, kind=kind, store=tmp_path / "k").dense()
    before = files(tmp_path / "k")
    for what, change in INFINITE.items():
        with pytest.raises(StoreError, match="network is"):
            ns.infinite.kernel(wide(**change), x, kind=kind, store=tmp_path / "k")
        assert files(tmp_path / "k") == before, what
    with pytest.raises(StoreError, match="row inputs is"):
        ns.infinite.kernel(wide(), x.flip(0), kind=kind, store=tmp_path / "k")
    assert torch.equal(ns.infinite.kernel(wide(), x, kind=kind, store=tmp_path / "k").dense(), first)


def test_modules_of_an_infinite_network(tmp_path: Path) -> None:
    """What a module says only to the translator: which parameters are trained, the last digits of their scale."""

    def modules(factor: float = 1.0, frozen: bool = False) -> nn.Module:
        with torch.random.fork_rng():
            torch.manual_seed(0)
            model = nn.Sequential(nn.Linear(5, 50), nn.ReLU(), nn.Linear(50, 1)).double()
        with torch.no_grad():
            model[0].weight.mul_(factor)
        model[0].requires_grad_(not frozen)
        return model

    x = inputs().double()
    ns.infinite.kernel(modules(), x, init="measured", store=tmp_path / "k")
    for other in (modules(1 + 1e-9), modules(frozen=True)):
        with pytest.raises(StoreError, match="network is"):
            ns.infinite.kernel(other, x, init="measured", store=tmp_path / "k")


def test_a_function_that_answers_differently_is_noticed(tmp_path: Path) -> None:
    """Its name and code are the same; what it reads is not."""
    number = tmp_path / "number"

    def read(z: Tensor) -> Tensor:
        return torch.sin(z) * float(number.read_text())

    number.write_text("1.0")
    ns.infinite.kernel(wide(fn=read), images(), store=tmp_path / "k")
    number.write_text("1.5")
    with pytest.raises(StoreError, match="answers differently"):
        ns.infinite.kernel(wide(fn=read), images(), store=tmp_path / "k")


# -- behaviour -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "other"),
    [("trntk0", "1.0000001"), *(pytest.param(kind, "1.5", marks=pytest.mark.guard) for kind in STORES)],
)
def test_a_network_that_answers_differently_is_noticed(kind: str, other: str, tmp_path: Path) -> None:
    """Structure, code and numbers are the same; a file it reads is not."""
    number, folder = tmp_path / "number", tmp_path / "k"
    number.write_text("1.0")
    STORES[kind].call(Reading(number), items(kind), folder)
    number.write_text(other)
    assert "answers differently" in refused(kind, folder, Reading(number))
    number.write_text("1.0")
    STORES[kind].call(Reading(number), items(kind), folder)


@pytest.mark.parametrize("kind", ["trntk0", "proj-trntk"])
def test_where_the_kept_answers_are_the_same_the_tile_is_not(kind: str, tmp_path: Path) -> None:
    """Only items whose answers were not kept feel the change: the piece computed again does."""
    x = inputs().clamp(-0.9, 0.9)
    x[[1, 2, 3], 0] = 2.0  # neither the first, the middle nor the last
    number, folder = tmp_path / "number", tmp_path / "k"
    number.write_text("-1.0")
    STORES[kind].call(Reading(number), x, folder)
    number.write_text("-1.5")
    assert "computed again" in refused(kind, folder, Reading(number), x)


# -- pieces in the wrong place -------------------------------------------------------------------------------------------------


def test_a_store_whose_labels_were_edited_is_refused(tmp_path: Path) -> None:
    kernel("trntk", made(), inputs(), tmp_path / "k")
    kernel("proj-trntk", made(), inputs(), tmp_path / "f")
    for folder, store, old, new in (
        ("k", KernelStore, '"normalize": true', '"normalize": false'),
        ("f", FeatureStore, '"groups": 16', '"groups": 8'),
    ):
        document = tmp_path / folder / "zarr.json"
        text = document.read_text()
        assert old in text
        document.write_text(text.replace(old, new))
        for act in (store.open, ns.open_kernel):
            with pytest.raises(StoreError, match="is not what was written"):
                act(tmp_path / folder)
        document.write_text(text)
        store.open(tmp_path / folder)


def test_snapshots_belong_to_their_step_and_their_store(tmp_path: Path) -> None:
    for name, seed in (("one", 0), ("two", 1)):
        trained(made(), inputs(), tmp_path / name, snapshots=1, seed=seed)
    one, two = (ns.training.SnapshotStore(tmp_path / name) for name in ("one", "two"))
    path = tmp_path / "one" / "step-000000002.safetensors"
    kept = path.read_bytes()
    flipped = bytearray(kept)
    flipped[-3] ^= 1
    others = {
        "holds the snapshot of step 1": (tmp_path / "one" / "step-000000001.safetensors").read_bytes(),
        "for another store": (tmp_path / "two" / path.name).read_bytes(),
        "its checksum differs": bytes(flipped),
    }
    for words, content in others.items():
        path.write_bytes(content)
        with pytest.raises(NtkscopeError, match=words):
            one[2]
    path.write_bytes(kept)
    assert one[2].step == two[2].step == 2
    settings = tmp_path / "one" / "settings.json"
    settings.write_text(settings.read_text().replace('"lr": "0.05"', '"lr": "0.06"'))
    with pytest.raises(RecordError, match="is not what was written"):
        trained(made(), inputs(), tmp_path / "one", snapshots=1, lr=0.06)


def test_runs_of_an_earlier_version_are_refused(tmp_path: Path) -> None:
    trained(made(), inputs(), tmp_path / "run")
    settings = tmp_path / "run" / "settings.json"
    settings.write_text('{"settings": {"lr": "0.05"}, "final_step": 3}')
    with pytest.raises(RecordError, match="of an earlier ntkscope"):
        trained(made(), inputs(), tmp_path / "run")
    assert ns.training.SnapshotStore(tmp_path / "run")[3].step == 3  # what is there can be read


def test_new_inputs_meet_the_features_of_the_same_network_only(tmp_path: Path) -> None:
    kernel("proj-trntk", made(), inputs(), tmp_path / "f")
    for change in QUICK:
        with pytest.raises(StoreError, match="was made with another"):
            ns.kernels.extend(tmp_path / "f", changed(change), inputs(3))
    assert ns.kernels.extend(tmp_path / "f", made(), inputs(3)).shape == (3, 9)
    number = tmp_path / "number"
    number.write_text("1.0")
    kernel("proj-trntk", Reading(number), inputs(), tmp_path / "g")
    expected = ns.kernels.extend(tmp_path / "g", Reading(number), inputs(3)).dense()
    number.write_text("1.0000001")
    with pytest.raises(StoreError, match="answers differently"):
        ns.kernels.extend(tmp_path / "g", Reading(number), inputs(3))
    number.write_text("1.0")
    torch.testing.assert_close(ns.kernels.extend(tmp_path / "g", Reading(number), inputs(1)).dense(), expected[:1])
    (tmp_path / "g/features/asked").write_bytes(b"something else")
    with pytest.raises(StoreError, match="is not what was written"):
        ns.kernels.extend(tmp_path / "g", Reading(number), inputs(3))


# -- the command line ----------------------------------------------------------------------------------------------------------


def test_options_of_the_command_line_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one that the network does not show, and the factory's own code."""
    from ntkscope.cli.kernel import kernel as command

    name = f"made_here_{os.getpid()}"
    text = """
from oracles import resumed
from ntkscope.core import Part

def network(width=6, remark="", bent=False):
    model = resumed.made(width=width)
    if bent:
        model.activation = resumed.torch.sin
    return model

def data():
    return resumed.inputs(), resumed.inputs(3)
"""
    (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.chdir(tmp_path)

    def run(*options: str) -> None:
        command(
            "trntk0",
            model=f"{name}:network",
            data=f"{name}:data",
            store=str(tmp_path / "k"),
            device="cpu",
            model_option=list(options),
        )

    run("remark='first'")
    before = files(tmp_path / "k")
    for other in (("remark='second'",), ("remark='first'", "bent=True"), ("remark='first'", "width=7"), ()):
        with pytest.raises(StoreError, match="structure of the model is"):
            run(*other)
        assert files(tmp_path / "k") == before
    run("remark='first'")
    assert files(tmp_path / "k") == before
    monkeypatch.delitem(sys.modules, name)
