"""One run of `feature_matrices`: which layers there are, how many samples fit, and the stream over all of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

import torch
from torch import Tensor, nn

from ntkscope.core import UsageError
from ntkscope.core.errors import MemoryBudgetError
from ntkscope.core.progress import counter
from ntkscope.core.sizes import over_budget
from ntkscope.tangent.blocks.heads import OutputSketch, as_heads
from ntkscope.tangent.certify.auditor import GraphMismatch
from ntkscope.tangent.kernel.plan import CPU_BLOCK, CUDA_BLOCK, CUDA_SLACK, SLACK
from ntkscope.tangent.kernel.products import ranges
from ntkscope.tangent.matrices.sites import INPUT, Site, find_sites, named, scaled
from ntkscope.tangent.matrices.stream import Directions, Runner, Stream, Sum, auditor_of
from ntkscope.tangent.model import guards
from ntkscope.tangent.model.batches import Batch
from ntkscope.tangent.model.subject import Subject
from ntkscope.tangent.trace.probe import SAMPLES
from ntkscope.tangent.trace.probed import Probed
from ntkscope.tangent.trace.tape import watch
from ntkscope.tangent.trace.terms import Lookup, Outer

UNRULED = "no rule accounts for the calls that read it, so its pre-activations are not known"
EMBEDDING = "it is read by index, and indices have no gradient"
UNUSED = "no affine call reads it"
CHANGED = "what its calls left behind was not what autograd gives"
SHARE = 4  # the input's covariance may take one part in so many of the memory, unless it was asked for by name


@dataclass(frozen=True, eq=False)
class Asked:
    """What the caller of `feature_matrices` asked for, checked as far as the model need not be run."""

    model: nn.Module
    initial: nn.Module | None
    x: Batch
    device: torch.device | str | None
    layers: tuple[str, ...] | None = None
    outputs: list[int] | None = None
    sketch: OutputSketch | None = None
    memory: int = 0
    dtype: torch.dtype | None = None
    certify: str | bool = False
    progress: bool = False

    def subject(self, model: nn.Module, names: frozenset[str]) -> Subject:
        return Subject(model, params=names.__contains__, dtype=self.dtype, device=self.device, still=not names)


@dataclass(frozen=True, eq=False)
class Found:
    """What a run gives: the stream with its sums over all samples, and what is not in it."""

    stream: Stream
    outputs: int
    left_out: Mapping[str, str]
    aliases: Mapping[str, str]


def run(asked: Asked) -> Found:
    """The stream; a parameter whose check fails on the way is left out of the next attempt."""
    changed: set[str] = set()
    while True:
        try:
            return _attempt(asked, frozenset(changed))
        except GraphMismatch as change:
            if not change.names:  # once more: what was in the way has been switched off
                continue
            if not change.names - changed:
                raise UsageError(change.refusal) from change
            changed |= change.names


def _attempt(asked: Asked, changed: frozenset[str]) -> Found:
    affine, left_out = affine_parameters(asked, changed)
    subject, probed, sites, aliases = chosen_sites(asked, affine, left_out)
    wants_input, why = _input(asked, subject, probed)
    if why:
        left_out[INPUT] = why
    if not sites and not wants_input:
        said = "; ".join(f"{name}: {why}" for name, why in left_out.items())
        raise UsageError(
            f"{type(asked.model).__name__} has no affine layer that can be looked at ({said}); expected Linear, Conv or"
            " attention layers whose weights are parameters"
        )
    sites = dict(zip(sites, scaled(subject, probed.few, probed.findings, list(sites.values()))))
    outputs = as_heads(asked.outputs)
    outputs.count(probed.findings.outputs)
    chosen = tuple(range(probed.findings.outputs)) if outputs.outputs is None else outputs.outputs
    sketch = asked.sketch if asked.sketch is not None and asked.sketch.k < len(chosen) else None
    sketched = sketch is not None
    directions = Directions(chosen) if sketch is None else Directions(chosen, sketch.k, sketch.seed)
    runners = [_runner(subject, probed, asked)]
    if asked.initial is not None and sites:
        runners.append(_initial(asked, subject, probed, sites))
    try:
        block = _block(asked, runners, sites, wants_input, sketched)
    except MemoryBudgetError:
        if not (wants_input and sites) or (asked.layers is not None and INPUT in asked.layers):
            raise
        wants_input = False  # the layers may fit without it
        left_out[INPUT] = "its covariance does not fit into memory= beside those of the layers: name it in layers="
        block = _block(asked, runners, sites, wants_input, sketched)
    stream = Stream(
        runners,
        sites,
        directions,
        {name: _sum(site.out, subject, sketched) for name, site in sites.items()},
        {name: _sum(site.out, subject, False) for name, site in sites.items()} if len(runners) > 1 else {},
        _sum(_width(asked.x), subject, sketched) if wants_input else None,
    )
    with counter(len(asked.x), "feature matrices", enabled=asked.progress) as bar:
        for number, at in enumerate(ranges(0, len(asked.x), block)):
            stream.add(asked.x[at.start : at.stop], number)
            bar.advance(len(at))
    return Found(stream, len(chosen), left_out, aliases)


def affine_parameters(asked: Asked, changed: frozenset[str]) -> tuple[frozenset[str], dict[str, str]]:
    """The parameters that affine calls read, and why other matrices are left out."""
    matrices = frozenset(
        name for name, p in asked.model.named_parameters() if p.is_floating_point() and p.dim() > 1 and p.numel()
    )
    if not matrices:
        raise UsageError(
            f"{type(asked.model).__name__} has no affine layer (no parameter is a matrix), so there are no features to look"
            " at; expected a network with Linear, Conv or attention layers"
        )
    subject = asked.subject(asked.model, matrices)
    guards.check_placement(subject.device, subject.moved, asked.x)
    few = subject.placed(asked.x[: min(SAMPLES, len(asked.x))])
    guards.first_outputs(subject, few)
    tape = watch(subject, few)[1]
    kinds: dict[str, set[type]] = {}
    for call in tape.calls:
        for term in call.terms:
            kinds.setdefault(term.slot.name, set()).add(type(term))
    left_out = {}
    for name in sorted(matrices):
        if name in tape.unruled:
            left_out[name] = UNRULED
        elif name in changed:
            left_out[name] = CHANGED
        elif Outer not in kinds.get(name, set()):
            left_out[name] = EMBEDDING if Lookup in kinds.get(name, set()) else UNUSED
    return matrices - set(left_out), left_out


def chosen_sites(
    asked: Asked, affine: frozenset[str], left_out: dict[str, str]
) -> tuple[Subject, Probed, dict[str, Site], dict[str, str]]:
    """The subject of the parameters whose sites were asked for, probed; those that the probe does not trust are left out."""
    names = affine
    while True:
        subject = asked.subject(asked.model, names)
        probed = Probed.of(subject, asked.x)
        left_out |= dict.fromkeys(probed.findings.func, UNRULED)
        found = find_sites(subject, probed.calls, probed.findings, len(probed.few))
        sites, aliases = named(subject.model, found)
        chosen = _selected(asked.layers, sites, aliases, left_out)
        needed = frozenset(site.parameter for site in chosen.values())
        if needed == names or (not needed and not names):
            kept = {other: own for other, own in aliases.items() if own in chosen}
            return subject, probed, chosen, kept
        names = needed


def _selected(
    layers: tuple[str, ...] | None, sites: Mapping[str, Site], aliases: Mapping[str, str], left_out: Mapping[str, str]
) -> dict[str, Site]:
    if layers is None:
        return dict(sites)
    wanted: set[str] = set()
    for glob in layers:
        hits = {name for name in sites if fnmatchcase(name, glob)}
        hits |= {own for name, own in aliases.items() if fnmatchcase(name, glob)}
        if not hits and glob != INPUT:
            gone = [f"{name} ({why})" for name, why in left_out.items() if name.startswith(glob.rstrip("*"))]
            why = f"; left out: {', '.join(gone)}" if gone else ""
            raise UsageError(
                f"got the layer {glob!r}, which is no affine layer of this network{why}; there are:"
                f" {', '.join([INPUT, *sites])}"
            )
        wanted |= hits
    return {name: site for name, site in sites.items() if name in wanted}


def _width(x: Batch) -> int:
    return x.tensors()[0][0].numel()


def _input(asked: Asked, subject: Subject, probed: Probed) -> tuple[bool, str]:
    """Whether the network's own input is looked at, and why not."""
    named_ = asked.layers is not None and INPUT in asked.layers
    if asked.layers is not None and not named_:
        return False, ""
    tensors = asked.x.tensors()
    why = ""
    if len(tensors) != 1:
        why = f"the network takes {len(tensors)} tensors; expected one"
    elif not tensors[0].is_floating_point():
        why = (
            f"the inputs are {str(tensors[0].dtype).removeprefix('torch.')} numbers (token ids), which have no gradient"
        )
    if why and named_:
        raise UsageError(f"got the layer 'input', but {why}: look at the first layer after the embedding instead")
    needs = 2 * 8 * _width(asked.x) ** 2
    if not why and not named_ and needs > asked.memory / SHARE:
        why = f"its covariance of {_width(asked.x)} inputs takes more than a {SHARE}th of memory=: name it in layers="
    return not why, why


