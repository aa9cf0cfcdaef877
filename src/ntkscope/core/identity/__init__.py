"""Identity: whether a store is resumed with the network that started it, judged by structure, values and outputs."""

from ntkscope.core.identity.answers import Answers, asked_items, disagreement, drawn, machine, tolerance
from ntkscope.core.identity.libraries import DIGITS
from ntkscope.core.identity.network import code_identity, identity, network_identity

__all__ = [
    "Answers",
    "DIGITS",
    "asked_items",
    "code_identity",
    "disagreement",
    "drawn",
    "identity",
    "machine",
    "network_identity",
    "tolerance",
]
