"""Ensembles: many networks of one architecture trained together, their parameters stacked."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Any

import torch
from jaxtyping import Bool, Float, Float64, Int64
from torch import Tensor, nn

from ntkscope.core import Inputs, Params, Part, Snapshot, UsageError, progress
from ntkscope.core.checked import CountOrZero
from ntkscope.core.model.copies import duplicate, own_copy
from ntkscope.core.progress import Progress
from ntkscope.training.batches import BatchOrder
from ntkscope.training.ensembles.group import Group
from ntkscope.training.ensembles.likeness import refuse_unlike
from ntkscope.training.ensembles.members import Members, Plan, Together
from ntkscope.training.ensembles.rates import member_values
from ntkscope.training.ensembles.stacked import each_member, outputs_of
from ntkscope.training.ensembles.store import Keeper, as_snapshot, joined
from ntkscope.training.evaluation import Weights, evaluating, item_weights
from ntkscope.training.moments import snapshot_steps
from ntkscope.training.settings import Settings, as_settings

ALONE = ("seed", "drop_last", "autocast", "channels_last", "on_step")  # settings of `fit` only
OWN = ("lr", "weight_decay")  # settings that may differ between members
CHUNK = 64  # steps between looks at the clock, with a store


@dataclass(frozen=True, eq=False)
class Ensemble:
    """Networks of one architecture: parameters and buffers stacked along a first axis of members.

    `ensemble(x)` is (members, n, c); `ensemble.member(i)` is an ordinary network with the weights of member i.
    """

    template: nn.Module
    params: Params
    buffers: Params
    seeds: tuple[int, ...]
    losses: Float[Tensor, " k"] = field(repr=False)
    """Of each member at its last update, before it: the training loss on the last batch, not on all of the data; NaN where
    no update was made."""
    steps: Int64[Tensor, " k"] = field(repr=False)
    """The updates that led to each member's weights: fewer than all where it stopped, or had its best epoch, earlier."""
    validation_losses: Float64[Tensor, " k"] | None = field(default=None, repr=False)
    """Of each member, the lowest: of its weights, unless `restore=False`. None without validation, NaN without an update."""
    diverged: Bool[Tensor, " k"] | None = field(default=None, repr=False)
    """The members whose loss was not finite, with `diverged="nan"`; their weights are NaN."""
    notes: tuple[str, ...] = ()
    """What could not be computed the fast way, and why."""
    vectorised: bool = True
    """Whether the members are computed by `vmap`, or one after the other."""

    def __len__(self) -> int:
        return len(self.seeds)

    def __call__(self, x: Inputs) -> Tensor:
        """The outputs of every member on the same inputs, in evaluation mode, without gradients."""
        with evaluating(self.template), torch.no_grad():
            forward = each_member(partial(outputs_of, self.template), (0, 0, None), self.vectorised)
            return forward(self.params, self.buffers, x)

    def member(self, i: int) -> nn.Module:
        """Member i as a network of its own."""
        model = own_copy(self.template, "each member has weights of its own")
        with torch.no_grad():
            for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
                tensor.copy_((self.params if name in self.params else self.buffers)[name][i])
        return model

    def members(self) -> Iterator[nn.Module]:
        """The members one after the other."""
        return (self.member(i) for i in range(len(self)))