def _runner(subject: Subject, probed: Probed, asked: Asked) -> Runner:
    used = [k for k, call in enumerate(probed.calls) if any(term.slot.name in subject.leaves for term in call.terms)]
    return Runner(subject, probed, auditor_of(subject, asked.certify), used)


def _initial(asked: Asked, trained: Subject, probed: Probed, sites: Mapping[str, Site]) -> Runner:
    """The initial network, which must use the same parameters in the same calls."""
    assert asked.initial is not None
    shapes = {name: tuple(p.shape) for name, p in asked.initial.named_parameters()}
    odd = [name for name, leaf in trained.leaves.items() if shapes.get(name) != tuple(leaf.shape)]
    if odd:
        name = odd[0]
        raise UsageError(
            f"the initial network does not fit the trained one: {name} has shape {shapes.get(name, 'none')} instead of"
            f" {tuple(trained.leaves[name].shape)} ({len(odd)} parameters differ); expected the same network before training"
        )
    subject = asked.subject(asked.initial, frozenset(trained.leaves))
    found = Probed.of(subject, asked.x)
    if found.findings.signatures != probed.findings.signatures or found.findings.func:
        raise UsageError(
            "the initial network does not fit the trained one: it calls its layers in another way; expected the same network"
            " before training"
        )
    same = [torch.equal(leaf.to(subject.device), subject.leaves[name]) for name, leaf in trained.leaves.items()]
    if all(same):
        raise UsageError(
            "got initial= weights that are the trained ones, so centred weights would be zero; expected those from before"
            " training"
        )
    return _runner(subject, found, asked)


