"""`ntkscope kernel` on networks and data as `ntkscope xray` takes them: labelled pairs, loaders, checkpoints, texts."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

import ntkscope as ns
from ntkscope.cli import main

MINE = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

def network(width=8):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, width), nn.ReLU(), nn.Linear(width, 1))

def inputs(part):
    return torch.randn(12, 4, generator=torch.Generator().manual_seed(part))

def pairs():
    return tuple((inputs(part), 0.5 + torch.arange(12)) for part in range(2))

def mappings():
    return tuple({"input": inputs(part), "labels": torch.arange(12)} for part in range(2))

def loaders():
    return tuple(DataLoader(TensorDataset(inputs(part), torch.arange(12)), batch_size=5) for part in range(2))

class Words(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embedding, self.readout = nn.Embedding(30, 3), nn.Linear(3, 2)

    def forward(self, ids):
        return self.readout(self.embedding(ids).mean(1))

def lengths(texts):
    longest = max(map(len, texts))
    return torch.tensor([[ord(c) % 30 for c in text.ljust(longest)] for text in texts])

def reader():
    return Words(), lengths

def texts():
    return (["a", "bcd", "ef"], [0, 1, 0]), (["ghijk", "l"], [1, 0])
"""


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "mine_for_kernels.py").write_text(MINE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "mine_for_kernels", raising=False)
    return tmp_path


def computed(data: str, *more: str, model: str = "network") -> torch.Tensor:
    words = ["kernel", "trntk0", "--model", f"mine_for_kernels:{model}", "--data", f"mine_for_kernels:{data}"]
    with pytest.raises(SystemExit) as left:
        main([*words, "--store", f"store-{data}", "--device", "cpu", *more])
    assert not left.value.code
    return ns.open_kernel(f"store-{data}").dense()


@pytest.mark.parametrize("data", ["pairs", "loaders"])
def test_labels_are_no_inputs(mine: Path, data: str) -> None:
    made = computed(data, "--limit", "7", "--part", "test", "--against", "train", "--against-limit", "5")
    module = sys.modules["mine_for_kernels"]
    expected = ns.kernel("trntk0", module.network(), module.inputs(1)[:7], module.inputs(0)[:5]).dense()
    torch.testing.assert_close(made, expected, rtol=1e-5, atol=1e-6)


def test_the_whole_of_a_loader_and_a_lightning_checkpoint(mine: Path) -> None:
    sys.path.insert(0, str(mine))
    try:
        module = __import__("mine_for_kernels")
    finally:
        sys.path.remove(str(mine))
    trained = module.network()
    with torch.no_grad():
        trained[0].weight.mul_(3)
    state = {f"model.{name}": value for name, value in trained.state_dict().items()}
    torch.save({"state_dict": state, "epoch": 3, "hyper_parameters": {"lr": 0.1}}, mine / "last.ckpt")
    made = computed("loaders", "--weights", "last.ckpt", "--params", "2.*")
    expected = ns.kernel("trntk0", trained, module.inputs(0), params=["2.*"]).dense()
    torch.testing.assert_close(made, expected, rtol=1e-5, atol=1e-6)


def test_texts_with_the_tokenizer_a_factory_brings(mine: Path) -> None:
    made = computed("texts", "--against", "test", model="reader")
    module = sys.modules["mine_for_kernels"]
    model, tokenizer = module.reader()
    ids = tokenizer(["a", "bcd", "ef", "ghijk", "l"])
    torch.testing.assert_close(made, ns.kernel("trntk0", model, ids[:3], ids[3:]).dense(), rtol=1e-5, atol=1e-6)


def test_texts_without_one_are_a_message(mine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["kernel", "trntk0", "--model", "mine_for_kernels:network", "--data", "mine_for_kernels:texts"]
    with pytest.raises(SystemExit) as left:
        main([*words, "--store", "s"])
    assert left.value.code == 2
    assert "tokenizer" in capsys.readouterr().err
