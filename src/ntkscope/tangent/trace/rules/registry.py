"""The registry of rules: for a function of PyTorch, what its parameters see of one input.

A rule is asked with the arguments of a call, bound by name, and answers with the terms it adds to the gradients of the
parameters among them. A parameter that appears in a call without a rule, or where the rule has no terms, takes the
`func` method: exact, slower, named in the coverage. A rule that answers with None says that the call only looks at a parameter
in another way, and its result is still that parameter.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from ntkscope.core.errors import DuplicateName
from ntkscope.tangent.trace.terms import Slot, Term

Find = Callable[[Any], Slot | None]  # which parameter, or slice of one, an argument is


Rule = Callable[[Mapping[str, Any], Find], list[Term] | None]  # the arguments by name -> the terms of the call

RULES: dict[Any, tuple[Rule, tuple[str, ...]]] = {}
REWRITES: dict[Any, Callable[..., Any]] = {}


def rule(names: str, *functions: Any) -> Callable[[Rule], Rule]:
    """Register a rule for `functions`, whose arguments are called `names` (in order, separated by blanks)."""

    def decorate(entry: Rule) -> Rule:
        for function in functions:
            if function in RULES:
                raise DuplicateName(f"two rules for {function}; one function has one rule")
            RULES[function] = (entry, tuple(names.split()))
        return entry

    return decorate


def rewrite(function: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register an equal computation of `function` in terms of functions that have rules."""

    def decorate(entry: Callable[..., Any]) -> Callable[..., Any]:
        REWRITES[function] = entry
        return entry

    return decorate


def bind(names: tuple[str, ...], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a call by name."""
    return {**dict(zip(names, args)), **kwargs}


def raw(value: Tensor) -> Tensor:
    """An activation as a term keeps it: no graph behind it."""
    return value.detach()
