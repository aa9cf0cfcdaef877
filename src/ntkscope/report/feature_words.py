"""What layers look for, in words: how far weights and gradients agree, for readers who know neither NFM nor AGOP."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ntkscope.report.numbers import as_float, interval, number, percent

DOMINANT = 0.5  # share of the trace above which a direction is called the one that matters


def above_chance(layer: Mapping[str, Any]) -> bool | None:
    """Whether the correlation is above the control's range; None where there is none.

    >>> above_chance({"correlation": 0.9, "high": 0.6}), above_chance({"correlation": None, "high": None})
    (True, None)
    """
    if layer["correlation"] is None or layer["high"] is None:
        return None
    return as_float(layer["correlation"]) > as_float(layer["high"])


def features_summary(layers: Sequence[Mapping[str, Any]]) -> str:
    """All layers in a sentence.

    >>> features_summary([{"correlation": 0.9, "high": 0.6}, {"correlation": None, "high": None}])
    'In the only layer with weights that could be compared, they look for what the outputs react to, more than by chance.'
    """
    told = [above for layer in layers if (above := above_chance(layer)) is not None]
    if not told:
        return "No layer has weights that could be compared with what the outputs react to."
    if len(told) == 1:
        what = "they look for what the outputs react to, more than by chance"
        other = "they agree with what the outputs react to no more than random directions would"
        return f"In the only layer with weights that could be compared, {what if told[0] else other}."
    yes = sum(told)
    if not yes:
        return (
            f"In none of {len(told)} layers do the weights agree with what the outputs react to more than random directions"
            " would: as far as this tells, training has not taught them what to look for."
        )
    which = f"{yes} of {len(told)}"
    if yes == len(told):
        which = "both" if yes == 2 else f"all {yes}"
    return f"In {which} layers the weights look for what the outputs react to, more than random directions would."


def layer_sentence(layer: Mapping[str, Any]) -> str:
    """What the numbers of one layer say."""
    if layer["reason"]:
        return (
            f"There is nothing to compare here: {layer['reason']}. {_share(layer['agop'], 'what the outputs react to')}"
        )
    if layer["kind"] == "input":
        return f"{_share(layer['agop'], 'what the outputs react to')} It has no weights to compare."
    above = above_chance(layer)
    ends = interval(layer["low"], layer["high"])
    rho = number(layer["correlation"])
    if above:
        said = f"Its weights look for what the outputs react to: ρ = {rho}, where random directions give {ends}."
    elif as_float(layer["correlation"]) < as_float(layer["low"]):
        said = (
            f"Its weights avoid what the outputs react to: ρ = {rho} is below the {ends} of random directions."
            " Look at whether it was trained."
        )
    else:
        said = f"Its weights agree with the gradients as random directions would: ρ = {rho}, random ones give {ends}."
    if layer["centred"] is not None:
        said += f" What training added to them: ρ = {number(layer['centred'])}."
    return f"{said} {_share(layer['agop'], 'what the outputs react to')}"


def _share(shares: Sequence[Any], of: str) -> str:
    if not shares:
        return ""
    first = as_float(shares[0])
    if first >= DOMINANT:
        return f"One direction is {percent(first, 0)} of {of}."
    return f"Its strongest direction is {percent(first, 0)} of {of}."
