"""The tracker in real training loops of other libraries."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import ntkscope as ns
from ntkscope.core import Record, UsageError
from ntkscope.tracking import LogSpaced, OnPlateau
from oracles.unchanged import bits
from tracking.runs import ALL, data, network, rows

FOUR = LogSpaced(4)


def lightning_run(
    out: Path | None, when: Any = FOUR, seen: list[float] | None = None, callbacks: tuple[Any, ...] = (), **trainer: Any
) -> dict[str, bytes]:
    lightning = pytest.importorskip("lightning")

    class Classifier(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = network()

        def training_step(self, batch: list[Tensor], _: int) -> Tensor:
            loss = nn.functional.cross_entropy(self.net(batch[0]), batch[1])
            if seen is not None:
                seen.append(float(loss))
            return loss

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)

    with torch.random.fork_rng():
        torch.manual_seed(3)
        module = Classifier()
        if out is not None:
            watching = ns.Tracker(module.net, data(12, 1), out, when=when, overhead=ALL)
            callbacks = (watching.lightning(), *callbacks)
        loop = lightning.Trainer(
            **{"max_epochs": 2, **trainer},
            accelerator="cpu",
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            callbacks=list(callbacks),
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
@pytest.mark.parametrize("parts", [1, 2, 3])
@pytest.mark.filterwarnings("ignore")
def test_lightning_losses_are_those_of_the_steps(tmp_path: Path, parts: int) -> None:
    """The mean over the batches of a step, whatever Lightning divides them by; three of four leave one for the last step."""
    seen: list[float] = []
    lightning_run(tmp_path / "run", range(1, 9), seen, accumulate_grad_batches=parts)
    epochs = (seen[:4], seen[4:])
    expected = [np.mean(losses[k : k + parts]) for losses in epochs for k in range(0, 4, parts)]
    assert [row["loss"] for row in rows(tmp_path / "run", "moments")[1:]] == pytest.approx(expected, rel=1e-6)


@pytest.mark.guard
def test_lightning_without_an_end_trains_on(tmp_path: Path) -> None:
    """A schedule that needs the number of steps, in a run that has none: one warning, and the training goes on."""
    with pytest.warns(RuntimeWarning, match="the tracker stops here.*pass total="):
        trained = lightning_run(tmp_path / "run", max_steps=-1, max_epochs=-1, max_time={"seconds": 1})
    assert trained
    assert Record.open(tmp_path / "run").status == "failed"


@pytest.mark.guard
@pytest.mark.filterwarnings("ignore")
def test_lightning_that_fails(tmp_path: Path) -> None:
    lightning = pytest.importorskip("lightning")

    class Failing(lightning.Callback):
        def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, batch_idx: int) -> None:
            if batch_idx == 2:
                raise KeyError("gone")

    with pytest.raises(KeyError):
        lightning_run(tmp_path / "run", [1], callbacks=(Failing(),))
    record = Record.open(tmp_path / "run")
    assert record.status == "failed"
    assert "gone" in str(record.error)


LOGGED: dict[Path, list[tuple[int, float]]] = {}  # steps and losses that each run's Trainer logged


def trainer_run(out: Path | None, folder: Path, when: Any = FOUR, **arguments: Any) -> dict[str, bytes]:
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
            watching = ns.Tracker(model, probe, out, when=when, overhead=ALL, watch=("weights", "ck", "alignment"))
            callbacks.append(watching.hugging_face())
        settings = transformers.TrainingArguments(
            output_dir=str(folder),
            num_train_epochs=2,
            per_device_train_batch_size=6,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            use_cpu=True,
            seed=4,
            **{"logging_steps": 1, **arguments},
        )
        loop = transformers.Trainer(model=model, args=settings, train_dataset=items, callbacks=callbacks)
        loop.train()
        LOGGED[folder] = [(row["step"], row["loss"]) for row in loop.state.log_history if "loss" in row]
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


@pytest.mark.guard
@pytest.mark.parametrize("options", [{}, {"logging_steps": 3}, {"logging_strategy": "epoch"}], ids=str)
@pytest.mark.filterwarnings("ignore")
def test_hugging_face_losses_are_those_of_the_steps(tmp_path: Path, options: dict[str, Any]) -> None:
    """At a step that the Trainer logs, the loss is that step's; between, the last that was logged."""
    trainer_run(tmp_path / "run", tmp_path / "a", range(1, 9), **options)
    logged = LOGGED[tmp_path / "a"]
    for row in rows(tmp_path / "run", "moments")[1:]:
        assert row["loss"] == next((loss for step, loss in reversed(logged) if step <= row["step"]), None)


@pytest.mark.guard
@pytest.mark.filterwarnings("ignore")
def test_hugging_face_watched_for_plateaus_trains_to_the_end(tmp_path: Path) -> None:
    trainer_run(tmp_path / "run", tmp_path / "a", OnPlateau(2, 0.9), logging_steps=3)
    assert Record.open(tmp_path / "run").status == "done"
    assert rows(tmp_path / "run", "moments")[-1]["step"] == 8


def test_without_the_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    watching = ns.Tracker(network(), data(12, 1), tmp_path / "run", when=[1], watch="weights")
    for name in ("lightning.pytorch", "pytorch_lightning", "transformers"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(UsageError, match=re.escape('pip install "ntkscope[lightning]"')):
        watching.lightning()
    with pytest.raises(UsageError, match=re.escape('pip install "ntkscope[trainer]"')):
        watching.hugging_face()