def fit_ensemble(
    build: Callable[[int], nn.Module],
    part: Part | Sequence[Part],
    settings: Settings | None = None,
    *,
    seeds: CountOrZero | Sequence[int],
    validation: Part | Sequence[Part] | None = None,
    store: str | os.PathLike[str] | None = None,
    on_snapshot: Callable[[Snapshot], None] | None = None,
    progress: bool = False,
    **options: Any,
) -> Ensemble:
    """Train `build(seed)` for every seed in one vectorised call; member i is what `fit` makes of it with that seed.

    Options come as the `Settings` that `fit` takes, as its fields by keyword, or both: keywords replace fields. Mixed precision
    and `on_step` are those of `fit` alone. `lr` and `weight_decay`, as keywords, are a number or one for each member, so that a
    grid times some seeds is one call: `seeds=[0, 1, 0, 1], lr=[0.1, 0.1, 0.01, 0.01]`.

    One part is shared by all members, or each has its own of the same length. `seeds=100` means 0 ... 99. Members see
    their own batch order, and their own augmentation. `on_snapshot` is handed the stacked parameters, with the mean loss, at
    chosen steps.

    - `stop` ends each member by itself: its weights stay as they were then.
    - `validation`, a part (or one for each member): its loss is taken after every epoch, and every member comes back as it was
      after its best one (with `restore=False` as it was when it ended); one that was no better, by more than `min_delta=0`,
      for `patience=` epochs ends. `ensemble.steps` says when that was.
    - A member whose loss is not finite, or whose validation loss never is, is an error, or with `diverged="nan"` has NaN for
      weights while the others train on.
    - `store=DIR` keeps the snapshots; the same call continues where a killed one stopped, about `checkpoint_seconds=60`
      back.

    The forward and backward passes are batched matrix products over the members (`torch.func.vmap`; fully connected
    networks have `StackedChain`), and the optimizer acts on the stacked parameters: Python and launch costs are paid once, not
    once per member. A network that `vmap` cannot run is computed one member after the other, with a word in `ensemble.notes`.
    On a CPU the members are dealt out to `workers=` threads (as many as PyTorch uses unless given), which never wait for each
    other between snapshots. On CUDA a step is recorded as a graph (unless `capture=False`) and replayed: the same numbers, but
    Python no longer sets the pace. `fast=True` lets fully connected networks compute tanh as 2σ(2x) - 1, a third of the time,
    off by at most 2⁻²² in single precision.

    Examples:
        >>> part = Part(torch.tensor([[1.0]]), torch.tensor([[2.0]]))
        >>> ensemble = fit_ensemble(lambda seed: nn.Linear(1, 1, bias=False), part, seeds=3, loss="mse", lr=0.5, steps=1)
        >>> [round(value, 5) for value in ensemble(torch.ones(1, 1)).flatten().tolist()]
        [2.0, 2.0, 2.0]
    """
    chosen = tuple(range(seeds) if isinstance(seeds, int) else seeds)
    if not chosen:
        raise UsageError("an ensemble without members; expected seeds=, a count or a list of seeds")
    how = Together(**{f.name: options.pop(f.name) for f in fields(Together) if f.name in options})
    if how.patience is not None and validation is None:
        raise UsageError(f"got patience={how.patience} without validation=; expected the part whose loss must improve")
    own = {name: member_values(name, options[name], len(chosen)) for name in OWN if name in options}
    settings = as_settings(settings, options | {name: values[0] for name, values in own.items() if values is not None})
    _refuse_alone(settings)
    models = [build(seed).to(device=settings.device, dtype=settings.dtype).train() for seed in chosen]
    refuse_unlike(models, chosen)
    where = next(models[0].parameters()).device
    named = settings.weights if isinstance(settings.weights, str) else None
    members = Members(
        models,
        _prepared(part, len(models), settings, where),
        chosen,
        own.get("lr"),
        own.get("weight_decay"),
        None if validation is None else _prepared(validation, len(models), replace(settings, weights=named), where),
    )
    items = len(members.parts[0])
    size = items if settings.batch_size is None else settings.batch_size
    per_epoch = BatchOrder(items, size, 0).per_epoch
    dealt = _deal(len(models), how.workers or (torch.get_num_threads() if where.type == "cpu" else 1))
    alone = how.capture and len(dealt) == 1  # recording watches the whole device
    plan = Plan(settings, size, settings.total(per_epoch), replace(how, capture=alone))
    groups = [Group(members.take(which), plan) for which in dealt]
    for group, which in zip(groups, dealt):
        group.hold_to([models[i] for i in which])
    moments = snapshot_steps("final" if settings.snapshots is None else settings.snapshots, plan.total, per_epoch)
    keeper = None if store is None else Keeper(store, how.checkpoint_seconds)
    with _workers(groups) as advance:
        if keeper is not None:
            keeper.begin(groups, members, plan, moments, advance)
        _train(groups, moments, advance, keeper, on_snapshot, progress)
    return _collect(duplicate(models[0]), groups, chosen)


def _prepared(part: Part | Sequence[Part], members: int, settings: Settings, where: torch.device) -> tuple[Part, ...]:
    """The part of each member, with nothing but what training needs, where the networks are; the same one stays the same."""
    parts = [part] if isinstance(part, Part) else list(part)
    if len(parts) not in (1, members) or len({len(p) for p in parts}) != 1:
        raise UsageError(
            f"got {members} members with {len(parts)} parts of lengths {sorted({len(p) for p in parts})};"
            " expected one part for all, or one of the same length for each"
        )
    lean = {id(p): _lean(p, settings.weights).to(where, settings.dtype) for p in parts}
    return tuple(lean[id(p)] for p in (parts if len(parts) > 1 else parts * members))


