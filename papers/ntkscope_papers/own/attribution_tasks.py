"""Tasks on which attributions are judged by retraining: data, network and training of each."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from ntkscope import data, models
from ntkscope.core import Part, Split
from ntkscope.models._init import seeded
from ntkscope.models.text import pool_tokens
from ntkscope_papers.framework import Run
from ntkscope_papers.shared.images import chosen_points
from ntkscope_papers.shared.sentences import build_encoder, on, sentences

LENGTH = 40  # tokens of a sentence
SHORT = 24  # of a sentence to fine-tune on; 1.1 % of CoLA's are longer and are cut


@dataclass(frozen=True)
class Recipe:
    """How a task's networks are trained, how many per subset, how many at a time.

    `removals`: repeats of real removals. `full`: checkpoints for which the whole eNTK is computed. `how`: further settings of
    `fit`. `tf32`: whether a GPU may round the products of retrained networks, never those of the networks that are explained.
    """

    dataset: str
    points: int
    epochs: int
    lr: float
    batch: int = 64
    repeats: int = 10
    removals: int = 0
    together: int = 500
    full: int = 5
    tf32: bool = True
    how: Mapping[str, Any] = field(default_factory=lambda: {"optimizer": "adam", "weight_decay": 0.0})


RECIPES = {
    "mlp-mnist": Recipe("mnist", 5000, epochs=20, lr=1e-3, repeats=10, removals=20),
    "cnn-cifar2": Recipe("cifar2", 5000, epochs=12, lr=1e-3, repeats=5, together=100),
    "resnet9-cifar10": Recipe("cifar10", 5000, epochs=15, lr=2e-3, batch=125, repeats=2, together=25, full=1),
    "minilm-cola": Recipe("cola", 5000, epochs=20, lr=1e-3, repeats=10, removals=20),
}


@dataclass(frozen=True, eq=False)
class Task:
    """Training points, test items, a network for each seed, and how it is trained."""

    name: str
    train: Part
    test: Part
    classes: int
    how: Mapping[str, Any]
    recipe: Recipe
    encoder: str = ""  # of sentences as tokens
    words: list[int] = field(default_factory=list)  # of its vocabulary, those that occur

    @cached_property
    def _encoder(self) -> nn.Module:
        """Read once: a thousand networks begin as copies of it."""
        encoder = fewer_words(build_encoder(self.encoder, 0).get_submodule("encoder"), self.words)
        return encoder.to(self.train.y.device)

    def build(self, seed: int) -> nn.Module:
        if not isinstance(self.train.x, Tensor):
            return Sentences(models.build("text", encoder=copy.deepcopy(self._encoder), classes=2, seed=seed))
        shape = self.train.x.shape[1:]
        large = shape[-1] >= 16
        options: dict[str, Any] = {"classes": self.classes, "seed": seed}
        if self.name.startswith("cnn"):
            options |= {"in_channels": shape[0], "image_size": shape[-1], "channels": (16, 32, 64) if large else (8, 8)}
            return models.build("small_cnn", **options)
        if self.name.startswith("resnet9"):
            with seeded(seed, "resnet9"):
                return ResNet9(shape[0], self.classes, width=16 if large else 4)
        if self.name.startswith("lenet"):
            padding = 2 if shape[-1] == 28 else max(0, 8 - shape[-1] // 2)
            return models.build("lenet", in_channels=shape[0], image_size=shape[-1], padding=padding, **options)
        width = 128 if self.name.startswith("mlp") else 64
        return models.build("mlp", in_features=shape.numel(), widths=width, depth=2, **options)


def task(name: str, run: Run, recipes: Mapping[str, Recipe] = RECIPES) -> Task:
    """The task `name` at the sizes of the run's configuration."""
    config: Any = run.experiment
    recipe, device = recipes[name], run.device
    dataset = config.dataset or recipe.dataset
    encoder, words = "", list[int]()
    if name.startswith("minilm"):
        split = _features(run)
    elif name.startswith("finetuned"):
        split, encoder = _tokens(run, SHORT)
    else:
        split = data.load(dataset, root=run.root, seed=0)
    if name.startswith("cnn") and dataset == "digits":  # two of its classes in CIFAR-2's place
        split = split.replace(train=split.train.take(split.train.y < 2), test=split.test.take(split.test.y < 2))
    classes = int(split.train.y.max()) + 1
    points = chosen_points(split.train.y, config.points or recipe.points, run.seed)
    items = chosen_points(split.test.y, config.items, run.seed)
    train, test = split.train.take(torch.from_numpy(points)), split.test.take(torch.from_numpy(items))
    if encoder:
        words, (train, test) = numbered(train, test)
    how = {
        **recipe.how,
        "lr": recipe.lr,
        "batch_size": min(recipe.batch, max(1, len(train) // 4)),
        "epochs": config.epochs or recipe.epochs,
    }
    return Task(name, train.to(device), test.to(device), classes, how, recipe, encoder, words)


class Block(nn.Sequential):
    """Convolution, group norm, ReLU, and 2x2 pooling where asked for."""

    def __init__(self, fan_in: int, fan_out: int, *, pool: bool = False) -> None:
        layers = [nn.Conv2d(fan_in, fan_out, 3, padding=1, bias=False), nn.GroupNorm(4, fan_out), nn.ReLU()]
        super().__init__(*layers, *([nn.MaxPool2d(2)] if pool else []))


class ResNet9(nn.Module):
    """The shape of ResNet-9: two residual pairs between pooled convolutions; group norm, so that members can be stacked."""

    def __init__(self, in_channels: int, classes: int, width: int) -> None:
        super().__init__()
        w = width
        self.stem = nn.Sequential(Block(in_channels, w), Block(w, 2 * w, pool=True))
        self.first = nn.Sequential(Block(2 * w, 2 * w), Block(2 * w, 2 * w))
        self.middle = nn.Sequential(Block(2 * w, 4 * w, pool=True), Block(4 * w, 8 * w, pool=True))
        self.second = nn.Sequential(Block(8 * w, 8 * w), Block(8 * w, 8 * w))
        self.readout = nn.Linear(8 * w, classes)

    def forward(self, x: Float[Tensor, "n c h w"]) -> Float[Tensor, "n k"]:
        x = self.stem(x)
        x = self.middle(x + self.first(x))
        x = x + self.second(x)
        return self.readout(x.flatten(2).amax(2))


class Sentences(nn.Module):
    """An encoder as a classifier of sentences that `torch.func.vmap` can run: without dropout, with masks that are given whole,
    since a mask of tokens is looked at for its values."""

    def __init__(self, classifier: Any) -> None:
        super().__init__()
        for module in classifier.modules():
            if isinstance(module, nn.Dropout):
                module.p = 0.0
        self.encoder, self.readout = classifier.encoder, classifier.readout

    def forward(self, input_ids: Int[Tensor, "n s"], attention_mask: Int[Tensor, "n s"]) -> Float[Tensor, "n c"]:
        hidden = (attention_mask == 0)[:, None, None, :].expand(-1, 1, attention_mask.shape[1], -1)
        added = hidden.to(self.readout.weight.dtype) * torch.finfo(self.readout.weight.dtype).min
        tokens = self.encoder(input_ids=input_ids, attention_mask=added)[0]
        return self.readout(pool_tokens(tokens, attention_mask, "mean"))


def _features(run: Run) -> Split:
    """Sentences as the mean of a frozen encoder's token vectors, computed once and kept in the record."""
    record = run.record
    names = [f"{kind}-{side}" for side in ("train", "test") for kind in ("features", "labels")]
    if not all(name in record.arrays for name in names):
        for name, values in zip(names, _encoded(run), strict=True):
            record.array(name, values)
    x, y, x_test, y_test = (torch.from_numpy(record.arrays[name].copy()) for name in names)
    return Split(Part(x, y), Part(x_test, y_test), classes=("unacceptable", "acceptable"), name="encoded sentences")


def numbered(*parts: Part) -> tuple[list[int], list[Part]]:
    """The words that occur in some sentences, ascending, and the sentences in their numbers."""
    x: list[Any] = [part.x for part in parts]
    words = torch.unique(torch.cat([each["input_ids"].flatten() for each in x]))
    numbers = [{**each, "input_ids": torch.searchsorted(words, each["input_ids"])} for each in x]
    return words.tolist(), [Part(own, part.y) for own, part in zip(numbers, parts)]


def fewer_words(encoder: Any, words: list[int]) -> nn.Module:
    """The encoder with these words alone, as tokens 0, 1, …; no gradient reaches the rest, half of MiniLM's parameters."""
    every = encoder.get_input_embeddings()
    padding = words.index(every.padding_idx) if every.padding_idx in words else None
    own = nn.Embedding.from_pretrained(every.weight[words].detach(), freeze=False, padding_idx=padding)
    encoder.set_input_embeddings(own)
    return encoder


def _tokens(run: Run, length: int = LENGTH) -> tuple[Split, str]:
    """The sentences as tokens, and the encoder that they are for."""
    config: Any = run.experiment
    dataset, encoder = ("made-up", "tiny") if config.dataset else ("cola", config.encoder)
    length = 6 if config.dataset else length
    return sentences(dataset, encoder, root=run.root, train=None, test=None, length=length), encoder


def _encoded(run: Run) -> Iterator[Tensor]:
    """Features and labels of the training sentences, then of the test sentences."""
    split, encoder = _tokens(run)
    model: Any = build_encoder(encoder, 0).to(run.device).eval()
    for part in (split.train, split.test):
        found = []
        for rows in torch.arange(len(part)).split(256):
            x = on(part.take(rows).x, run.device)
            with torch.no_grad():
                found.append(pool_tokens(model.encoder(**x)[0], x["attention_mask"], "mean").float().cpu())
        yield torch.cat(found)
        yield part.y
