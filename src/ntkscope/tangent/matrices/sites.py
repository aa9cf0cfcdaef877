"""Sites of a network: its affine maps `h = W a`, one for each weight, or slice of one, and what it is called.

A weight that several calls read (a repeated module, a tied one) is one site; its calls are further positions. A weight that
is also read the other way round (a decoder that uses the encoder's transpose) has a second site for that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from ntkscope.core import generator
from ntkscope.tangent.model.batches import Batch
from ntkscope.tangent.model.state import ours
from ntkscope.tangent.model.subject import Subject
from ntkscope.tangent.trace.probe import Findings
from ntkscope.tangent.trace.tape import Call, Watch, cotangents
from ntkscope.tangent.trace.terms import Outer

INPUT = "input"  # the name of the network's own input among the sites
PACKED = ("query", "key", "value")
SEPARATE = {"q_proj_weight": "query", "k_proj_weight": "key", "v_proj_weight": "value"}
PROPORTIONAL = {torch.float64: 1e-10, torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 2e-3}


@dataclass(frozen=True)
class Site:
    """An affine map: its weight is rows [start, stop) of a parameter, read by the terms `members` (call, term).

    The weight is block-diagonal, `groups` blocks of (outside, inside). `scale`: what the module multiplies the weight by, and
    `after`: the part of it that follows the call, so that the module's own output is `after` times the call's.
    """

    parameter: str
    start: int
    stop: int
    transposed: bool
    groups: int
    inside: int
    outside: int
    members: tuple[tuple[int, int], ...]
    positions: int
    scale: float = 1.0
    after: float = 1.0

    @property
    def out(self) -> int:
        return self.groups * self.outside

    def weight(self, leaf: Tensor) -> Tensor:
        """The effective weight (out, in), in the parameter's dtype; inputs of a convolution are its patches (channel, tap)."""
        rows = leaf.detach()[self.start : self.stop] * self.scale
        if self.transposed:
            blocks = rows.reshape(self.groups, self.inside, self.outside).transpose(1, 2)
        else:
            blocks = rows.reshape(self.groups, self.outside, self.inside)
        return blocks[0].clone() if self.groups == 1 else torch.block_diag(*blocks)


def find_sites(subject: Subject, calls: Sequence[Call], findings: Findings, n: int) -> list[Site]:
    """The sites of the probed calls whose parameters the rules account for, in the order in which they are first called."""
    found: dict[Site, Site] = {}  # by what calls of one weight have in common
    for k, call in enumerate(calls):
        for t, term in enumerate(call.terms):
            if not isinstance(term, Outer) or term.slot.name in findings.func:
                continue
            x = findings.layouts[k].read(term.x, term.lead_x, n)[:1]
            positions, groups, inside = term.extent(x, 1)
            numbers = subject.leaves[term.slot.name][term.slot.start : term.slot.stop].numel()
            name, start, stop = term.slot.piece
            outside = numbers // (groups * inside)
            made = Site(name, start, stop, term.transposed, groups, inside, outside, ((k, t),), positions)
            key = replace(made, members=(), positions=0)
            if key in found:
                made = replace(
                    found[key], members=(*found[key].members, (k, t)), positions=found[key].positions + positions
                )
            found[key] = made
    return list(found.values())


def named(model: nn.Module, sites: Sequence[Site]) -> tuple[dict[str, Site], dict[str, str]]:
    """The sites by name, and further names of tied ones: that of the module, "query", "key" and "value" of a packed
    attention, else the parameter's own, with its rows where it is a slice."""
    names: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    first = {owners[0]: owners for owners in names.values()}
    shapes = {name: parameter.shape for name, parameter in model.named_parameters()}
    upright = {(site.parameter, site.start, site.stop) for site in sites if not site.transposed}
    made: dict[str, Site] = {}
    aliases: dict[str, str] = {}
    for site in sites:
        second = site.transposed and (site.parameter, site.start, site.stop) in upright
        rows = shapes[site.parameter][0]
        own, *others = [_name(name, site, rows) + " (transposed)" * second for name in first[site.parameter]]
        if own in made or own == INPUT:
            own = f"{site.parameter}[{site.start}:{site.stop}]"
        made[own] = site
        aliases.update(dict.fromkeys(others, own))
    return made, {name: own for name, own in aliases.items() if name not in made}


