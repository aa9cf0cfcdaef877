"""A small causal language model, the decoder of GPT-2; its attention is written out, for all modes of differentiation."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from ntkscope.core import UsageError
from ntkscope.core.checked import Count, Fraction
from ntkscope.models._init import seeded
from ntkscope.models.registry import MODELS

STD = 0.02  # of initial weights, as published


class Attention(nn.Module):
    """softmax(Q Kᵀ / √d + mask) V for each head; a token attends to itself and to those before it."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.dropout = nn.Dropout(dropout)
        self.project = nn.Linear(width, width)

    def forward(self, x: Float[Tensor, "n s d"]) -> Float[Tensor, "n s d"]:
        n, s, d = x.shape
        query, key, value = (
            self.qkv(x).reshape(n, s, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        )  # (n, heads, s, d / heads)
        scores = query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1])
        later = torch.ones(s, s, dtype=torch.bool, device=x.device).triu(1)
        weights = self.dropout(scores.masked_fill(later, -torch.inf).softmax(-1))
        return self.project((weights @ value).transpose(1, 2).reshape(n, s, d))


class Block(nn.Module):
    """x + attention(norm(x)), then x + MLP(norm(x)), four times as wide inside."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.norm1, self.attention = nn.LayerNorm(width), Attention(width, heads, dropout)
        self.norm2, self.expand = nn.LayerNorm(width), nn.Linear(width, 4 * width)
        self.activation, self.contract = nn.GELU(approximate="tanh"), nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Float[Tensor, "n s d"]) -> Float[Tensor, "n s d"]:
        x = x + self.dropout(self.attention(self.norm1(x)))
        return x + self.dropout(self.contract(self.activation(self.expand(self.norm2(x)))))


class GPT(nn.Module):
    """Logits of the next token at every position, (n, s, vocabulary)."""

    def __init__(
        self, vocabulary: int, context: int, width: int, depth: int, heads: int, tied: bool, dropout: float
    ) -> None:
        super().__init__()
        self.context = context
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(context, width)
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.Sequential(*(Block(width, heads, dropout) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)
        self.readout = nn.Linear(width, vocabulary, bias=False)
        for name, parameter in self.named_parameters():
            if parameter.ndim == 2:
                ends_branch = name.endswith(("project.weight", "contract.weight"))
                nn.init.normal_(parameter, std=STD / math.sqrt(2 * depth) if ends_branch else STD)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)
        if tied:
            self.readout.weight = self.tokens.weight

    def forward(self, input_ids: Int[Tensor, "n s"]) -> Float[Tensor, "n s v"]:
        if input_ids.ndim != 2 or input_ids.shape[1] > self.context:
            raise UsageError(
                f"got token ids of shape {tuple(input_ids.shape)}; expected (n, s) with s ≤ {self.context}, the context:"
                " shorten the texts or build the network with a larger context="
            )
        positions = torch.arange(input_ids.shape[1], device=input_ids.device)
        x = self.dropout(self.tokens(input_ids) + self.positions(positions))
        return self.readout(self.norm(self.blocks(x)))


@MODELS.register("gpt")
def gpt(
    vocabulary: Count = 257,
    *,
    context: Count = 128,
    width: Count = 64,
    depth: Count = 2,
    heads: Count = 4,
    tied: bool = True,
    dropout: Fraction = 0.0,
    seed: int | None = 0,
) -> GPT:
    """The decoder of GPT-2 (Radford et al., 2019): token ids (n, s) to logits of the next token, (n, s, vocabulary).

    By default its vocabulary is that of `ByteTokenizer`: 256 bytes and one mark of where texts start and end. `tied`: the
    readout is the token embedding. `sequence_log_likelihood` makes outputs (n, 1) of it, which kernels and training take.

    Examples:
        >>> net = gpt(width=8, depth=1, context=5)
        >>> net(torch.zeros(2, 5, dtype=torch.long)).shape, sum(p.numel() for p in net.parameters())
        (torch.Size([2, 5, 257]), 2984)
    """
    if width % heads:
        raise UsageError(f"got width={width} with heads={heads}; expected a width that the heads divide evenly")
    with seeded(seed, "gpt"):
        return GPT(vocabulary, context, width, depth, heads, tied, dropout)
