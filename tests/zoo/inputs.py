"""Inputs in every form users have them, and options nobody should pass."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

from zoo.case import Made, Net, Sample, family, ids

FAMILY = "inputs"
exact, refused, either = family(FAMILY)
D, N = 4, 7


def mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(D, 5), nn.Tanh(), nn.Linear(5, 3))


def singly(x: Tensor) -> list[Sample]:
    return [((x[i : i + 1],), {}) for i in range(len(x))]


# -- names of keywords ---------------------------------------------------------------------------------------------
LABELS = ("y", "label", "target", "labels", "targets", "label_ids")


def keyed(key: str, required: bool) -> nn.Module:
    """A module whose forward has the argument `key`."""
    scope: dict[str, Any] = {"nn": nn, "torch": torch}
    default = "" if required else " = None"
    code = (
        f"def forward(self, x, {key}{default}):\n"
        f"    h = self.a(x).tanh()\n"
        f"    return self.head(h if {key} is None else h + self.b({key}))\n"
    )
    exec(code, scope)  # noqa: S102 - an argument's name is what is tested
    model = type("Keyed", (nn.Module,), {"forward": scope["forward"], "__module__": __name__})()
    model.a, model.b, model.head = nn.Linear(D, D), nn.Linear(D, D), nn.Linear(D, 3)
    return model


@either("forward requires an argument with the name of a label", each=LABELS, quick=("y",))
def required_argument_named_like_a_label(key: str) -> Made:
    return keyed(key, True), {"x": torch.randn(N, D), key: torch.randn(N, D)}


@either("forward can take an argument with the name of a label", each=LABELS)
def optional_argument_named_like_a_label(key: str) -> Made:
    return keyed(key, False), {"x": torch.randn(N, D), key: torch.randn(N, D)}


@exact("keywords in another order than the arguments")
def keywords_in_another_order() -> Made:
    return keyed("context", True), {"context": torch.randn(N, D), "x": torch.randn(N, D)}


@exact("several positional inputs")
def tuple_of_inputs() -> Made:
    run = lambda m, x, z: m.head(m.a(x).tanh() * z)  # noqa: E731
    return Net(run, a=nn.Linear(D, D), head=nn.Linear(D, 3)), (torch.randn(N, D), torch.randn(N, D))


@refused("positional inputs of different lengths")
def tuple_of_different_lengths() -> Made:
    run = lambda m, x, z: m.head(m.a(x).tanh() * z)  # noqa: E731
    model = Net(run, a=nn.Linear(D, D), head=nn.Linear(D, 3))
    return model, (torch.randn(N, D), torch.randn(N - 1, D))


# -- loaders and data sets -----------------------------------------------------------------------------------------
class Augmented(Dataset[Any]):
    """Adds noise at every access."""

    def __init__(self, how: str) -> None:
        self.x, self.how = torch.randn(N, D), how

    def __len__(self) -> int:
        return N

    def __getitem__(self, i: int) -> tuple[Tensor, int]:
        if self.how == "torch":
            noise: Any = torch.randn(D)
        elif self.how == "numpy":
            noise = torch.from_numpy(np.random.randn(D))  # noqa: NPY002 - the global state is what is used
        else:
            noise = random.random()
        return self.x[i] + 0.1 * noise, 0


class Stream(IterableDataset[Any]):
    """Samples one after the other, without a length."""

    def __init__(self) -> None:
        self.x = torch.randn(N, D)

    def __iter__(self) -> Iterator[tuple[Tensor, int]]:
        return iter([(row, 0) for row in self.x])


class Empty(Dataset[Any]):
    def __len__(self) -> int:
        return 0

    def __getitem__(self, i: int) -> Any:
        raise IndexError(i)


def plain_set() -> TensorDataset:
    return TensorDataset(torch.randn(N, D), torch.zeros(N, dtype=torch.long))


RANDOM_LOADERS = {
    "shuffle": lambda d: DataLoader(d, 3, shuffle=True),
    "random sampler": lambda d: DataLoader(d, 3, sampler=RandomSampler(d)),
    "subset": lambda d: DataLoader(d, 3, sampler=SubsetRandomSampler(range(N))),
    "weighted": lambda d: DataLoader(d, 3, sampler=WeightedRandomSampler([1.0] * N, N)),
    "batches at random": lambda d: DataLoader(d, batch_sampler=BatchSampler(RandomSampler(d), 3, False)),
    "batches of a subset": lambda d: DataLoader(d, batch_sampler=BatchSampler(SubsetRandomSampler(range(N)), 3, False)),
    "drop last": lambda d: DataLoader(d, 3, shuffle=True, drop_last=True),
}
STEADY_LOADERS = {
    "plain": lambda d: DataLoader(d, 3),
    "sequential": lambda d: DataLoader(d, 2, sampler=SequentialSampler(d)),
    "batches": lambda d: DataLoader(d, batch_sampler=BatchSampler(SequentialSampler(d), 3, False)),
    "one by one": lambda d: DataLoader(d, 1),
}


@exact("a loader in order", each=STEADY_LOADERS, samples=lambda x: singly(x.dataset.tensors[0]), name="steady_loader")
@refused("a loader in random order gives rows no fixed meaning", each=RANDOM_LOADERS)
def random_loader(load: Callable[..., Any]) -> Made:
    return mlp(), load(plain_set())


@exact("a data set with labels", samples=lambda d: singly(d.tensors[0]))
def data_set() -> Made:
    return mlp(), plain_set()


@either(
    "a data set that adds noise at every access",
    each=("torch", "numpy", "python"),
    samples=lambda d: singly(d.x),
    tolerance=1e-8,
)
def augmented_data_set(how: str) -> Made:
    return mlp(), Augmented(how)


@either("a stream of samples", samples=lambda d: singly(d.x))
def iterable_data_set() -> Made:
    return mlp(), Stream()


@either("a loader of a stream", samples=lambda d: singly(d.dataset.x))
def loader_of_a_stream() -> Made:
    return mlp(), DataLoader(Stream(), 3)


@refused("nothing to compute", each={"tensor": 0, "data set": 1, "loader": 2})
def no_samples(kind: int) -> Made:
    return mlp(), (torch.randn(0, D), Empty(), DataLoader(plain_set(), 20, drop_last=True))[kind]


ODD: dict[str, Any] = {
    "None": (None,),
    "number": (3.0,),
    "string": ("text",),
    "list of floats": ([1.0, 2.0],),
    "empty tuple": ((),),
    "empty dict": ({},),
    "0-d tensor": (torch.tensor(1.0),),
    "numpy": (np.ones((N, D)),),
    "set": ({1, 2},),
    "nan": (torch.full((N, D), float("nan")),),
    "complex": (torch.ones(N, D, dtype=torch.complex128),),
}


@refused("what is no input", each={k: v for k, v in ODD.items() if k != "numpy"})
def not_inputs(x: Any) -> Made:
    return mlp(), x


@either("numpy arrays are inputs or are refused by name", samples=lambda x: singly(torch.from_numpy(x)))
def numpy_inputs() -> Made:
    return mlp(), np.random.default_rng(0).standard_normal((N, D))


# -- tensors in odd states -----------------------------------------------------------------------------------------
def _inference(x: Tensor) -> Tensor:
    with torch.inference_mode():
        return x * 1


STATES: dict[str, Any] = {
    "inference": (_inference,),
    "requires grad": lambda x: x.requires_grad_(),
    "non-leaf": lambda x: x.requires_grad_() * 2,
    "transposed": lambda x: torch.randn(D, N).t(),
    "strided": lambda x: torch.randn(2 * N, 2 * D)[::2, ::2],
    "expanded": lambda x: x[:1].expand(N, D),
    "expanded columns": lambda x: x[:, :1].expand(N, D),
    "reversed": lambda x: x.flip(0),
    "parameter": lambda x: nn.Parameter(x),
    "one sample": lambda x: x[:1],
    "two samples": lambda x: x[:2],
    "equal samples": lambda x: x[:1].repeat(N, 1),
    "huge": lambda x: x * 1e6,
}


def detached(x: Tensor) -> list[Sample]:
    return singly(x.detach().clone())


@exact("tensors in odd states", each=STATES, samples=detached)
def input_states(change: Callable[[Tensor], Tensor]) -> Made:
    return mlp(), change(torch.randn(N, D))


@either(
    "inputs of another number kind than the model",
    each={"float32": torch.float32, "half": torch.float16, "int": torch.int64, "bool": torch.bool},
    samples=lambda x: singly(x.double()),
)
def inputs_of_another_kind(kind: torch.dtype) -> Made:
    return mlp(), (torch.randn(N, D) * 3).to(kind)


@refused("real numbers where word ids are needed")
def floats_for_words() -> Made:
    return nn.Sequential(nn.Embedding(7, D), nn.Flatten(), nn.Linear(3 * D, 3)), torch.rand(N, 3)


@exact("word ids of every integer kind", each={"int64": torch.int64, "int32": torch.int32})
def word_ids(kind: torch.dtype) -> Made:
    return nn.Sequential(nn.Embedding(7, D), nn.Flatten(), nn.Linear(3 * D, 3)), ids(N, 3).to(kind)


@refused("a word id the table does not hold")
def word_id_out_of_range() -> Made:
    x = ids(N, 3)
    x[5, 1] = 99
    return nn.Sequential(nn.Embedding(7, D), nn.Flatten(), nn.Linear(3 * D, 3)), x


# -- models of odd sizes -------------------------------------------------------------------------------------------
@exact("a bias of one number for all outputs", each={"(1,)": ((1,),), "()": ((),)})
def bias_of_one_number(shape: tuple[int, ...]) -> Made:
    return Net(
        lambda m, x: m.a(x) + m.b, a=nn.Linear(D, 3, bias=False), b=nn.Parameter(torch.randn(shape))
    ), torch.randn(N, D)


@either("layers without features", each={"hidden": (D, 0, 3), "input": (0, 2, 3)})
def layers_without_features(first: int, hidden: int, last: int) -> Made:
    return nn.Sequential(nn.Linear(first, hidden), nn.Linear(hidden, last)), torch.randn(N, first)


@refused("no outputs")
def no_outputs() -> Made:
    return nn.Linear(D, 0), torch.randn(N, D)


@exact("one output", each=(1, 2))
def few_outputs(count: int) -> Made:
    return nn.Sequential(nn.Linear(D, 5), nn.Tanh(), nn.Linear(5, count)), torch.randn(N, D)


@refused("outputs of other shapes", each={"(n,)": 0, "(n, t, c)": 1, "scalar": 2, "tuple": 3, "None": 4})
def outputs_of_other_shapes(kind: int) -> Made:
    def run(m: Any, x: Tensor) -> Any:
        h = m.a(x)
        return (h[:, 0], h[:, None].repeat(1, 2, 1), h.sum(), (h, h), None)[kind]

    return Net(run, a=nn.Linear(D, 3)), torch.randn(N, D)