def _name(parameter: str, site: Site, rows: int) -> str:
    module, _, last = parameter.rpartition(".")
    inside = f"{module}." if module else ""
    if last in SEPARATE:
        return inside + SEPARATE[last]
    if site.start == 0 and site.stop == rows:
        return module if last == "weight" and module else parameter
    width = site.stop - site.start
    if last == "in_proj_weight" and 3 * width == rows and site.start % width == 0:
        return inside + PACKED[site.start // width]
    return f"{parameter}[{site.start}:{site.stop}]"


@dataclass(frozen=True, eq=False)
class _Passage:
    """One call of a module that owns a weight: what it was given, what it gave, and the calls between."""

    module: nn.Module
    first: int
    last: int
    given: Tensor
    edge: GradientEdge
    shape: torch.Size


def scaled(subject: Subject, few: Batch, findings: Findings, sites: Sequence[Site]) -> list[Site]:
    """The sites with what their modules multiply weights by: `W` acts as `scale · W` from the module's input to its output.

    A module in the NTK parametrisation multiplies its inputs or its outputs by a constant. Both are compared with those of the
    call inside: where they are proportional the constant is taken over, else the site is the call itself.
    """
    mode = Watch(subject.leaves, len(few), findings.layouts)
    passages: list[_Passage] = []
    begun: list[tuple[nn.Module, int, Any]] = []
    owners = {id(p): module for module in subject.model.modules() for p in module.parameters(recurse=False)}
    names = {name: owners.get(id(leaf)) for name, leaf in subject.leaves.items()}

    def before(module: nn.Module, args: Any) -> None:
        begun.append((module, len(mode.tape.calls), args[0].detach() if args and isinstance(args[0], Tensor) else None))

    def after(module: nn.Module, _: Any, output: Any) -> None:
        while begun and begun[-1][0] is not module:  # left by an exception
            begun.pop()
        _, first, given = begun.pop()
        if isinstance(given, Tensor) and isinstance(output, Tensor) and output.requires_grad:
            edge = get_gradient_edge(output)
            passages.append(_Passage(module, first, len(mode.tape.calls), given, edge, output.shape))

    modules = {id(m): m for m in names.values() if m is not None}.values()
    handles = [m.register_forward_pre_hook(ours(before)) for m in modules]
    handles += [m.register_forward_hook(ours(after)) for m in modules]
    try:
        with mode:
            outputs = subject(few)
    finally:
        for handle in handles:
            handle.remove()
    calls = mode.tape.calls
    if [call.signature for call in calls] != findings.signatures:
        return list(sites)
    drawn = torch.randn(outputs.shape, generator=generator(0, "scales"), dtype=torch.float64).to(outputs)
    tolerance = subject.loosest(PROPORTIONAL, 2e-2)
    factors: dict[int, tuple[float, float]] = {}
    for passage in passages:
        inner = [
            k
            for k in range(passage.first, passage.last)
            if any(isinstance(t, Outer) and names[t.slot.name] is passage.module for t in calls[k].terms)
        ]
        if len(inner) != 1:
            continue
        call = calls[inner[0]]
        term = next(t for t in call.terms if isinstance(t, Outer))
        into = _factor(term.x, passage.given, tolerance)
        arrived, left = cotangents(outputs, drawn, [call, replace(call, edge=passage.edge, shape=passage.shape)])
        out = 1.0 if arrived is None or left is None else _factor(arrived, left, tolerance)
        factors[inner[0]] = into, out
    return [_with_scale(site, [factors.get(k, (1.0, 1.0)) for k, _ in site.members]) for site in sites]


def _with_scale(site: Site, factors: Sequence[tuple[float, float]]) -> Site:
    """One constant for all calls of a site, or none."""
    if any(abs(a - b) > 1e-4 * abs(b) for one in factors for a, b in zip(one, factors[0])):
        return site
    into, out = factors[0]
    return replace(site, scale=into * out, after=out)


def _factor(inner: Tensor, outer: Tensor, tolerance: float) -> float:
    """c where `inner = c · outer`, 1 where there is no such c."""
    if inner.shape != outer.shape or not outer.is_floating_point():
        return 1.0
    a, b = inner.double(), outer.double()
    squares = float((b * b).sum())
    factor = float((a * b).sum()) / squares if squares > 0 else 1.0
    if not abs(factor) > 0 or not float((a - factor * b).norm()) <= tolerance * float(a.norm()):
        return 1.0
    return 1.0 if abs(factor - 1) <= tolerance else factor
