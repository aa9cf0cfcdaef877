"""Models that a careless engine leaves changed: shared modules, caches, weights and buffers written in forward."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from zoo.case import Made, Net, family, free, ids, named

FAMILY = "changed"
exact, refused, either = family(FAMILY)
D = 4


def head(d: int = D) -> nn.Linear:
    return nn.Linear(d, 3)


# -- one module, several names -------------------------------------------------------------------------------------
@exact(
    "one module registered twice is one set of parameters",
    each={"tanh": (nn.Tanh, 2), "relu thrice": (nn.ReLU, 3), "five times": (nn.Sigmoid, 5)},
    quick=("tanh",),
)
def module_registered_twice(act: type[nn.Module], times: int) -> Made:
    layer = nn.Linear(D, D)
    return nn.Sequential(*[m for _ in range(times) for m in (layer, act())], head()), torch.randn(7, D)


@exact("dtype= must not leave one of two names behind in the other dtype", options={"dtype": torch.float32})
def module_registered_twice_in_another_dtype() -> Made:
    layer = nn.Linear(D, D)
    return nn.Sequential(layer, nn.Tanh(), layer, head()), torch.randn(7, D)


@exact("the same block in a ModuleList and as an attribute")
def block_in_a_list_and_as_attribute() -> Made:
    block = nn.Sequential(nn.Linear(D, D), nn.Tanh())
    blocks = nn.ModuleList([block] * 3)

    def run(m: Any, x: Tensor) -> Tensor:
        for each in m.blocks:
            x = each(x)
        return m.head(m.block(x))

    return Net(run, blocks=blocks, block=block, head=head()), torch.randn(6, D)


@exact("a convolution registered twice, with batch norm statistics shared too")
def convolution_registered_twice() -> Made:
    conv, norm = nn.Conv2d(2, 2, 3, padding=1), nn.BatchNorm2d(2)
    norm.running_mean.normal_()
    parts = [conv, norm, nn.ReLU(), conv, norm, nn.Flatten(), nn.Linear(32, 3)]
    return nn.Sequential(*parts), torch.randn(6, 2, 4, 4)


@exact("two modules that hold one parameter (tied), one of them registered twice")
def tied_and_registered_twice() -> Made:
    a, b = nn.Linear(D, D), nn.Linear(D, D)
    b.weight = a.weight
    return nn.Sequential(a, nn.Tanh(), b, nn.Tanh(), a, head()), torch.randn(6, D)


@exact("the model is registered inside its own part: a cycle through a plain attribute")
def parent_held_by_a_child() -> Made:
    model = Net(lambda m, x: m.head(m.a(x).tanh()), a=nn.Linear(D, D), head=head())
    object.__setattr__(model.a, "parent", model)
    return model, torch.randn(6, D)


# -- caches --------------------------------------------------------------------------------------------------------
@exact("a positional table built at the first run stays what it was: not there", quick=("",))
def table_cached_at_the_first_run() -> Made:
    def run(m: Any, x: Tensor) -> Tensor:
        if m.table is None:
            m.table = torch.arange(x.shape[1], dtype=x.dtype).sin()
        return m.head((x + m.table).tanh())

    return Net(run, table=None, head=head()), torch.randn(6, D)


@either("a weight cached at the first run, with its graph, belongs to the leaves of that run")
def weight_cached_with_its_graph() -> Made:
    def run(m: Any, x: Tensor) -> Tensor:
        if m.cache is None:
            m.cache = 2 * m.w
        return m.head((x @ m.cache).tanh())

    return Net(run, cache=None, w=free(D, D), head=head()), torch.randn(6, D)


@exact("a weight cached without its graph: a constant")
def weight_cached_under_no_grad() -> Made:
    def run(m: Any, x: Tensor) -> Tensor:
        if m.cache is None:
            with torch.no_grad():
                m.cache = m.w.norm()
        return m.head((x @ m.w / m.cache).tanh())

    return Net(run, cache=None, w=free(D, D), head=head()), torch.randn(6, D)


@exact("a mask registered as a buffer at the first run would appear in the state_dict")
def buffer_registered_at_the_first_run() -> Made:
    def run(m: Any, x: Tensor) -> Tensor:
        if not hasattr(m, "mask"):
            m.register_buffer("mask", torch.ones(x.shape[1], x.shape[1]).tril().to(x))
        return m.head((m.a(x) @ m.mask).tanh())

    return Net(run, a=nn.Linear(D, D), head=head()), torch.randn(6, D)


@exact("tables keyed by length in a dictionary", each={"first": 3, "longer": 5})
def tables_in_a_dictionary(length: int) -> Made:
    def run(m: Any, x: Tensor) -> Tensor:
        table = m.tables.setdefault(x.shape[1], torch.arange(x.shape[1], dtype=x.dtype).cos()[:, None])
        return m.head((x * table).tanh().mean(1))

    return Net(run, tables={}, head=head()), torch.randn(6, length, D)


@either("a layer built at the first run is a parameter the model did not have before")
def layer_built_at_the_first_run() -> Made:
    def run(m: Any, x: Tensor) -> Tensor:
        if not hasattr(m, "late"):
            m.late = nn.Linear(D, D, dtype=x.dtype)
            nn.init.constant_(m.late.weight, 0.1)
            nn.init.zeros_(m.late.bias)
            m.late.requires_grad_(False)
        return m.head((x + m.late(x)).tanh())

    return Net(run, head=head()), torch.randn(6, D)


@exact("hidden states kept for later, as saliency tools do; a model that holds a graph cannot be copied")
def activations_kept_as_attributes() -> Made:
    def run(m: Any, x: Tensor) -> Tensor:
        m.last = m.a(x).tanh()
        m.seen.append(m.last)
        return m.head(m.last)

    return Net(run, last=None, seen=[], a=nn.Linear(D, D), head=head()), torch.randn(6, D)


# -- weights, buffers, counters written in forward -----------------------------------------------------------------
@either("max_norm shrinks rows of the weight in forward", each={"one": 1.0, "half": 0.5})
def embedding_with_max_norm(most: float) -> Made:
    return nn.Sequential(nn.Embedding(7, D, max_norm=most), nn.Flatten(), nn.Linear(3 * D, 3)), ids(6, 3)


def _clamp_data(m: Any) -> None:
    m.w.data.clamp_(-0.5, 0.5)


def _clamp_no_grad(m: Any) -> None:
    with torch.no_grad():
        m.w.clamp_(-0.5, 0.5)


def _unit_rows(m: Any) -> None:
    with torch.no_grad():
        m.w.copy_(m.w / m.w.norm(dim=1, keepdim=True))


def _new_data(m: Any) -> None:
    m.w.data = m.w.data.clamp(-0.5, 0.5)


def _new_parameter(m: Any) -> None:
    m.w = nn.Parameter(m.w.detach().clone())


WRITES = named(_clamp_data, _clamp_no_grad, _unit_rows, _new_data)


@either("the forward pass writes its own weight", each=WRITES)
def weight_written_in_forward(write: Any) -> Made:
    def run(m: Any, x: Tensor) -> Tensor:
        write(m)
        return m.head((x @ m.w).tanh())

    return Net(run, w=free(D, D), head=head()), torch.randn(6, D)


@either("the forward pass replaces its parameter by a copy: gradients reach the copy only")
def parameter_replaced_in_forward() -> Made:
    def run(m: Any, x: Tensor) -> Tensor:
        _new_parameter(m)
        return m.head((x @ m.w).tanh())

    return Net(run, w=free(D, D), head=head()), torch.randn(6, D)


@exact("a moving average that the outputs do not use", each={"copy": False, "rebind": True})
def buffer_updated_in_forward(rebind: bool) -> Made:
    def run(m: Any, x: Tensor) -> Tensor:
        if rebind:
            m.average = 0.9 * m.average + 0.1 * x.mean(0)
        else:
            m.average.mul_(0.9).add_(0.1 * x.mean(0))
        return m.head(m.a(x).tanh())

    return Net(run, average=torch.zeros(D), a=nn.Linear(D, D), head=head()), torch.randn(6, D)


class Diary(nn.Module):
    """Counts, lists and sets what it saw, on itself and on its class."""

    total = 0
    log: list[int] = []  # noqa: RUF012 - one list for all instances is the trap

    def __init__(self) -> None:
        super().__init__()
        self.a, self.head = nn.Linear(D, D), head()
        self.calls, self.shapes, self.kinds = 0, [], set()  # type: ignore[var-annotated]
        self.register_buffer("steps", torch.zeros((), dtype=torch.long))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.shapes.append(tuple(x.shape))
        self.kinds.add(x.dtype)
        self.steps += 1  # type: ignore[assignment]
        type(self).total += 1
        type(self).log.append(len(x))
        return self.head(self.a(x).tanh())


@exact("counters, lists, sets and class attributes move at every run")
def counters_and_lists() -> Made:
    Diary.total, Diary.log = 0, []
    return Diary(), torch.randn(6, D)


# -- inputs written, process state moved ---------------------------------------------------------------------------
def _zero_column(x: Tensor) -> Tensor:
    x[:, 0] = 0
    return x


def _scaled_alias(x: Tensor) -> Tensor:
    x.data.mul_(0.5)
    return x


FIRST = {"relu": torch.relu_, "subtract": lambda x: x.sub_(0.5), **named(_zero_column, _scaled_alias)}


@either("the first layer works in place on the caller's inputs", each=FIRST)
def inputs_written_in_place(first: Any) -> Made:
    return Net(lambda m, x: m.head(m.a(first(x)).tanh()), a=nn.Linear(D, D), head=head()), torch.randn(6, D)


@exact("ReLU(inplace=True) as the first layer is idempotent but writes the caller's inputs")
def relu_in_place_first() -> Made:
    return nn.Sequential(nn.ReLU(inplace=True), nn.Linear(D, 5), nn.ReLU(inplace=True), head(5)), torch.randn(6, D)


MOVES: dict[str, Any] = {
    "draw_torch": lambda: torch.rand(3),
    "draw_numpy": lambda: np.random.rand(3),  # noqa: NPY002
    "draw_python": lambda: random.random(),
    "set_seed": lambda: torch.manual_seed(5),
    "set_dtype": lambda: torch.set_default_dtype(torch.float64),
    "set_threads": lambda: torch.set_num_threads(2),
}


@either("the forward pass moves a state of the process that the outputs do not use", each=MOVES)
def process_state_moved(move: Any) -> Made:
    def run(m: Any, x: Tensor) -> Tensor:
        move()
        return m.head(m.a(x).tanh())

    return Net(run, a=nn.Linear(D, D), head=head()), torch.randn(6, D)


@exact("the forward pass switches modes of its parts", each=("eval", "train"))
def training_flag_set_in_forward(mode: str) -> Made:
    def run(m: Any, x: Tensor) -> Tensor:
        getattr(m.a, mode)()
        return m.head(m.a(x).tanh())

    model = Net(run, a=nn.Linear(D, D), head=head()).eval()
    return model, torch.randn(6, D)


@either("the forward pass freezes and thaws a weight")
def requires_grad_toggled_in_forward() -> Made:
    def run(m: Any, x: Tensor) -> Tensor:
        m.a.requires_grad_(False)
        h = m.a(x).tanh()
        m.a.requires_grad_(True)
        return m.head(h + m.a(x))

    return Net(run, a=nn.Linear(D, D), head=head()), torch.randn(6, D)
