"""What every section of an X-ray promises: inherit `SectionContract` and name the section.

class TestKernel(SectionContract):
    name = "kernel"
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, get_args, get_type_hints

import pytest
import torch
from torch import nn

import ntkscope as ns
from ntkscope.core import Part, Record
from ntkscope.core.errors import RecordError
from ntkscope.core.files.plain import to_plain
from ntkscope.kernels.costs import Rates
from ntkscope.report.source import Section as Shown
from ntkscope.report.source import Source
from ntkscope.report.views import VIEWS
from ntkscope.xray.registry import SECTIONS
from ntkscope.xray.result import Result
from ntkscope.xray.workload import Workload
from report.fixtures.tracking import write_tracking
from xray.small import blobs, network, regressed, waves
from xray.texts import WordTokenizer, read, texts

RATES = Rates(0.1, 1e-3, 1e-5, 1e-4, 1e-10, 1e-10, 1e-8, 10_000, 10)


def _tracked(folder: Path, model: nn.Module) -> Path:
    """A made-up tracked training of the network."""
    shapes = {name: tuple(p.shape) for name, p in model.named_parameters() if p.ndim == 2 and min(p.shape) > 1}
    return write_tracking(folder.with_name(f"{folder.name}-tracked"), moments=4, shapes=shapes, eigenvalues=30)


def _plain_record(folder: Path) -> Record:
    train, test = blobs()
    initial, model = network(), network()
    options: dict[str, Any] = {"tracked": _tracked(folder, model), "kernels": ["ck"], "progress": False}
    training = _trained(folder, model, train, lr=1e-2, optimizer="adam", steps=60)
    return ns.xray(model, train, test, folder, initial=initial, training=training, **options)


def _trained(folder: Path, model: nn.Module, train: Part, **how: Any) -> Any:
    """A training that can be replayed."""
    training = ns.training.fit(model, train, store=folder.with_name(f"{folder.name}-fit"), measure=False, **how)
    training.final()
    return training


def _odd_record(folder: Path) -> Record:
    """Two classes by one output, a class more often than the other, an item twice, frozen layers, no initial weights."""
    train, test = blobs(n=30, classes=2)
    x, y = torch.cat([train.x, train.x[:1]]), torch.cat([train.y, train.y[:1]])
    keep = torch.cat([(y == 0).nonzero().flatten(), (y == 1).nonzero().flatten()[:4]])
    model = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 1))
    model[0].requires_grad_(False)
    options: dict[str, Any] = {"tracked": _tracked(folder, model), "kernels": ["ck"], "progress": False}
    part = Part(x[keep], y[keep])
    options["training"] = _trained(folder, model, Part(part.x, part.y[:, None].float()), loss="mse", lr=1e-3, steps=3)
    return ns.xray(model, part, test, folder, untrained=True, **options)


def _plain_regression(folder: Path) -> Record:
    train, test = waves(40)
    initial, model = regressed(train)
    return ns.xray(model, train, test, folder, initial=initial, kernels=["ck"], progress=False)


def _odd_regression(folder: Path) -> Record:
    """Two outputs, one of which is the same for every item, an item twice, frozen layers, few items, no initial weights."""
    train, test = waves(12, outputs=2)
    train.y[:, 1], test.y[:, 1] = 7.0, 7.0
    x, y = torch.cat([train.x, train.x[:1]]), torch.cat([train.y, train.y[:1]])
    model = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 2))
    model[0].requires_grad_(False)
    with torch.no_grad():
        model[2].weight[1] = 0.0  # the second output is constant
    return ns.xray(model, (x, y), test, folder, kernels=["ck"], untrained=True, progress=False)


def _plain_texts(folder: Path) -> Record:
    held, y = texts(20, seed=1)
    y[:3] = 1 - y[:3]  # the network is wrong of these
    return ns.xray(read(), texts(60), (held, y), folder, tokenizer=WordTokenizer(), kernels=["ck"], progress=False)


def _odd_texts(folder: Path) -> Record:
    """A tokenizer that does not name its tokens, few texts, one of them empty."""
    held, y = texts(6, seed=1)
    tokenizer = partial(WordTokenizer.__call__, WordTokenizer())
    few = {"tokenizer": tokenizer, "kernels": ["ck"], "progress": False, "untrained": True}
    return ns.xray(read(), texts(8), (["", *held[1:]], y), folder, **few)


_MAKERS = {
    "texts": {"plain": _plain_texts, "odd": _odd_texts},
    "classification": {"plain": _plain_record, "odd": _odd_record},
    "regression": {"plain": _plain_regression, "odd": _odd_regression},
}
_MADE: dict[tuple[str, str], Record] = {}


class Watched(dict[str, Any]):
    """A result as a record holds it, which notes the keys it is asked for that are no fields of the result."""

    def __init__(self, data: Any, kind: type[Result], strange: list[str]) -> None:
        hints = get_type_hints(kind)
        super().__init__({key: watched(value, hints[key], strange) for key, value in data.items()})
        self.kind, self.strange = kind, strange

    def _note(self, key: str) -> None:
        if key not in self.kind.__dataclass_fields__:
            self.strange.append(f"{self.kind.__name__}.{key}")

    def __getitem__(self, key: str) -> Any:
        self._note(key)
        return super().__getitem__(key)

    def get(self, key: str, default: Any = None) -> Any:
        self._note(key)
        return super().get(key, default)


def watched(value: Any, kind: Any, strange: list[str]) -> Any:
    """`value`, watched where its annotation says that it is a result or several."""
    inner = [each for each in (kind, *get_args(kind)) if isinstance(each, type) and issubclass(each, Result)]
    if isinstance(value, Mapping) and inner:
        return Watched(value, inner[0], strange)
    return [watched(item, kind, strange) for item in value] if isinstance(value, list | tuple) else value


class SectionContract:
    """A section is done on ordinary and on odd networks, says what it means, costs more for more items, has a view."""

    name: ClassVar[str]
    task: ClassVar[str] = "classification"

    @pytest.fixture(params=["plain", "odd"])
    def entry(self, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
        kind = (self.task, request.param)
        if kind not in _MADE:
            make = _MAKERS[self.task][request.param]
            _MADE[kind] = make(tmp_path_factory.mktemp("section") / request.param)
        self.record = _MADE[kind]
        return copy.deepcopy(_MADE[kind].metrics[f"section:{self.name}"])

    def test_it_is_done(self, entry: Any) -> None:
        assert entry["status"] == "done", entry["why"]
        assert entry["why"] is None
        assert entry["seconds"] >= 0

    def test_it_says_what_it_means_and_how_sure_it_is(self, entry: Any) -> None:
        for key in ("title", "meaning", "confidence", "formula"):
            assert isinstance(entry[key], str), key
            assert entry[key].strip(), key
        for key in ("meaning", "confidence"):
            assert entry[key].rstrip().endswith((".", "…")), f"{key} is no sentence: {entry[key]!r}"
            assert "nan" not in entry[key].split(), entry[key]

    def test_its_data_are_plain(self, entry: Any) -> None:
        assert entry["data"]
        assert json.loads(json.dumps(to_plain(entry["data"], self.name), allow_nan=False))

    def test_its_result_is_what_the_record_holds(self, entry: Any) -> None:
        """The type comes back from the record, and nothing is in the record that is not in the type."""
        result = SECTIONS[self.name].result.from_record(entry["data"])
        assert to_plain(result.to_record()) == to_plain(entry["data"])
        assert result == SECTIONS[self.name].read(self.record.metrics)

    def test_a_record_of_another_version_is_refused(self, entry: Any) -> None:
        kind = SECTIONS[self.name].result
        needed = next(iter(entry["data"]))
        with pytest.raises(RecordError, match=f"without {needed}"):
            kind.from_record({key: value for key, value in entry["data"].items() if key != needed})
        wrongs: tuple[Any, ...] = ({}, None, [], {**entry["data"], needed: object()})
        for wrong in wrongs:
            with pytest.raises(RecordError, match=r"got .*; expected"):
                kind.from_record(wrong)

    def test_its_view_reads_fields_of_its_result_alone(self, entry: Any) -> None:
        strange: list[str] = []
        kind = SECTIONS[self.name].result
        section = Shown.read(self.name, {**entry, "data": watched(entry["data"], kind, strange)})
        assert VIEWS[self.name](section, Source(self.record)).body
        assert strange == []

    def test_it_costs_more_for_more_items(self) -> None:
        section = SECTIONS[self.name]
        costs = [section.cost(Workload(n, n // 4, 0, 0, 10, RATES)) for n in (100, 400, 1600)]
        assert all(cost >= 0 for cost in costs)
        assert costs == sorted(costs)

    def test_the_page_has_a_view_of_it(self) -> None:
        assert self.name in VIEWS
