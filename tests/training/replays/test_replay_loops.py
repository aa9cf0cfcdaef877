"""Loops of other people as replays: plain PyTorch, Lightning, a Hugging Face Trainer; each against its own retrainings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from contracts.training_problems import classes_part
from ntkscope.core import generator
from ntkscope.training import Loop, replay
from ntkscope.training.replays.replay import Replay

ITEMS, SIZE = 12, 1e-4
PART = classes_part(ITEMS, dtype=torch.float64)
ASKED = classes_part(30, dtype=torch.float64).x[20:24]
ALLOWED = 1e-6  # of the norm: SIZE² / 6 of a third derivative


def compare(found: Replay, retrained: Callable[[Tensor], nn.Module], directions: int = 2) -> None:
    """The derivative along random directions, by retrainings with the framework's own loop."""
    everything = torch.ones(ITEMS, dtype=torch.float64)

    def end(weights: Tensor) -> Tensor:
        return found.of(retrained(weights).eval()).detach()

    torch.testing.assert_close(found.values, end(everything), rtol=1e-9, atol=1e-10)
    draw = generator(0, "directions")
    for _ in range(directions):
        along = torch.randn(ITEMS, generator=draw, dtype=torch.float64)
        measured = (end(everything + SIZE * along) - end(everything - SIZE * along)) / (2 * SIZE)
        apart = float((found.weights @ along - measured).norm() / measured.norm())
        assert apart <= ALLOWED, apart


def two_groups(model: nn.Module) -> list[dict[str, Any]]:
    named = dict(model.named_parameters())
    weights = [p for name, p in named.items() if name.endswith("weight")]
    return [
        {"params": weights, "weight_decay": 0.1, "lr": 0.03},
        {"params": [p for name, p in named.items() if not name.endswith("weight")], "lr": 0.01},
    ]


def seeded(make: Callable[[], nn.Module]) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return make().double()


def small() -> nn.Module:
    return seeded(lambda: nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Dropout(0.2), nn.Linear(7, 3)))


