"""The tracker in real training loops of other libraries."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import ntkscope as ns
from ntkscope.core import Record, UsageError
from ntkscope.tracking import LogSpaced
from oracles.unchanged import bits
from tracking.runs import ALL, data, network, rows


def lightning_run(out: Path | None, **trainer: Any) -> dict[str, bytes]:
    lightning = pytest.importorskip("lightning")

    class Classifier(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = network()

        def training_step(self, batch: list[Tensor], _: int) -> Tensor:
            return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)

    with torch.random.fork_rng():
        torch.manual_seed(3)
        module = Classifier()
        callbacks = []
        if out is not None:
            watching = ns.Tracker(module.net, data(12, 1), out, when=LogSpaced(4), overhead=ALL)
            callbacks.append(watching.lightning())
        loop = lightning.Trainer(
            max_epochs=2,
            accelerator="cpu",
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            callbacks=callbacks,
            **trainer,
        )
        loop.fit(module, DataLoader(TensorDataset(*data()), batch_size=6, shuffle=True))
    return {name: bits(value) for name, value in module.state_dict().items()}


@pytest.mark.guard
@pytest.mark.parametrize("options", [{}, {"accumulate_grad_batches": 2}], ids=str)
@pytest.mark.filterwarnings("ignore")
def test_lightning(tmp_path: Path, options: dict[str, Any]) -> None:
    assert lightning_run(tmp_path / "run", **options) == lightning_run(None, **options)
    last = 8 // options.get("accumulate_grad_batches", 1)
    moments = rows(tmp_path / "run", "moments")
    expected = [0, *ns.training.moments.snapshot_steps(LogSpaced(4), last)]
    assert [row["step"] for row in moments] == sorted(set(expected))
    assert all(row["loss"] is not None for row in moments[1:])
    assert Record.open(tmp_path / "run").status == "done"


@pytest.mark.guard
@pytest.mark.filterwarnings("ignore")
def test_lightning_that_fails(tmp_path: Path) -> None:
    lightning = pytest.importorskip("lightning")

    class Failing(lightning.Callback):
        def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, batch_idx: int) -> None:
            if batch_idx == 2:
                raise KeyError("gone")

    class Late(Failing):
        pass

    module = network()
    watching = ns.Tracker(module, data(12, 1), tmp_path / "run", when=[1], overhead=ALL, watch="weights")

    class Classifier(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = module

        def training_step(self, batch: list[Tensor], _: int) -> Tensor:
            return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    loop = lightning.Trainer(
        max_epochs=1,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[watching.lightning(), Late()],
    )
    with pytest.raises(KeyError):
        loop.fit(Classifier(), DataLoader(TensorDataset(*data()), batch_size=6))
    record = Record.open(tmp_path / "run")
    assert record.status == "failed"
    assert "gone" in str(record.error)


def trainer_run(out: Path | None, folder: Path, **arguments: Any) -> dict[str, bytes]:
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate", reason="transformers.Trainer needs accelerate")
    config = transformers.BertConfig(
        vocab_size=50,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=24,
        max_position_embeddings=8,
        num_labels=3,
    )
    ids = torch.randint(0, 50, (24, 6), generator=torch.Generator().manual_seed(0))
    items = [{"input_ids": row, "labels": int(row.sum()) % 3} for row in ids]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = transformers.BertForSequenceClassification(config)
        callbacks = []
        if out is not None:
            probe = {"input_ids": ids[:12], "labels": ids[:12].sum(1) % 3}
            watching = ns.Tracker(
                model, probe, out, when=LogSpaced(4), overhead=ALL, watch=("weights", "ck", "alignment")
            )
            callbacks.append(watching.hugging_face())
        settings = transformers.TrainingArguments(
            output_dir=str(folder),
            num_train_epochs=2,
            per_device_train_batch_size=6,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            logging_steps=1,
            use_cpu=True,
            seed=4,
            **arguments,
        )
        transformers.Trainer(model=model, args=settings, train_dataset=items, callbacks=callbacks).train()
    return {name: bits(value) for name, value in model.state_dict().items()}


@pytest.mark.guard
@pytest.mark.parametrize("options", [{}, {"gradient_accumulation_steps": 2}], ids=str)
@pytest.mark.filterwarnings("ignore")
def test_hugging_face(tmp_path: Path, options: dict[str, Any]) -> None:
    """Dropout is on in this network, so its random states are compared too."""
    assert trainer_run(tmp_path / "run", tmp_path / "a", **options) == trainer_run(None, tmp_path / "b", **options)
    last = 8 // options.get("gradient_accumulation_steps", 1)
    expected = {0, *ns.training.moments.snapshot_steps(LogSpaced(4), last)}
    moments = rows(tmp_path / "run", "moments")
    assert [row["step"] for row in moments] == sorted(expected)
    assert moments[-1]["loss"] is not None
    assert Record.open(tmp_path / "run").status == "done"


def test_without_the_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    watching = ns.Tracker(network(), data(12, 1), tmp_path / "run", when=[1], watch="weights")
    for name in ("lightning.pytorch", "pytorch_lightning", "transformers"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(UsageError, match="pip install lightning"):
        watching.lightning()
    with pytest.raises(UsageError, match="pip install transformers accelerate"):
        watching.hugging_face()
