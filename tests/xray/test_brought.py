"""What people bring, unmodified, on the command line: a Lightning checkpoint, a Hugging Face classifier."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, SubsetRandomSampler, TensorDataset, WeightedRandomSampler

import ntkscope as ns
from ntkscope.cli._factories import is_datamodule, loaders_of
from ntkscope.core import UsageError
from ntkscope.core.model.loading import collect, in_order

START = 15  # seconds Python, PyTorch and the model may take to start, besides --time

LIGHTNING = """
import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import ntkscope as ns


def network(width=16):
    return nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, 10))


class Classifier(lightning.LightningModule):
    def __init__(self, width=16, lr=1e-2):
        super().__init__()
        self.save_hyperparameters()
        self.model = network(width)
        self.loss = nn.CrossEntropyLoss(weight=torch.ones(10))

    def forward(self, x):
        return self.model(x)

    def training_step(self, batch, _):
        return self.loss(self(batch[0]), batch[1])

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=self.hparams.lr)


class Digits(lightning.LightningDataModule):
    def __init__(self, count=200):
        super().__init__()
        self.count = count

    def setup(self, stage):
        split = ns.data.load("digits")
        part, count = (split.train, self.count) if stage == "fit" else (split.test, 60)
        data = TensorDataset(part.x[:count].flatten(1), part.y[:count])
        if stage == "fit":
            self.fitting = data
        else:
            self.testing = data

    def train_dataloader(self):
        return DataLoader(self.fitting, batch_size=32, shuffle=True, drop_last=True)

    def test_dataloader(self):
        return DataLoader(self.testing, batch_size=32)


def trained(folder):
    torch.manual_seed(0)
    trainer = lightning.Trainer(
        max_epochs=30, accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False,
        default_root_dir=folder,
    )
    trainer.fit(Classifier(), datamodule=Digits())
    trainer.save_checkpoint(f"{folder}/trained.ckpt")
"""


def run(folder: Path, *words: str, seconds: int = 90) -> tuple[ns.Record, str]:
    """`ntkscope xray` in `folder`: the record, and what was printed; it must end within its `--time`."""
    command = [sys.executable, "-m", "ntkscope", "xray", *words, "--out", "x", "--time", f"{seconds}s"]
    own = {**os.environ, "COLUMNS": "500"}
    start = time.perf_counter()
    done = subprocess.run(
        [*command, "--device", "cpu"], cwd=folder, capture_output=True, text=True, timeout=1200, env=own
    )
    spent = time.perf_counter() - start
    assert done.returncode == 0, done.stdout + done.stderr
    assert spent < seconds + START
    assert (folder / "x" / "page.html").exists()
    return ns.Record.open(folder / "x"), done.stdout


@pytest.mark.nightly
@pytest.mark.parametrize("model", ["theirs:Classifier", "theirs:network"])
def test_a_lightning_checkpoint_and_its_data_module(tmp_path: Path, model: str) -> None:
    pytest.importorskip("lightning")
    (tmp_path / "theirs.py").write_text(LIGHTNING)
    made = [sys.executable, "-c", "import theirs; theirs.trained('.')"]
    subprocess.run(made, cwd=tmp_path, check=True, capture_output=True, timeout=1200)
    words = ("--model", model, "--weights", "trained.ckpt", "--data", "theirs:Digits", "--data-option", "count=150")
    record, _ = run(tmp_path, *words, "--kernels", "ck")
    assert record.metrics["data"]["train_total"] == 150  # every item, though the loader drops the last batch
    assert record.metrics["section:summary"]["data"]["network_accuracy"] > 0.6  # chance is 0.1
    labels = ns.data.load("digits").train.y[:150]
    kept = [torch.tensor(record.arrays[name][:]) for name in ("labels.train", "originals.train")]
    assert torch.equal(kept[0], labels[kept[1]])  # in the order of the data set


class LightningDataModule:
    """Stands for Lightning's, with its defaults."""

    def prepare_data(self) -> None: ...

    def setup(self, stage: str) -> None: ...

    def train_dataloader(self) -> Any:
        raise NotImplementedError

    def val_dataloader(self) -> Any:
        raise NotImplementedError

    def test_dataloader(self) -> Any:
        raise NotImplementedError


def numbers(n: int = 10) -> TensorDataset:
    return TensorDataset(torch.arange(float(n))[:, None], torch.arange(n))