@contextmanager
def _workers(groups: Sequence[Group]) -> Iterator[Callable[..., None]]:
    """A function that advances all groups to a step, each in a thread of its own."""
    threads = torch.get_num_threads()
    each = max(1, threads // len(groups))
    try:
        with ThreadPoolExecutor(len(groups), initializer=torch.set_num_threads, initargs=(each,)) as pool:

            def advance(until: int, bar: Progress[None] | None = None) -> None:
                if len(groups) == 1:
                    groups[0].advance(until, bar)
                    return
                work = [pool.submit(g.advance, until, bar if g is groups[0] else None) for g in groups]
                for future in work:
                    future.result()

            yield advance
    finally:  # PyTorch keeps the number that a worker set as that of threads to come
        torch.set_num_threads(threads)


def _train(
    groups: Sequence[Group],
    moments: Sequence[int],
    advance: Callable[..., None],
    keeper: Keeper | None,
    on_snapshot: Callable[[Snapshot], None] | None,
    show: bool,
) -> None:
    """Drive the groups from moment to moment."""
    start, per_epoch, total = _furthest(groups), groups[0].per_epoch, groups[0].plan.total
    stored = set() if keeper is None else {step for step in keeper.store if step <= start}
    members = sum(len(group.seeds) for group in groups)
    bar: Progress[None] = progress(total=total - start, label=f"training {members} networks", enabled=show)
    last = -1
    with bar:
        for moment in moments:
            if keeper is not None and moment in stored:
                if on_snapshot is not None:
                    on_snapshot(keeper.store[moment])
                last = moment
                continue
            if moment < start:
                continue  # resumed from a later step
            if keeper is not None:
                for until in range(_furthest(groups) + CHUNK, moment, CHUNK):
                    advance(until, bar)
                    keeper.passing(groups, per_epoch)
            advance(moment, bar)
            if _furthest(groups) != last:
                last = _furthest(groups)
                if keeper is not None and last not in stored:
                    keeper.store.add(as_snapshot(joined(groups), per_epoch))
                if on_snapshot is not None:
                    on_snapshot(_shown(groups, last))
            if all(group.finished for group in groups):
                break
    if keeper is not None:
        keeper.store.end(_furthest(groups))


def _furthest(groups: Sequence[Group]) -> int:
    """The updates done; a group whose members all ended may lie behind."""
    return max(group.step for group in groups)


def _shown(groups: Sequence[Group], step: int) -> Snapshot:
    """What `on_snapshot` is handed: stacked parameters and buffers, and the mean loss."""
    params, buffers = _weights(groups, final=False)
    losses = torch.cat([group.final_losses() for group in groups])
    return Snapshot(step, step / groups[0].per_epoch, params, buffers, {"loss": float(losses.mean())} if step else {})


def _weights(groups: Sequence[Group], final: bool) -> tuple[Params, Params]:
    shown = [group.watch.shown(group.params, group.buffers, final) for group in groups]
    params, buffers = ({name: torch.cat([one[i][name] for one in shown]) for name in shown[0][i]} for i in (0, 1))
    return params, buffers


def _collect(template: nn.Module, groups: Sequence[Group], seeds: tuple[int, ...]) -> Ensemble:
    """The ensemble that some groups became."""
    params, buffers = _weights(groups, final=True)
    watches = [group.watch for group in groups]
    steps = [torch.where(w.settled(True), w.steps, group.step) for w, group in zip(watches, groups)]
    diverged = torch.cat([w.diverged for w in watches])
    return Ensemble(
        template,
        params,
        buffers,
        seeds,
        torch.cat([group.final_losses().clone() for group in groups]),
        torch.cat(steps),
        None if groups[0].validation is None else torch.cat([w.validation_losses() for w in watches]),
        None if groups[0].plan.together.diverged == "raise" else diverged,
        tuple(dict.fromkeys(note for group in groups for note in group.told())),
        all(group.vectorised for group in groups),
    )


def _deal(members: int, workers: int) -> list[list[int]]:
    """Members 0 ... in `workers` runs of about equal length.

    >>> _deal(5, 2)
    [[0, 1, 2], [3, 4]]
    """
    return [part.tolist() for part in torch.arange(members).tensor_split(min(workers, members))]


def _lean(part: Part, weights: Weights) -> Part:
    scale = item_weights(part, weights)
    return Part(part.x, part.y, {} if scale is None else {"weights": scale})


def _refuse_alone(settings: Settings) -> None:
    """Raise an error for settings that only `fit` has."""
    usual = {f.name: f.default for f in fields(Settings)}
    wrong = [name for name in ALONE if getattr(settings, name) != usual[name]]
    if wrong:
        raise UsageError(
            f"fit_ensemble got {', '.join(wrong)}, which only fit has; expected the default"
            f"{': members have seeds=' if 'seed' in wrong else ''}: train the networks one by one with fit"
        )
