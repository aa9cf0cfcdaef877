"""One rule for all forms of inputs: by position, by name, whole, and what is a label."""

from __future__ import annotations

from collections import UserDict, namedtuple
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

import ntkscope as ns
from ntkscope.core import Part, UsageError
from ntkscope.explain.two_sample.embedding import layer_outputs
from ntkscope.tangent.model.batches import as_batch
from ntkscope.tracking.probe import as_probe
from oracles.autograd import jacobian

N, D = 6, 3
DRAWN = torch.Generator().manual_seed(0)
X = torch.randn(N, D, generator=DRAWN, dtype=torch.float64)
MASK = (torch.rand(N, D, generator=DRAWN) > 0.4).to(torch.float64)
CLASSES = torch.arange(N) % 2
REAL = torch.randn(N, generator=DRAWN, dtype=torch.float64)
TWO = torch.randn(N, 2, generator=DRAWN, dtype=torch.float64)
Pair = namedtuple("Pair", ["x", "mask"])
Swapped = namedtuple("Swapped", ["mask", "x"])
Labelled = namedtuple("Labelled", ["image", "label"])


@dataclass
class Fields:
    x: Any
    mask: Any = None


class Base(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.lin = nn.Linear(D, 2).double()

    def of(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        return self.lin(x if mask is None else x * mask).tanh()


class One(Base):
    def forward(self, x: Tensor) -> Tensor:
        return self.of(x)


class Optional(Base):
    def forward(self, x: Tensor, mask: Any = None) -> Tensor:
        return self.of(x, mask)


class Neutral(Base):
    def forward(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        return self.of(x, context)


class Second(Base):
    def forward(self, x: Tensor, y: Tensor | None = None) -> Tensor:
        return self.of(x, y)


class Switch(Base):
    def forward(self, x: Tensor, flag: bool = False, layers: int | None = None) -> Tensor:
        return self.of(x)


class Loss(Base):
    def forward(self, x: Tensor, labels: Tensor | None = None, **more: Any) -> Tensor:
        return self.of(x)


class Required(Base):
    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        return self.of(x, mask)


class Mapped(Base):
    """Takes a whole mapping, and one entry of it has the name of a label."""

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        return self.of(batch["x"], batch["y"])


class Object(Base):
    def forward(self, batch: Any) -> Tensor:
        return self.of(batch.x, batch.mask)


class Keywords(Base):
    def forward(self, **inputs: Tensor) -> Tensor:
        return self.of(inputs["x"], inputs.get("y"))


class Passing(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        return self.inner(*args, **kwargs)


class Items(Dataset[Any]):
    def __init__(self, item: Callable[[int], Any]) -> None:
        self.item = item

    def __len__(self) -> int:
        return N

    def __getitem__(self, i: int) -> Any:
        return self.item(i)


def taken(model: nn.Module, data: Any) -> Tensor:
    """The outputs for the inputs as they are read."""
    batch = as_batch(data, model)
    return model(*batch.args, **batch.kwargs)


PLAIN, MASKED = One()(X), Optional()(X, MASK)
ITEMS: dict[str, tuple[type[nn.Module], Callable[[int], Any], Tensor]] = {
    "(x, class)": (One, lambda i: (X[i], int(CLASSES[i])), PLAIN),
    "(x, target)": (One, lambda i: (X[i], TWO[i]), PLAIN),
    "(x, text)": (One, lambda i: (X[i], "cat"), PLAIN),
    "(x, class), an optional mask": (Optional, lambda i: (X[i], CLASSES[i]), PLAIN),
    "(x, yes or no), an optional mask": (Optional, lambda i: (X[i], CLASSES[i] > 0), PLAIN),
    "(x, target), an optional mask": (Optional, lambda i: (X[i], REAL[i]), PLAIN),
    "(x, targets), an optional mask": (Optional, lambda i: (X[i], TWO[i]), PLAIN),
    "(x, a class for each feature), an optional mask": (Optional, lambda i: (X[i], torch.full((D,), i)), PLAIN),
    "(x, mask)": (Optional, lambda i: (X[i], MASK[i]), MASKED),
    "(x, boolean mask)": (Optional, lambda i: (X[i], MASK[i] > 0), MASKED),
    "(x, boolean), an optional context": (Neutral, lambda i: (X[i], MASK[i] > 0), MASKED),
    "(x, integer mask)": (Optional, lambda i: (X[i], MASK[i].long()), MASKED),
    "(x, mask) required": (Required, lambda i: (X[i], MASK[i]), MASKED),
    "(x, mask, class)": (Optional, lambda i: (X[i], MASK[i], int(CLASSES[i])), MASKED),
    "(x, mask, target) required": (Required, lambda i: (X[i], MASK[i], REAL[i]), MASKED),
    "((x, mask), class)": (Optional, lambda i: ((X[i], MASK[i]), int(CLASSES[i])), MASKED),
    "((x, mask), target)": (Neutral, lambda i: ((X[i], MASK[i]), TWO[i]), MASKED),
    "((x,), target)": (Neutral, lambda i: ((X[i],), TWO[i]), PLAIN),
    "(x, class), an optional context": (Neutral, lambda i: (X[i], int(CLASSES[i])), PLAIN),
    "(x, target), a switch": (Switch, lambda i: (X[i], TWO[i]), PLAIN),
    "(x, switch, target), another switch": (Switch, lambda i: (X[i], False, TWO[i]), PLAIN),
    "(x, targets), optional labels": (Loss, lambda i: (X[i], TWO[i]), PLAIN),
    "a mapping by name": (Optional, lambda i: {"x": X[i], "mask": MASK[i], "label": "cat"}, MASKED),
    "(mapping, target)": (Optional, lambda i: ({"x": X[i], "mask": MASK[i]}, TWO[i]), MASKED),
    "a mapping passed whole": (Mapped, lambda i: {"x": X[i], "y": MASK[i]}, MASKED),
    "a mapping passed whole, with a text": (Mapped, lambda i: {"x": X[i], "y": MASK[i], "label": "cat"}, MASKED),
    "(a mapping passed whole, class)": (Mapped, lambda i: ({"x": X[i], "y": MASK[i]}, int(CLASSES[i])), MASKED),
    "a mapping of any names": (Keywords, lambda i: {"x": X[i], "y": MASK[i]}, MASKED),
    "a namedtuple by name": (Optional, lambda i: Swapped(MASK[i], X[i]), MASKED),
    "a namedtuple passed whole": (Object, lambda i: Pair(X[i], MASK[i]), MASKED),
    "a namedtuple with a label": (One, lambda i: Labelled(X[i], REAL[i]), PLAIN),
}


@pytest.mark.parametrize(("make", "item", "expected"), ITEMS.values(), ids=ITEMS)
def test_items_of_data_sets_and_batches_of_loaders_are_read_alike(
    make: type[nn.Module], item: Callable[[int], Any], expected: Tensor
) -> None:
    for data in (Items(item), DataLoader(Items(item), batch_size=4)):
        torch.testing.assert_close(taken(make(), data), expected, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("make", "x", "expected"),
    [
        (Optional, (X, MASK), MASKED),
        (Neutral, (X, MASK), MASKED),
        (Optional, {"x": X, "mask": MASK, "labels": CLASSES}, MASKED),
        (Optional, UserDict(mask=MASK, x=X), MASKED),
        (Optional, Swapped(MASK, X), MASKED),
        (Optional, Fields(X, MASK), MASKED),
        (Optional, Fields(X), PLAIN),
        (Second, {"x": X, "y": MASK}, MASKED),
        (Mapped, {"x": X, "y": MASK}, MASKED),
        (Object, Fields(X, MASK), MASKED),
        (Object, Pair(X, MASK), MASKED),
        (Keywords, {"x": X, "y": MASK}, MASKED),
        (One, {"x": X, "y": CLASSES}, PLAIN),
        (One, Part(X, CLASSES), PLAIN),
        (Object, Part(Fields(X, MASK), CLASSES), MASKED),
    ],
)
def test_what_is_passed_goes_to_the_model(make: type[nn.Module], x: Any, expected: Tensor) -> None:
    torch.testing.assert_close(taken(make(), x), expected, rtol=0, atol=0)


def test_models_that_pass_everything_on_are_read_as_what_they_hold() -> None:
    torch.testing.assert_close(taken(Passing(Optional()), TensorDataset(X, MASK)), MASKED)
    torch.testing.assert_close(taken(Passing(Passing(One())), TensorDataset(X, TWO)), PLAIN)


@pytest.mark.parametrize(
    ("make", "last"),
    [(Neutral, TWO), (Neutral, MASK), (Neutral, REAL), (Second, MASK), (Neutral, CLASSES[:, None] + X.long())],
)
def test_what_may_be_a_label_or_an_argument_is_refused_with_both_readings(make: type[nn.Module], last: Tensor) -> None:
    for data in (TensorDataset(X, last), DataLoader(TensorDataset(X, last), batch_size=4)):
        with pytest.raises(UsageError, match=r"may be the argument '\w+' or a label.*expected items that say which"):
            as_batch(data, make())


def test_inputs_that_forward_cannot_take_are_refused() -> None:
    for model, x in (
        (Required(), {"x": X}),
        (Mapped(), {"x": X}),
        (Object(), {"x": X, "mask": MASK}),
        (One(), (X, MASK)),
    ):
        with pytest.raises(UsageError):
            ns.kernel("trntk0", model, x)
    with pytest.raises(UsageError, match="leave out third, or use the names"):
        ns.kernel("trntk0", Required(), {"x": X, "mask": MASK, "third": MASK})


def test_every_entry_reads_inputs_by_the_same_rule() -> None:
    """A mask reaches kernels, linearised networks and their solutions, embeddings and probes, from a data set too."""
    model = Optional()
    data, fields = Items(lambda i: (X[i], MASK[i])), Fields(X, MASK)
    rows = torch.cat([value.flatten(2) for value in jacobian(model, (X, MASK)).values()], 2)
    expected = torch.einsum("icp,jcp->ij", rows, rows)
    for x in (data, DataLoader(data, batch_size=4), fields, {"x": X, "mask": MASK}, Pair(X, MASK), (X, MASK)):
        tangent = ns.Tangent(model)
        torch.testing.assert_close(tangent.kernel("trntk0", x).dense(), expected)
        torch.testing.assert_close(ns.kernel("trntk0", model, x, dtype=torch.float64).dense(), expected)
        torch.testing.assert_close(layer_outputs(model, x, "lin", "mean"), model.lin(X * MASK).detach())
    linear = ns.linearize(Object())
    torch.testing.assert_close(linear(fields), MASKED)
    solution = linear.solve(Part(fields, TWO))
    torch.testing.assert_close(solution.loss, ns.linearize(model).solve(Part((X, MASK), TWO)).loss)
    for probe in (
        (fields, CLASSES),
        Items(lambda i: ((X[i], MASK[i]), CLASSES[i])),
        {"x": X, "mask": MASK, "y": CLASSES},
    ):
        found = as_probe(probe, 0)
        again = ns.kernel("trntk0", model, found.first(N)).dense().trace()
        torch.testing.assert_close(again, expected.trace())
        assert found.y is not None


@pytest.mark.parametrize("odd", [{"x": X[0]}, {"x": X[0], "mask": MASK[0], "other": X[0]}, (X[0], MASK[0])])
@pytest.mark.parametrize("place", [0, 4])
def test_items_with_other_members_than_the_rest_are_refused(odd: Any, place: int) -> None:
    data = Items(lambda i: odd if i == place else {"x": X[i], "mask": MASK[i]})
    with pytest.raises(UsageError):
        ns.kernel("trntk0", Optional(), data)


class WithoutLength(Dataset[Tensor]):
    def __getitem__(self, index: int) -> Tensor:
        return torch.zeros(3)


def test_inputs_that_cannot_be_read_row_by_row_are_refused() -> None:
    x = torch.ones(4, 3)
    for other in (x.to_sparse(), x.to_sparse_csr(), torch.nested.nested_tensor([x[0], x[1]])):
        with pytest.raises(UsageError, match="sparse or nested"):
            ns.kernel("trntk0", nn.Linear(3, 2), other)
    for data in (WithoutLength(), DataLoader(WithoutLength(), sampler=range(3))):
        with pytest.raises(UsageError, match="without a length"):
            ns.kernel("trntk0", nn.Linear(3, 2), data)


def test_a_loader_gives_what_it_yields() -> None:
    data = TensorDataset(torch.randn(6, 3))
    assert ns.kernel("trntk0", nn.Linear(3, 2), DataLoader(data, 4)).shape == (6, 6)
    assert ns.kernel("trntk0", nn.Linear(3, 2), DataLoader(data, 4, drop_last=True)).shape == (4, 4)


class Timed(nn.Linear):
    def forward(self, x: Tensor, timestep: Tensor | None = None) -> Tensor:
        return super().forward(x)


def test_a_number_per_item_at_a_place_for_lengths_or_times_is_refused_with_both_readings() -> None:
    with pytest.raises(UsageError, match="argument 'timestep' or a label"):
        ns.kernel("trntk0", Timed(3, 2), TensorDataset(torch.randn(6, 3), torch.arange(6)))
