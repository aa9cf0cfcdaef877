"""Token embeddings: where a network looks its token ids up, and how much each token of a text matters to the outputs."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from ntkscope.core import NumericalError, UsageError, generator
from ntkscope.tangent.model import guards
from ntkscope.tangent.model.batches import Batch, as_batch
from ntkscope.tangent.model.subject import Subject, place, quiet

IDS = "input_ids"
BLOCK = 64
PASSES = 16  # outputs that are differentiated one by one; of more, so many random sign combinations


def token_ids(batch: Batch) -> Tensor | None:
    """The token ids (n, positions) among the inputs: those named `input_ids`, else the first integers of that shape.

    >>> token_ids(Batch((torch.zeros(2, 3),), {})) is None
    True
    """
    ids = batch.entry(IDS)
    if isinstance(ids, Tensor):
        return ids
    whole = (t for t in batch.tensors() if t.ndim == 2 and not t.is_floating_point() and t.dtype != torch.bool)
    return next(whole, None)


def real_tokens(batch: Batch, ids: Tensor) -> Bool[Tensor, "n positions"]:
    """Which positions hold a token of the text: those of `attention_mask`; without one, all but zeros at the end.

    >>> real_tokens(Batch((), {}), torch.tensor([[5, 0, 7, 0, 0]])).tolist()
    [[True, True, True, False, False]]
    """
    mask = batch.entry("attention_mask")
    if isinstance(mask, Tensor) and mask.shape == ids.shape:
        return mask > 0
    return (ids != 0).flip(1).cummax(1).values.flip(1)


class Embedded(TorchFunctionMode):
    """While active, what `ids` pick from a table (n, positions, d) is a leaf of the graph, kept in `leaves`."""

    def __init__(self, ids: Tensor) -> None:
        super().__init__()
        self.ids = ids
        self.leaves: list[Tensor] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        found = func(*args, **kwargs)
        if func is not F.embedding or not isinstance(found, Tensor):
            return found
        asked = args[0] if args else kwargs.get("input")
        if not isinstance(asked, Tensor) or asked.shape != self.ids.shape or not torch.equal(asked, self.ids):
            return found
        leaf = found.detach().requires_grad_()
        self.leaves.append(leaf)
        return leaf


def token_saliency(
    model: nn.Module, x: Any, *, centred: bool = False, device: torch.device | str | None = None
) -> Float[Tensor, "n positions"]:
    """How much the outputs would change, to first order, if a token were replaced by the average one of these texts.

    For the embedding e of a token and ē their mean: `s² = Σ_c (∂f_c/∂e · (e - ē))² = (e - ē)ᵀ G (e - ē)`, with G the gradient
    outer product of this text at this position. `centred` subtracts the mean over outputs, which a softmax does not see. Two
    forward passes and one pass back per output; of more than 16 outputs, random sign combinations instead.

    >>> class Net(nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.table, self.out = nn.Embedding(9, 4), nn.Linear(4, 2)
    ...     def forward(self, ids):
    ...         return self.out(self.table(ids).mean(1))
    >>> token_saliency(Net(), torch.tensor([[1, 2, 3], [4, 5, 6]])).shape
    torch.Size([2, 3])
    """
    guards.check_mode(model)
    batch = as_batch(x, model)
    with quiet(place(model, device), model):
        subject = Subject(model, device=device, still=True)
        blocks = [subject.placed(batch[at : at + BLOCK]) for at in range(0, len(batch), BLOCK)]
        mean = _mean_embedding(subject, blocks)
        found = [_of_block(subject, block, mean, centred, number) for number, block in enumerate(blocks)]
    whole = torch.cat(found)
    if not bool(torch.isfinite(whole).all()):
        raise NumericalError("gradients by the token embeddings hold NaN or infinity; look at the network's outputs")
    return whole


def _run(subject: Subject, block: Batch) -> tuple[Tensor, list[Tensor]]:
    ids = token_ids(block)
    if ids is None:
        raise UsageError(
            "got inputs without token ids; expected integers (n, positions), or a mapping with input_ids, that the network"
            " looks up in an embedding table"
        )
    with Embedded(ids) as mode:
        outputs = subject(block)
    if not mode.leaves:
        raise UsageError(
            f"{type(subject.original).__name__} does not look these token ids up in an embedding table (torch's"
            " F.embedding), so single tokens have no gradient; expected an nn.Embedding that reads them as they are"
        )
    return outputs, mode.leaves


def _mean_embedding(subject: Subject, blocks: list[Batch]) -> list[Tensor]:
    totals: list[Tensor] = []
    count = 0
    for block in blocks:
        leaves = _run(subject, block)[1]
        ids = token_ids(block)
        assert ids is not None
        real = real_tokens(block, ids)
        sums = [leaf.detach()[real].double().sum(0) for leaf in leaves]
        totals = sums if not totals else [a + b for a, b in zip(totals, sums, strict=True)]
        count += int(real.sum())
    return [total / max(count, 1) for total in totals]


def _of_block(subject: Subject, block: Batch, mean: list[Tensor], centred: bool, number: int) -> Tensor:
    outputs, leaves = _run(subject, block)
    n, c = outputs.shape
    held_out = [leaf.detach().double() - ave for leaf, ave in zip(leaves, mean, strict=True)]
    if c <= PASSES:
        weights = torch.eye(c, dtype=torch.float64).expand(n, c, c)
    else:
        drawn = generator(0, "token saliency", number)
        weights = (torch.randint(0, 2, (n, PASSES, c), generator=drawn, dtype=torch.float64) * 2 - 1) / PASSES**0.5
    if centred and c > 1:
        weights = weights - weights.mean(2, keepdim=True)
    total = torch.zeros(n, leaves[0].shape[1], dtype=torch.float64, device=outputs.device)
    for k in range(weights.shape[1]):
        direction = weights[:, k].to(outputs)
        grads = torch.autograd.grad(outputs, leaves, direction, retain_graph=True, allow_unused=True)
        change = sum((g.double() * d).sum(2) for g, d in zip(grads, held_out, strict=True) if g is not None)
        total = total + change**2
    return total.sqrt().cpu()