def rows_of(step: int) -> Tensor:
    return torch.randperm(ITEMS, generator=generator(1, "rows", step // 3))[step % 3 * 4 :][:4]


def factor(step: int) -> float:
    return min(1.0, (step + 1) / 4) * (1 - step / 20)


class Plain(Loop):
    """Batches of four, a rate that rises and falls, dropout by the step's number."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        super().__init__(model, optimizer, items=ITEMS, steps=15)

    def batch(self, step: int) -> tuple[Tensor, Tensor, Tensor]:
        rows = rows_of(step)
        return rows, PART.x[rows], PART.y[rows]

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return cross_entropy(outputs, targets, reduction="none")

    def rate(self, step: int) -> float:
        return factor(step)

    def seed(self, step: int) -> int | None:
        return step


OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda groups: torch.optim.SGD(groups, lr=0.1, momentum=0.9, nesterov=True),
    "adam": lambda groups: torch.optim.Adam(groups, lr=0.01, betas=(0.8, 0.9)),
    "adamw": lambda groups: torch.optim.AdamW(groups, lr=0.01),
}


@pytest.mark.parametrize("clip", [0.3, pytest.param(None, marks=pytest.mark.guard)])
@pytest.mark.parametrize("name", [n if n == "sgd" else pytest.param(n, marks=pytest.mark.guard) for n in OPTIMIZERS])
def test_a_loop_by_hand_with_two_groups_and_a_schedule(name: str, clip: float | None) -> None:
    def retrained(weights: Tensor) -> nn.Module:
        model = small()
        optimizer = OPTIMIZERS[name](two_groups(model))
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
        for step in range(15):
            rows = rows_of(step)
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(step)
                loss = (weights[rows] * cross_entropy(model(PART.x[rows]), PART.y[rows], reduction="none")).mean()
            optimizer.zero_grad()
            loss.backward()
            if clip is not None:
                torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
            optimizer.step()
            schedule.step()
        return model

    model = small()
    loop = Plain(model, OPTIMIZERS[name](two_groups(model)))
    loop.clip = clip
    found = replay(loop, lambda net: net(ASKED).flatten())
    assert found.certificate.relative_error < 1e-6
    compare(found, retrained)
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), small().parameters()))  # nothing is changed


@pytest.mark.guard
def test_a_lightning_module_and_its_trainer(tmp_path: Any) -> None:
    lightning = pytest.importorskip("lightning")

    class Module(lightning.LightningModule):
        def __init__(self, weights: Tensor) -> None:
            super().__init__()
            self.net, self.weights = small(), weights

        def forward(self, x: Tensor) -> Tensor:
            return self.net(x)

        def on_train_batch_start(self, batch: Any, index: int) -> None:
            torch.manual_seed(self.global_step)

        def training_step(self, batch: Any, index: int) -> Tensor:
            rows, x, y = batch
            return (self.weights[rows] * cross_entropy(self(x), y, reduction="none")).mean()

        def configure_optimizers(self) -> Any:
            optimizer = OPTIMIZERS["adamw"](two_groups(self.net))
            schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    data = torch.utils.data.TensorDataset(torch.arange(ITEMS), PART.x, PART.y)

    def retrained(weights: Tensor) -> nn.Module:
        module = Module(weights)
        order = [rows_of(step).tolist() for step in range(15)]
        quiet = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
        trainer = lightning.Trainer(max_steps=15, accelerator="cpu", default_root_dir=tmp_path, **quiet)
        with torch.random.fork_rng(devices=[]):
            trainer.fit(module, torch.utils.data.DataLoader(data, batch_sampler=order))
        return module

    module = Module(torch.ones(ITEMS))
    optimizer = OPTIMIZERS["adamw"](two_groups(module.net))  # what configure_optimizers makes, before its schedule
    compare(replay(Plain(module, optimizer), lambda net: net(ASKED).flatten()), retrained, directions=1)


WORDS = torch.randint(5, 40, (ITEMS, 6), generator=generator(0, "words"))


def bert() -> nn.Module:
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=40, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16,
        max_position_embeddings=8, num_labels=3, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    return seeded(lambda: transformers.BertForSequenceClassification(config))


class Fine(Loop):
    """Two epochs in order, by a rate that falls straight to 0 after two steps of warm-up."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        super().__init__(model, optimizer, items=ITEMS, steps=6)

    def batch(self, step: int) -> tuple[Tensor, dict[str, Tensor], Tensor]:
        rows = torch.arange(4) + step % 3 * 4
        return rows, {"input_ids": WORDS[rows], "attention_mask": torch.ones(4, 6, dtype=torch.long)}, PART.y[rows]

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return cross_entropy(outputs, targets, reduction="none")

    def rate(self, step: int) -> float:
        return step / 2 if step < 2 else (6 - step) / 4


@pytest.mark.guard
def test_a_hugging_face_trainer(tmp_path: Any) -> None:
    transformers = pytest.importorskip("transformers")

    class Weighted(transformers.Trainer):
        def __init__(self, weights: Tensor) -> None:
            self.weights = weights
            quiet: dict[str, Any] = {
                "report_to": [],
                "save_strategy": "no",
                "logging_strategy": "no",
                "disable_tqdm": True,
            }
            how = transformers.TrainingArguments(
                output_dir=str(tmp_path),
                num_train_epochs=2,
                per_device_train_batch_size=4,
                learning_rate=0.01,
                weight_decay=0.1,
                max_grad_norm=0.5,
                warmup_steps=2,
                use_cpu=True,
                remove_unused_columns=False,
                **quiet,
            )
            rows = [{"rows": i, "input_ids": WORDS[i], "attention_mask": torch.ones(6).long()} for i in range(ITEMS)]
            super().__init__(model=bert(), args=how, train_dataset=rows)

        def _get_train_sampler(self, *given: Any) -> Any:
            return torch.utils.data.SequentialSampler(range(ITEMS))

        def compute_loss(self, model: nn.Module, inputs: Any, *args: Any, **options: Any) -> Tensor:
            rows = inputs.pop("rows")
            each = cross_entropy(model(**inputs).logits, PART.y[rows], reduction="none")
            return (self.weights[rows] * each).mean()

    def retrained(weights: Tensor) -> nn.Module:
        trainer = Weighted(weights)
        with torch.random.fork_rng(devices=[]):
            trainer.train()
        return trainer.model

    trainer = Weighted(torch.ones(ITEMS))
    loop = Fine(trainer.model, trainer.create_optimizer())
    loop.clip = 0.5
    found = replay(loop, lambda model: model(input_ids=WORDS[:2] + 0).logits.flatten())
    assert found.certificate.relative_error < 1e-6
    compare(found, retrained, directions=1)
