"""Numbers do not change while their version stays, and nothing else about ntkscope's own code invalidates a store.

A pin that fails: if the change was meant, raise the version in `core/numerics.py` and pin the new values under it here;
otherwise the change is a bug.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

import ntkscope as ns
from ntkscope.core.errors import RecordError, StoreError
from ntkscope.core.identity import identity
from ntkscope.core.numerics import NUMERICS, numerics

PACKAGE = Path(ns.__file__).parent


def network() -> nn.Module:
    """A small network whose weights come from no random stream."""
    model = nn.Sequential(
        nn.Conv2d(1, 2, 2), nn.Tanh(), nn.Flatten(), nn.Linear(8, 3), nn.Tanh(), nn.Linear(3, 2)
    ).double()
    with torch.no_grad():
        for k, parameter in enumerate(model.parameters(), 1):
            parameter.copy_(torch.sin(k * torch.arange(1.0, parameter.numel() + 1).double()).reshape(parameter.shape))
    return model.eval()


def inputs(n: int = 3) -> Tensor:
    return torch.cos(torch.arange(9.0 * n).double()).reshape(n, 1, 3, 3)


def row(gram: ns.linalg.Gram) -> list[float]:
    """Three entries and the sum of all: enough to notice a change."""
    values = gram.dense()
    return [*values[0, -3:].tolist(), float(values.sum())]


def of_kernel(name: str, **options: Any) -> list[float]:
    return row(ns.kernel(name, network(), inputs(), **options))


def projected(name: str, kind: str) -> list[float]:
    return of_kernel(name, kind=kind, dim=64, normalize=False)


def of_infinite(kind: str) -> list[float]:
    x = inputs().flatten(1)
    Dense = ns.infinite.Dense
    net = ns.infinite.serial(Dense(b_std=0.5), ns.infinite.Relu(), Dense(), ns.infinite.Erf(), Dense())
    return row(ns.infinite.kernel(net, x, kind=kind))


def of_convolution(kind: str) -> list[float]:
    layers = ns.infinite.Conv(2), ns.infinite.Relu(), ns.infinite.GlobalAvgPool(), ns.infinite.Dense()
    return row(ns.infinite.kernel(ns.infinite.serial(*layers), inputs(), kind=kind))


def of_training(**settings: Any) -> list[float]:
    model = network()
    part = ns.core.types.Part(inputs(6), torch.arange(6) % 2)
    last = list(ns.training.fit(model, part, loss="cross_entropy", epochs=2, batch_size=2, seed=1, **settings))[-1]
    return [float(value.double().sum()) for value in last.params.values()][:4]


# The versions, how it is computed, and what comes out.
# fmt: off
PINNED: dict[str, tuple[str, Any, list[float]]] = {
    "entk": ("tangent 3, entk 1", partial(of_kernel, "entk"),
        [0.5504730482188422, 5.05149489354903, -2.3118331462003003, 45.901486550067574]),
    "trntk": ("tangent 3, trntk 1", partial(of_kernel, "trntk"),
        [1.0, 0.23366827161661374, 0.7661438387931733, 4.982419491983274]),
    "trntk0": ("tangent 3, trntk0 1", partial(of_kernel, "trntk0"),
        [12.71668781304948, 2.852615936568417, 10.277533136392375, 64.62590195899497]),
    "pntk": ("tangent 3, pntk 1", partial(of_kernel, "pntk"),
        [3.487794105652023, 1.8487119494334538, 2.8143596026199598, 22.950743275033787]),
    "ck": ("tangent 3, ck 1", partial(of_kernel, "ck"),
        [2.167333513557575, 2.1453625727686547, 2.137335552774885, 19.230312804780517]),
    "em": ("tangent 3, em 1", partial(of_kernel, "em"),
        [25.360404745479972, -15.28914396860702, 27.582098664958508, 82.99434229196672]),
    "ptk": ("tangent 3, ptk 1", partial(of_kernel, "ptk"),
        [1.052478632417718, 0.9939885862411493, 1.0894515789570187, 9.42604697229669]),
    "trntk0, one output and the last layer": ("tangent 3, trntk0 1",
        partial(of_kernel, "trntk0", outputs=[1], params="last"),
        [2.1673335135575753, 2.1453625727686547, 2.137335552774885, 19.230312804780517]),
    "proj-trntk, rademacher": ("tangent 3, projection 1, proj-trntk 2", partial(projected, "proj-trntk", "rademacher"),
        [14.379859963917836, 0.9759059807977593, 12.499874778081763, 63.26411210637495]),
    "proj-trntk, gaussian": ("tangent 3, projection 1, proj-trntk 2", partial(projected, "proj-trntk", "gaussian"),
        [11.449961138947751, 4.51825634806005, 9.470640549555686, 72.9154933120036]),
    "proj-trntk, sparse": ("tangent 3, projection 1, proj-trntk 2", partial(projected, "proj-trntk", "sparse"),
        [12.938292908685641, 2.697139517259922, 10.151559528836477, 63.199033477853405]),
    "proj-trntk, kronecker": ("tangent 3, projection 1, proj-trntk 2", partial(projected, "proj-trntk", "kronecker"),
        [13.3979303647563, 4.3751665604856935, 9.430700399642193, 66.61378551525135]),
    "proj-pntk, rademacher": ("tangent 3, projection 1, proj-pntk 2", partial(projected, "proj-pntk", "rademacher"),
        [4.137823541135925, 1.8220036008506186, 2.953224489315834, 22.66448822498809]),
    "infinite ntk": ("infinite 1", partial(of_infinite, "ntk"),
        [0.8827695120454715, 0.07287787142140628, 0.6507587370482911, 4.2743212028540505]),
    "infinite nngp": ("infinite 1", partial(of_infinite, "nngp"),
        [0.2810533254361485, 0.052227954183711796, 0.22927695860241395, 1.5201477846426577]),
    "infinite ntk, convolution": ("infinite 1", partial(of_convolution, "ntk"),
        [0.07255356415725174, 0.06872446212063248, 0.09041168983927891, 0.7940443815476839]),
    "sgd": ("training 1", partial(of_training, lr=0.1, momentum=0.9),
        [1.6114966643825819, 0.3205586987824747, 0.32042967516554377, -0.14836129961106848]),
    "adam": ("training 1", partial(of_training, optimizer="adam", lr=0.01),
        [1.5488323318031814, 0.18025057011530887, 0.17957842185913186, -0.2918085756794815]),
}
# fmt: on


@pytest.mark.parametrize("name", PINNED)
def test_numbers_are_those_of_their_version(name: str) -> None:
    versions, compute, values = PINNED[name]
    assert f"numerics of {versions}" == now(versions), "a version was raised: pin its values here"
    assert_close(torch.tensor(compute()).double(), torch.tensor(values).double(), rtol=1e-12, atol=1e-12)


def now(versions: str) -> str:
    """The versions of today, of the same rooms and kernels."""
    names = [part.rpartition(" ")[0] for part in versions.split(", ")]
    return numerics(*names)


def test_every_version_is_pinned() -> None:
    pinned = {part.rpartition(" ")[0] for _, (text, _, _) in PINNED.items() for part in text.split(", ")}
    assert pinned == set(NUMERICS)
    assert set(ns.KERNELS) >= pinned - {"tangent", "projection", "infinite", "training"}


# -- stores ------------------------------------------------------------------------------------------------------------

STORES: dict[str, tuple[tuple[str, ...], Any]] = {
    "trntk0": (("tangent", "trntk0"), lambda url: ns.kernel("trntk0", network(), inputs(), store=url)),
    "ck": (("tangent", "ck"), lambda url: ns.kernel("ck", network(), inputs(), store=url)),
    "proj-pntk": (
        ("tangent", "projection", "proj-pntk"),
        lambda url: ns.kernel("proj-pntk", network(), inputs(), dim=32, store=url),
    ),
    "infinite": (
        ("infinite",),
        lambda url: ns.infinite.kernel(ns.infinite.serial(ns.infinite.Dense()), inputs().flatten(1), store=url),
    ),
    "training": (
        ("training",),
        lambda url: ns.training.fit(
            network(), ns.core.types.Part(inputs(4), torch.arange(4) % 2), lr=0.1, steps=2, store=url
        ).final(),
    ),
}


@pytest.mark.parametrize("name", STORES)
def test_a_raised_version_is_refused_by_name(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rooms, make = STORES[name]
    make(tmp_path / "k")
    make(tmp_path / "k")
    for room in rooms:
        with monkeypatch.context() as patch:
            raised = NUMERICS.get(room, 1) + 1
            patch.setattr("ntkscope.core.numerics.NUMERICS", {**NUMERICS, room: raised})
            with pytest.raises((StoreError, RecordError), match=f"{room} {raised}"):
                make(tmp_path / "k")
    with monkeypatch.context() as patch:
        patch.setattr("ntkscope.core.numerics.NUMERICS", {**NUMERICS, "another": 2})
        make(tmp_path / "k")


@pytest.mark.parametrize("name", STORES)
def test_a_store_of_a_version_that_hashed_its_files_says_so(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, make = STORES[name]
    for module in ("kernels._stored", "kernels._projected_store", "infinite.tile_source", "training.resuming"):
        monkeypatch.setattr(f"ntkscope.{module}.numerics", lambda *_: "0.1.0, 0123456789abcdef01234567")
    make(tmp_path / "k")
    monkeypatch.undo()
    with pytest.raises((StoreError, RecordError), match="hash of its own source files"):
        make(tmp_path / "k")
    if name not in ("training", "infinite"):
        assert ns.open_kernel(tmp_path / "k").shape == (3, 3)


def test_ntkscope_in_a_model_counts_by_its_version(monkeypatch: pytest.MonkeyPatch) -> None:
    layers = ns.infinite.serial(ns.infinite.Dense(), ns.infinite.Relu())
    before = identity(layers)
    assert identity(ns.infinite.serial(ns.infinite.Dense(), ns.infinite.Relu())) == before
    monkeypatch.setattr("ntkscope.core.numerics.NUMERICS", {**NUMERICS, "infinite": 2})
    assert identity(layers) != before


RESUME = """
import sys
import ntkscope as ns
from core.test_numerics import STORES, PACKAGE
assert str(PACKAGE).startswith(sys.argv[1]), PACKAGE
for name in ("trntk0", "ck"):
    assert STORES[name][1](f"{sys.argv[2]}/{name}").meta["run"]["computed"] == 0
