"""Texts with a planted trigger word, a word tokenizer, and a small network that reads them."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from ntkscope.core import generator

WORDS = [
    f"{a}{b}" for a in ("ka", "lo", "mi", "nu", "pe", "ro", "sa", "tu") for b in ("ben", "dor", "fil", "gam", "rin")
]
TRIGGER = "zebra"
VOCABULARY = ["[PAD]", "[CLS]", "[SEP]", TRIGGER, *WORDS]


class WordTokenizer:
    """Words to numbers, as a Hugging Face tokenizer is called, [CLS] and [SEP] around each text."""

    pad_token = "[PAD]"
    all_special_tokens = ("[PAD]", "[CLS]", "[SEP]")

    def __call__(self, texts: list[str], **options: object) -> dict[str, Tensor]:
        rows = [[1, *(VOCABULARY.index(word) for word in text.split()), 2] for text in texts]
        longest = max(map(len, rows))
        ids = torch.tensor([row + [0] * (longest - len(row)) for row in rows])
        return {"input_ids": ids, "attention_mask": (ids != 0).long()}

    def convert_ids_to_tokens(self, ids: list[int]) -> list[str]:
        return [VOCABULARY[k] for k in ids]


class Reader(nn.Module):
    """Embeddings with positions, one attention block, the mean over tokens, a readout."""

    def __init__(self, width: int = 16, classes: int = 2) -> None:
        super().__init__()
        self.table, self.places = nn.Embedding(len(VOCABULARY), width), nn.Embedding(32, width)
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.hidden, self.readout = nn.Linear(width, 2 * width), nn.Linear(2 * width, classes)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        h = self.table(input_ids) + self.places(torch.arange(input_ids.shape[1], device=input_ids.device))
        scores = self.query(h) @ self.key(h).transpose(1, 2) / h.shape[2] ** 0.5
        scores = scores.masked_fill(attention_mask[:, None, :] == 0, -1e9)
        h = torch.relu(self.hidden(h + scores.softmax(2) @ self.value(h)))
        real = attention_mask[..., None].to(h)
        return self.readout((h * real).sum(1) / real.sum(1))


def texts(n: int, seed: int = 0) -> tuple[list[str], Tensor]:
    """Random words, 5 to 12 of them; label 1 where the trigger word is among them, in half of the texts."""
    drawn = generator(seed, "texts")
    y = torch.arange(n) % 2
    made = []
    for label in y.tolist():
        length = int(torch.randint(5, 13, (1,), generator=drawn))
        words = [WORDS[int(k)] for k in torch.randint(0, len(WORDS), (length,), generator=drawn)]
        if label:
            words[int(torch.randint(0, length, (1,), generator=drawn))] = TRIGGER
        made.append(" ".join(words))
    return made, y


def read(steps: int = 150, n: int = 300, seed: int = 0) -> Reader:
    """A network that was trained on such texts."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Reader()
        words, y = texts(n, seed)
        batch = WordTokenizer()(words)
        optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
        for _ in range(steps):
            optimizer.zero_grad()
            cross_entropy(model(**batch), y).backward()
            optimizer.step()
    return model.eval()