def _sum(width: int, subject: Subject, sketched: bool) -> Sum:
    def zeros() -> Tensor:
        return torch.zeros(width, width, dtype=torch.float64, device=subject.device)

    return Sum(zeros(), zeros() if sketched else None)


def _block(asked: Asked, runners: list[Runner], sites: Mapping[str, Site], wants_input: bool, sketched: bool) -> int:
    """How many samples pass at once: what stays, the largest temporary matrix, and what each sample takes, in `memory`."""
    cuda = runners[0].subject.device.type == "cuda"
    widths = [site.out for site in sites.values()] + ([_width(asked.x)] if wants_input else [])
    copies = 1 + (len(runners) > 1) + 3 * sketched
    inputs = [site.groups * site.inside for site in sites.values()]
    stays = 8 * sum(width**2 for width in widths) * copies + 16 * max(width**2 for width in widths)
    stays += sum(8 * len(runners) * site.out * inside for site, inside in zip(sites.values(), inputs))
    checks = 0 if asked.certify is False else 4 * max(
        sum(leaf.numel() * leaf.element_size() for leaf in runner.subject.leaves.values()) for runner in runners
    )  # fmt: skip
    each = 0
    for runner in runners:
        size = runner.subject.dtype.itemsize
        calls = [runner.probed.calls[k].shape.numel() * size // len(runner.probed.few) for k in runner.used]
        patches = [site.positions * site.groups * site.inside * size for site in sites.values()]
        each += runner.probed.graph_bytes + 2 * sum(calls) + 2 * max(calls, default=0) + 3 * max(patches, default=0)
    each += 3 * sum(t[0].numel() * t.element_size() for t in asked.x.tensors())
    room = (CUDA_SLACK if cuda else SLACK) * asked.memory - stays - checks
    if room < each:
        what = f"for the covariances of {len(widths)} layers and one sample"
        least = (stays + checks + each) / (CUDA_SLACK if cuda else SLACK) * 1.01 + 1
        raise over_budget(asked.memory, least, what, "raise memory=, or choose fewer layers=")
    return max(1, min(CUDA_BLOCK if cuda else CPU_BLOCK, len(asked.x), int(room / max(1, each))))