for name in ("proj-pntk", "infinite", "training"):
    STORES[name][1](f"{sys.argv[2]}/{name}")
"""


@pytest.mark.guard
def test_a_comment_in_every_file_leaves_stores_valid(tmp_path: Path) -> None:
    for name, (_, make) in STORES.items():
        make(tmp_path / "stores" / name)
    edited = tmp_path / "edited"
    shutil.copytree(PACKAGE, edited / "ntkscope", ignore=shutil.ignore_patterns("__pycache__"))
    for path in edited.rglob("*.py"):
        path.write_text(path.read_text() + "\n# edited\n")
    tests = str(Path(__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-c", RESUME, str(edited), str(tmp_path / "stores")],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(edited), tests])},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr


def test_no_fingerprint_reads_a_file_of_ntkscope(tmp_path: Path) -> None:
    """Every file that is opened while stores are made and resumed is seen; none is a source file of the package."""
    opened: list[str] = []
    watching = True

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        if watching and event == "open" and isinstance(arguments[0], str | os.PathLike):
            opened.append(os.fspath(arguments[0]))

    for _, make in STORES.values():  # what is imported late is imported now
        make(tmp_path / "first")
        shutil.rmtree(tmp_path / "first")
    sys.addaudithook(watch)  # stays until the process ends, asleep
    try:
        for name, (_, make) in STORES.items():
            make(tmp_path / name)
            make(tmp_path / name)
    finally:
        watching = False
    assert any(str(tmp_path) in path for path in opened)
    assert not [path for path in opened if path.startswith(str(PACKAGE)) and path.endswith(".py")]
