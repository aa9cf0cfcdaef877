"""Items: labelled inputs in any form a training loop uses, joined once and in a fixed order."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor, nn
from torch.nn.functional import pad
from torch.utils.data import DataLoader, Dataset, SequentialSampler, Subset

from ntkscope.core import Inputs, Part, Split, UsageError
from ntkscope.core.model.calling import parted, taken_of
from ntkscope.core.model.loading import collect, joined
from ntkscope.core.model.tree import from_arrays, length, take, tensors
from ntkscope.xray.task import CLASSIFICATION, REGRESSION, Task, task_of

TEXT_KEYS = ("text", "texts", "sentence", "sentences")
Tokenizer = Callable[..., Any]
EXTRAS = ("id", "ids", "path", "paths", "file", "files")
ATTRIBUTES = ("paths", "samples", "imgs", "ids")  # `samples` and `imgs` are torchvision's lists of (path, label)
LONGEST = 500  # characters of one id; an id is for people


@dataclass(frozen=True, eq=False)
class Items:
    """Inputs a model can be called with, one label each, their positions in the data, and texts and ids if there are any.

    `y`: class numbers (n,), or the real targets (n, outputs) of a regression, in double precision.
    """

    x: Inputs
    y: Tensor
    original: Tensor
    texts: tuple[str, ...] | None = None
    ids: tuple[str, ...] | None = None

    def __len__(self) -> int:
        return len(self.y)

    def take(self, index: Tensor) -> Items:
        """The items at `index`, in that order."""
        texts, ids = (None if told is None else tuple(told[int(i)] for i in index) for told in (self.texts, self.ids))
        return Items(take(self.x, index), self.y[index], self.original[index], texts, ids)

    @property
    def task(self) -> Task:
        return REGRESSION if self.y.is_floating_point() else CLASSIFICATION

    @property
    def strata(self) -> Int64[np.ndarray, " n"]:
        """What samples are stratified by: the class, or the tenth of the items that the target lies in."""
        return self.task.strata(self.y)

    @property
    def tensors(self) -> list[Tensor]:
        """Every input tensor."""
        return tensors(self.x)

    @property
    def kind(self) -> str:
        """ "image" for (n, 1 or 3, h, w), "text" where texts are known, else "vector"."""
        if self.texts is not None:
            return "text"
        image = isinstance(self.x, Tensor) and self.x.ndim == 4 and self.x.shape[1] in (1, 3) and self.x.shape[2] > 1
        return "image" if image and self.x.is_floating_point() else "vector"


def collect_both(
    train: Any, test: Any, tokenizer: Tokenizer | None = None, task: str | None = None
) -> tuple[Items, Items]:
    """Both sides as `Items`; texts are tokenised together, so that they have one length.

    `task`: "classification", "regression", or None for what the labels show.
    """
    sides = ("train", "test")
    raw = _collected({"train": train, "test": test}, tokenizer)
    labels = [y for _, y, _ in raw]
    labels = task_of(labels, task).read(dict(zip(sides, labels)))
    made = []
    for (x, _, words), y, what, data in zip(raw, labels, sides, (train, test)):
        texts_of = None if words is None else tuple(words)
        made.append(Items(x, y, torch.arange(len(y)), texts_of, ids_of(data, len(y))))
        _check_finite(made[-1], what)
    return _same_length(*made)


def collect_inputs(parts: Mapping[str, Any], tokenizer: Tokenizer | None = None) -> list[Inputs]:
    """The inputs of each of some labelled parts, as an X-ray would take them; their labels are ignored.

    >>> [x] = collect_inputs({"train": (torch.zeros(3, 2), ["a", "b", "c"])})
    >>> x.shape
    torch.Size([3, 2])
    """
    return [x for x, _, _ in _collected(parts, tokenizer, labels=False)]


def compared_inputs(data: Any, train: Items, tokenizer: Tokenizer | None = None) -> Inputs:
    """The inputs of items to compare with the training items: labelled as these are, or inputs alone."""
    bare = isinstance(data, Tensor | np.ndarray) or _texts_of(data) is not None
    [x] = collect_inputs({"compare": (data, torch.zeros(len(data))) if bare else data}, tokenizer)
    if length(x) == 0:
        raise UsageError("compare is empty; expected at least one item")
    shapes = [[tuple(t.shape[1:]) for t in tensors(inputs) if t.is_floating_point()] for inputs in (train.x, x)]
    if shapes[0] != shapes[1]:
        raise UsageError(f"compare has inputs of shape {shapes[1]} and train of {shapes[0]}; expected the same")
    _check_finite(Items(x, torch.zeros(length(x)), torch.arange(length(x))), "compare")
    return x


def _collected(parts: Mapping[str, Any], tokenizer: Tokenizer | None, labels: bool = True) -> list[Any]:
    """Inputs, labels and texts of each part; all texts are tokenised together, so that they have one length."""
    raw = [_raw(data, what, labels) for what, data in parts.items()]
    texts = [_texts_of(x) for x, _, _ in raw]
    if any(words is not None for words in texts):
        if tokenizer is None:
            raise UsageError(
                f"{' and '.join(parts)} hold texts, but got no tokenizer; pass tokenizer= (--tokenizer on the command"
                " line), the one the model was trained with"
            )
        if None not in texts:
            encoded, start = _tokenised(tokenizer, [text for words in texts for text in words or ()]), 0
            for place, words in enumerate(texts):
                stop = start + len(words or ())
                raw[place] = (take(encoded, slice(start, stop)), raw[place][1], words)
                start = stop
    for (x, _, _), what in zip(raw, parts):
        if not isinstance(x, Tensor | tuple | Mapping):
            raise UsageError(
                f"{what} has inputs of type {type(x).__name__}; expected tensors, or texts and a tokenizer"
            )
    return raw


def _raw(data: Any, what: str, labels: bool = True) -> tuple[Any, Any, Sequence[str] | None]:
    """Inputs, labels and texts of one side."""
    if isinstance(data, Split):
        raise UsageError(f"{what} is a whole Split; expected one part of it: pass split.train and split.test")
    texts = None
    if isinstance(data, Part):
        x, y = data.x, data.y
        texts = next((data.extras[key] for key in TEXT_KEYS if key in data.extras), None)
    elif isinstance(data, DataLoader | Dataset):
        x, y, texts = _read(data, what)
    elif isinstance(data, Mapping):
        x, y, texts = _parted(data, what)
    elif isinstance(data, tuple | list) and len(data) == 2 and all(hasattr(side, "__len__") for side in data):
        x, y = data
        n = length(x)
        if n != len(y) and _texts_of(x) is None:
            raise UsageError(f"{what} has {n:,} inputs and {len(y):,} labels; expected one label per input")
    else:
        raise UsageError(
            f"{what} is a {type(data).__name__}; expected a Part, (inputs, labels), a mapping with labels, a Dataset"
            " or a DataLoader"
        )
    x = from_arrays(x, torch.get_default_dtype())
    return x, _labels(y, what) if labels else y, texts


def _read(data: Dataset[Any] | DataLoader[Any], what: str) -> tuple[Any, Tensor, Any]:
    """Inputs, labels and texts of all items, in the order of the data set or of a loader that does not shuffle."""
    xs, ys, words = zip(*collect(data, lambda item: _parted(item, what), what, augmented=True))
    y = joined([torch.as_tensor(label) for label in ys], data, what)
    if isinstance(xs[0], str):
        return list(xs), y, None
    if _texts_of(xs[0]) is not None:  # batches of texts
        return [text for batch in xs for text in batch], y, None
    texts = [text for some in words if some is not None for text in ([some] if isinstance(some, str) else some)]
    return joined(list(xs), data, what, _padded), y, texts or None


def _parted(item: Any, what: str) -> tuple[Any, Any, Any]:
    """Inputs, label and texts of one item or batch."""
    x, label = parted(item)
    if label is None:
        members = f"with {', '.join(map(str, x))}" if isinstance(x, Mapping) else f"of type {type(item).__name__}"
        raise UsageError(
            f"{what} has items {members}; expected a label among them: (input, label), or a mapping with 'labels'"
        )
    if not isinstance(x, Mapping) or not isinstance(item, Mapping):
        return x, label, None
    texts = next((x[k] for k in TEXT_KEYS if k in x), None)
    x = {k: v for k, v in x.items() if k not in TEXT_KEYS}
    return (x, label, texts) if x else (texts, label, None)


def _padded(tensors: list[Tensor]) -> list[Tensor]:
    """Token tensors of several lengths, the short ones padded with zeros; anything else is unchanged."""
    tokens = all(t.ndim in (1, 2) and not t.is_floating_point() for t in tensors)
    longest = max(t.shape[-1] for t in tensors) if tokens and tensors[0].ndim else 0
    if not tokens or all(t.shape[-1] == longest for t in tensors):
        return tensors
    return [pad(t, (0, longest - t.shape[-1])) for t in tensors]


def _same_length(train: Items, test: Items) -> tuple[Items, Items]:
    """Token tensors of both sides padded to one length."""
    if not (isinstance(train.x, Mapping) and isinstance(test.x, Mapping)):
        return train, test
    sides: tuple[dict[str, Any], dict[str, Any]] = ({}, {})
    for key in train.x:
        if key not in test.x:
            raise UsageError(f"train has the input {key!r} and test does not; expected the same inputs in both")
        pair = _padded([torch.as_tensor(train.x[key]), torch.as_tensor(test.x[key])])
        sides[0][key], sides[1][key] = pair
    return replace(train, x=sides[0]), replace(test, x=sides[1])


def _labels(y: Any, what: str) -> Tensor:
    try:
        y = torch.as_tensor(y).detach().cpu()
    except (ValueError, TypeError) as error:
        raise UsageError(
            f"{what} has labels of type {type(y).__name__} that are not numbers ({error}); expected class numbers from 0 on,"
            " and their names as classes="
        ) from error
    if not y.ndim or not len(y):
        raise UsageError(f"{what} is empty; expected at least one item")
    return y


def _check_finite(items: Items, what: str) -> None:
    """Refuse inputs with NaN or infinity; the error says where the first one is."""
    for tensor in items.tensors:
        if tensor.is_floating_point() and len(tensor):
            bad = torch.nonzero(~tensor.isfinite().reshape(len(tensor), -1).all(1)).flatten().tolist()
            if bad:
                raise UsageError(
                    f"{what} holds NaN or infinity in {len(bad):,} items, the first at index {bad[0]}; expected finite"
                    " inputs: clean or drop them"
                )


def _texts_of(x: Any) -> list[str] | None:
    return list(x) if isinstance(x, list | tuple) and len(x) > 0 and all(isinstance(text, str) for text in x) else None


def fitted(tokenizer: Tokenizer | None, model: nn.Module, tell: Callable[[str], Any]) -> Tokenizer | None:
    """The tokenizer without inputs that the model's `forward` does not take, as Hugging Face's Trainer removes columns."""
    if tokenizer is None:
        return None
    told: set[str] = set()

    def tokens(texts: list[str]) -> Any:
        encoded = _tokenised(tokenizer, texts)
        kept = taken_of(model, encoded) if isinstance(encoded, Mapping) else encoded
        unused = {} if kept is encoded else {name: None for name in encoded if name not in kept and name not in told}
        if unused:
            told.update(unused)
            tell(f"of the tokenizer's inputs the network does not take {', '.join(unused)}: left out")
        return kept

    return tokens


def _tokenised(tokenizer: Tokenizer, texts: list[str]) -> Any:
    """All texts tokenised: tensors of one length."""
    hugging_face = hasattr(tokenizer, "pad_token") or hasattr(tokenizer, "batch_encode_plus")
    encoded = tokenizer(texts, padding=True, truncation=True, return_tensors="pt") if hugging_face else tokenizer(texts)
    return dict(encoded) if isinstance(encoded, Mapping) or hasattr(encoded, "keys") else encoded


def ids_of(data: Any, count: int) -> tuple[str, ...] | None:
    """The id of each of `count` items in their order, from a Part's extras or a Dataset's list of files; None without any.

    What is not one text or number per item is not an id: it is ignored, never an error.

    >>> import torch
    >>> ids_of(Part(torch.zeros(2, 1), torch.zeros(2), {"path": ["a.png", "b.png"]}), 2)
    ('a.png', 'b.png')
    >>> ids_of((torch.zeros(2, 1), torch.zeros(2)), 2) is None
    True
    """
    if isinstance(data, Part):
        return next((found for key in EXTRAS if (found := _texts(data.extras.get(key), count)) is not None), None)
    if isinstance(data, DataLoader):
        plain = isinstance(getattr(data.batch_sampler, "sampler", data.sampler), SequentialSampler)
        return ids_of(data.dataset, count) if plain else None
    if isinstance(data, Subset):
        whole = ids_of(data.dataset, len(data.dataset)) if hasattr(data.dataset, "__len__") else None
        return None if whole is None or len(data.indices) != count else tuple(whole[i] for i in data.indices)
    return next((found for key in ATTRIBUTES if (found := _texts(_attribute(data, key), count)) is not None), None)


def _attribute(data: Any, name: str) -> Any:
    try:
        return getattr(data, name, None)
    except Exception:  # a property of somebody else's data set
        return None


def _texts(values: Any, count: int) -> tuple[str, ...] | None:
    if isinstance(values, Tensor):
        values = values.tolist() if values.ndim == 1 else None
    if not isinstance(values, Sequence) or isinstance(values, str | bytes) or len(values) != count:
        return None
    firsts = [value[0] if isinstance(value, tuple | list) and value else value for value in values]
    if not all(isinstance(value, str | int) or hasattr(value, "__fspath__") for value in firsts):
        return None
    return tuple(_printable(str(value)) for value in firsts)


def _printable(text: str) -> str:
    """A text that can be written as UTF-8 (a path need not be), of bounded length, its end kept: there the name is."""
    whole = text.encode("utf-8", "replace").decode()
    return whole if len(whole) <= LONGEST else "…" + whole[-LONGEST:]