def test_the_loaders_of_a_data_module() -> None:
    class Trained(LightningDataModule):
        def __init__(self) -> None:
            self.calls: list[str] = []

        def prepare_data(self) -> None:
            self.calls.append("prepare")

        def setup(self, stage: str) -> None:
            self.calls.append(stage)

        def train_dataloader(self) -> Any:
            return DataLoader(numbers(), batch_size=4, shuffle=True)

    class Validated(Trained):
        def val_dataloader(self) -> Any:
            return [DataLoader(numbers(3))]

    class Tested(Validated):
        def test_dataloader(self) -> Any:
            return DataLoader(numbers(2))

    class Several(Tested):
        def train_dataloader(self) -> Any:
            return {"a": DataLoader(numbers()), "b": DataLoader(numbers())}

    assert is_datamodule(Tested())
    assert not is_datamodule(numbers())
    made = Tested()
    train, test = loaders_of(made)
    assert (labels(train), labels(test)) == ([*range(10)], [0, 1])
    assert made.calls == ["prepare", "fit", "test"]
    assert labels(loaders_of(Validated())[1]) == [0, 1, 2]
    with pytest.raises(UsageError, match="neither a test_dataloader nor a val_dataloader"):
        loaders_of(Trained())
    with pytest.raises(UsageError, match=r"train_dataloader\(\) gave a dict; expected one DataLoader"):
        loaders_of(Several())


def labels(loader: DataLoader[Any]) -> list[int]:
    return torch.cat(collect(loader, lambda batch: batch[1])).tolist()


class Batches:
    """A batch sampler of one's own, over even items only."""

    def __iter__(self) -> Any:
        return iter([[8, 2], [4], [0, 6]])


@pytest.mark.parametrize(
    ("options", "visited"),
    [
        ({"shuffle": True, "batch_size": 4, "drop_last": True}, [*range(10)]),
        ({"sampler": SubsetRandomSampler([7, 1, 3]), "batch_size": 2}, [1, 3, 7]),
        ({"sampler": WeightedRandomSampler([1.0] + [0.0] * 9, 10), "batch_size": 2}, [*range(10)]),
        ({"batch_sampler": Batches()}, [0, 2, 4, 6, 8]),
        ({"batch_size": 3}, [*range(10)]),
    ],
)
def test_a_loader_is_read_in_the_order_of_its_items(options: dict[str, Any], visited: list[int]) -> None:
    before = torch.random.get_rng_state()
    loader = in_order(DataLoader(numbers(), **options))
    assert torch.equal(torch.random.get_rng_state(), before)
    assert labels(loader) == visited


HUGGING_FACE = """
import torch
import transformers

TEXTS = ["the cat sleeps", "she reads a book", "they went home", "a dog barked", "he sings well", "we eat bread"]


def tokenizer():
    words = sorted({word for text in TEXTS for word in text.split()})
    with open("vocabulary.txt", "w") as file:
        file.write("\\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words]))
    return transformers.BertTokenizer("vocabulary.txt")


def classifier():
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=64, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=24
    )
    return transformers.BertForSequenceClassification(config)


def data():
    right, wrong = TEXTS, [" ".join(reversed(text.split())) for text in TEXTS]
    items = [(text, 1) for text in right] + [(text, 0) for text in wrong]
    texts, labels = zip(*items * 4)
    return (list(texts), torch.tensor(labels)), ([*right, *wrong], torch.tensor([1] * 6 + [0] * 6))


def trained():
    words, model = tokenizer(), classifier()
    model.save_pretrained("first")
    (texts, labels), _ = data()
    batch = words(texts, padding=True, return_tensors="pt")
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(60):
        optimizer.zero_grad()
        model(**batch, labels=labels).loss.backward()
        optimizer.step()
    model.save_pretrained("last")
    words.save_pretrained("last")
"""


@pytest.mark.guard
def test_a_hugging_face_classifier_as_it_is(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    (tmp_path / "texts.py").write_text(HUGGING_FACE)
    made = [sys.executable, "-c", "import texts; texts.trained()"]
    subprocess.run(made, cwd=tmp_path, check=True, capture_output=True, timeout=1200)
    words = ("--model", "texts:classifier", "--weights", "last/model.safetensors", "--data", "texts:data")
    first = ("--initial-weights", "first/model.safetensors", "--tokenizer", "last")
    record, _ = run(tmp_path, *words, *first)
    states = {name: record.metrics[f"section:{name}"]["status"] for name in record.metrics["sections"]}
    assert set(states.values()) == {"done"}, states
    assert record.metrics["data"]["kind"] == "text"
    assert record.metrics["section:summary"]["data"]["network_accuracy"] > 0.9  # the test items were seen in training
