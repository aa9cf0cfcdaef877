"""Ensembles: many networks of one architecture trained together, their parameters stacked."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap

from ntkscope.core import Inputs, NumericalError, Params, Part, Progress, Snapshot, UsageError, progress
from ntkscope.core.calling import arguments, logits
from ntkscope.core.tree import join, map_leaves
from ntkscope.training.batches import BatchOrder
from ntkscope.training.chain import StackedChain, as_chain
from ntkscope.training.evaluation import Weights, evaluating, item_weights
from ntkscope.training.likeness import (
    ATTEMPTS,
    FEW,
    SHAKEN,
    UNLIKE,
    alike,
    few_inputs,
    full_float32,
    gradients,
    member_inputs,
    outputs_alone,
    refuse_unlike,
)
from ntkscope.training.losses import objective
from ntkscope.training.modes import as_mode
from ntkscope.training.moments import snapshot_steps
from ntkscope.training.optimizers import make_optimizer
from ntkscope.training.settings import Settings, as_settings

ALONE = (
    "mode",
    "stop",
    "seed",
    "augment",
    "drop_last",
    "autocast",
    "channels_last",
    "on_step",
)  # settings of `fit` only
FUSED = ("adam", "adamw", "sgd", "gd", "adagrad")  # PyTorch has these as one kernel over all parameters


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

    def __len__(self) -> int:
        return len(self.seeds)

    def __call__(self, x: Inputs) -> Tensor:
        """The outputs of every member on the same inputs, in evaluation mode, without gradients."""
        with evaluating(self.template), torch.no_grad():
            return vmap(lambda p, b: _outputs(self.template, p, b, x))(self.params, self.buffers)

    def member(self, i: int) -> nn.Module:
        """Member i as a network of its own."""
        model = copy.deepcopy(self.template)
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
    seeds: int | Sequence[int],
    on_snapshot: Callable[[Snapshot], None] | None = None,
    workers: int | None = None,
    fast: bool = False,
    progress: bool = False,
    **options: Any,
) -> Ensemble:
    """Train `build(seed)` for every seed in one vectorised call; member i is what `fit` makes of it with that seed.

    Options come as the `Settings` that `fit` takes, as its fields by keyword, or both: keywords replace fields. Modes, early
    stopping, augmentation and mixed precision are those of `fit` alone.

    One part is shared by all members, or each has its own of the same length. `seeds=100` means 0 ... 99. Members see
    their own batch order. `on_snapshot` is handed the stacked parameters, with the mean loss, at chosen steps.

    The forward and backward passes are batched matrix products over the members (`torch.func.vmap`; fully connected
    networks on a CPU have `StackedChain`), and the optimizer acts on the stacked parameters: Python and launch costs
    are paid once, not once per member. On a CPU the members are dealt out to `workers` threads (as many as PyTorch uses
    unless given), which never wait for each other between snapshots. `fast=True` lets fully connected networks compute
    tanh as 2σ(2x) - 1, a third of the time, off by at most 2⁻²² in single precision.

    >>> part = Part(torch.tensor([[1.0]]), torch.tensor([[2.0]]))
    >>> ensemble = fit_ensemble(lambda seed: nn.Linear(1, 1, bias=False), part, seeds=3, loss="mse", lr=0.5, steps=1)
    >>> [round(value, 5) for value in ensemble(torch.ones(1, 1)).flatten().tolist()]
    [2.0, 2.0, 2.0]
    """
    chosen = tuple(range(seeds)) if isinstance(seeds, int) else tuple(seeds)
    if not chosen:
        raise UsageError("an ensemble without members; expected seeds=, a count or a list of seeds")
    settings = as_settings(settings, options)
    _refuse_alone(settings)
    models = [build(seed).to(device=settings.device, dtype=settings.dtype).train() for seed in chosen]
    parts = [part] if isinstance(part, Part) else list(part)
    if len(parts) not in (1, len(models)) or len({len(p) for p in parts}) != 1:
        raise UsageError(
            f"got {len(models)} members with {len(parts)} parts of lengths {sorted({len(p) for p in parts})};"
            " expected one part for all, or one of the same length for each"
        )
    refuse_unlike(models, chosen)
    where = next(models[0].parameters()).device
    lean = [_lean(p, settings.weights).to(where, settings.dtype) for p in parts]
    size = len(lean[0]) if settings.batch_size is None else settings.batch_size
    per_epoch = BatchOrder(len(lean[0]), size, 0).per_epoch
    plan = _Plan(settings, size, settings.total(per_epoch), fast, chains=where.type == "cpu")
    count = (torch.get_num_threads() if where.type == "cpu" else 1) if workers is None else workers
    groups = [
        _Group(
            [models[i] for i in dealt],
            [lean[i if len(lean) > 1 else 0] for i in dealt],
            [chosen[i] for i in dealt],
            plan,
        )
        for dealt in _deal(len(models), count)
    ]
    for group, dealt in zip(groups, _deal(len(models), count)):
        group.hold_to([models[i] for i in dealt], [chosen[i] for i in dealt])
    moments = snapshot_steps("final" if settings.snapshots is None else settings.snapshots, plan.total, per_epoch)
    _train(groups, moments, plan.total, on_snapshot, progress)
    params, buffers, losses = _gather(groups)
    return Ensemble(copy.deepcopy(models[0]), params, buffers, chosen, losses)


@dataclass(frozen=True, eq=False)
class _Plan:
    """What all groups of an ensemble share."""

    settings: Settings
    size: int
    total: int
    fast: bool
    chains: bool

    def optimizer(self, tensors: list[Tensor]) -> torch.optim.Optimizer:
        """The optimizer of stacked parameters, as one kernel where PyTorch has one and the caller did not choose."""
        name, rule = self.settings.optimizer, self.settings.update_rule()
        if name in FUSED and not {"fused", "foreach"} & rule["options"].keys():
            rule["options"] = {"fused": True, **rule["options"]}
        return make_optimizer(name, tensors, **rule)


class _Group:
    """Some members, stacked, with an optimizer of their own."""

    def __init__(self, models: list[nn.Module], parts: list[Part], seeds: list[int], plan: _Plan) -> None:
        self.plan, self.template = plan, copy.deepcopy(models[0])
        params, self.buffers = stack_module_state(models)
        self.params = {name: tensor.detach().requires_grad_(tensor.requires_grad) for name, tensor in params.items()}
        self.shared = all(part is parts[0] for part in parts)
        self.items = len(parts[0])
        self.part = parts[0] if self.shared else _stack(parts)
        self.orders = [BatchOrder(self.items, plan.size, seed) for seed in seeds]
        links = as_chain(models[0]) if plan.chains and isinstance(parts[0].x, Tensor) else None
        self.chain = None if links is None else StackedChain(links, self.params, plan.fast)
        self.optimizer = plan.optimizer([tensor for tensor in self.params.values() if tensor.requires_grad])
        self.rates = [group["lr"] for group in self.optimizer.param_groups]
        self.step, self.losses = 0, torch.full((len(models),), math.nan)
        self._checked, self._permutation = False, (-1, torch.empty(0))

    @full_float32()
    def hold_to(self, models: list[nn.Module], seeds: list[int]) -> None:
        """Every member must give the outputs of its own network on a few inputs; a chain that does not is not used."""
        axis = None if self.shared else 0
        few = few_inputs(self.part.x, 0 if self.shared else 1)
        if self.chain is not None:
            with torch.no_grad():
                found = self.chain.forward(few, shared=self.shared)
            alone = [outputs_alone(m, member_inputs(few, axis, i))[0] for i, m in enumerate(models)]
            if alike(found, torch.stack(alone)):
                return
            self.chain = None
            for parameter in self.params.values():
                parameter.grad = None
        pairs = list(zip(models, seeds, range(len(models))))
        for attempt in range(ATTEMPTS):
            few = few_inputs(self.part.x, 0 if self.shared else 1, attempt * FEW)
            pairs = [pairs[k] for k in self._unlike([(m, i) for m, _, i in pairs], few, axis)]
            if not pairs:
                return
        raise UsageError(f"the network of seed {pairs[0][1]} {UNLIKE}")

    def _unlike(self, members: list[tuple[nn.Module, int]], few: Any, axis: int | None) -> list[int]:
        """Which of some members do not compute what their own networks do, or have other gradients.

        At weights other than the networks' own: a forward pass that holds on to one of them does not follow.
        """
        params = {name: (p.detach() * SHAKEN).requires_grad_(p.requires_grad) for name, p in self.params.items()}
        buffers = {name: tensor.clone() for name, tensor in self.buffers.items()}
        try:
            outputs = vmap(lambda p, b, x: _outputs(self.template, p, b, x), in_dims=(0, 0, axis))(params, buffers, few)
        except RuntimeError as error:
            if "randomness" in str(error):
                return []  # reported at the first step, with the remedy
            raise
        slopes = gradients(outputs, [p for p in params.values() if p.requires_grad])
        found = []
        for at, (model, i) in enumerate(members):
            out, own = outputs_alone(model, member_inputs(few, axis, i), SHAKEN)
            together = [torch.cat([g.flatten() for g in each]) for each in ([s[i] for s in slopes], own)]
            if not (alike(outputs[i].detach(), out) and alike(*together)):
                found.append(at)
        return found

    def advance(self, until: int, bar: Progress[None] | None) -> None:
        """Train all members until `until` updates are done."""
        while self.step < until:
            batch, axis = self._batch()
            factor = self.plan.settings.rate.factor(self.step, self.orders[0].per_epoch, self.plan.total)
            for group, lr in zip(self.optimizer.param_groups, self.rates):
                group["lr"] = lr * factor
            losses = self._by_autograd(batch, axis) if self.chain is None else self._by_hand(self.chain, batch, axis)
            self.optimizer.step()
            self.step += 1
            self._keep(losses.detach())
            if bar is not None:
                bar.advance()

    def _by_hand(self, chain: StackedChain, batch: Part, axis: int | None) -> Tensor:
        """The losses of the members; gradients by hand, but for the loss itself."""
        outputs = chain.forward(batch.x, shared=axis is None).detach().requires_grad_()
        weights = batch.extras.get("weights")
        losses = vmap(self._objective, in_dims=(0, axis, None if weights is None else axis))(outputs, batch.y, weights)
        chain.backward(torch.autograd.grad(losses.sum(), outputs)[0])
        return losses

    def _by_autograd(self, batch: Part, axis: int | None) -> Tensor:
        """The losses of the members; gradients of whatever network by PyTorch."""

        def one(params: Params, buffers: Params, x: Inputs, y: Tensor, weights: Tensor | None) -> Tensor:
            return self._objective(_outputs(self.template, params, buffers, x), y, weights)

        weights = batch.extras.get("weights")
        self.optimizer.zero_grad(set_to_none=True)
        try:
            losses: Tensor = vmap(one, in_dims=(0, 0, axis, axis, None if weights is None else axis))(
                self.params, self.buffers, batch.x, batch.y, weights
            )
        except RuntimeError as error:
            if "randomness" not in str(error):
                raise
            raise UsageError(
                "the networks draw random numbers in their forward pass (dropout); an ensemble trains networks"
                " without: set the dropout to 0, or train them one by one with fit"
            ) from error
        losses.sum().backward()
        return losses

    def _objective(self, outputs: Tensor, y: Tensor, weights: Tensor | None) -> Tensor:
        if not self._checked:
            self.plan.settings.loss_rule.check(outputs, self.part.y if self.shared else self.part.y.flatten(0, 1))
            self._checked = True
        return objective(self.plan.settings.loss_rule, outputs, y, weights, self.items)

    def _batch(self) -> tuple[Part, int | None]:
        """The batch and the axis its members lie along, None where all see the same."""
        if self.orders[0].full:
            return self.part, None if self.shared else 0
        epoch = self.step // self.orders[0].per_epoch
        if self._permutation[0] != epoch:
            rows = torch.stack([order.permutation(epoch) for order in self.orders]).to(self.part.y.device)
            self._permutation = (epoch, rows)
        index = self._permutation[1][:, self.orders[0].place(self.step)]  # (k, b)
        member = torch.arange(len(index), device=index.device)[:, None]

        where = index if self.shared else (member, index)
        x, y, extras = map_leaves(lambda leaf: leaf[where], (self.part.x, self.part.y, dict(self.part.extras)))
        return Part(x, y, extras), 0

    def _keep(self, losses: Tensor) -> None:
        self.losses = losses
        if losses.device.type == "cpu" or self.step == self.plan.total or self.step % 64 == 0:
            finite = torch.isfinite(losses)
            if not bool(finite.all()):
                raise NumericalError(
                    f"the loss of {int((~finite).sum())} members is not finite at step {self.step}, first of the"
                    f" member with seed {self.orders[int((~finite).nonzero()[0])].seed}; lower lr, or check the inputs"
                )


def _train(
    groups: list[_Group],
    moments: tuple[int, ...],
    total: int,
    on_snapshot: Callable[[Snapshot], None] | None,
    show: bool,
) -> None:
    """Drive the groups from moment to moment, each in a thread of its own."""
    threads = torch.get_num_threads()
    each = max(1, threads // len(groups))
    members = sum(len(group.orders) for group in groups)
    bar: Progress[None] = progress(total=total, label=f"training {members} networks", enabled=show)
    with (
        bar,
        _threads(threads),
        ThreadPoolExecutor(len(groups), initializer=torch.set_num_threads, initargs=(each,)) as pool,
    ):
        for moment in moments:
            if len(groups) == 1:
                groups[0].advance(moment, bar)
            else:
                work = [pool.submit(g.advance, moment, bar if g is groups[0] else None) for g in groups]
                for future in work:
                    future.result()
            if on_snapshot is not None:
                params, buffers, losses = _gather(groups)
                metrics = {"loss": float(losses.mean())} if moment else {}
                on_snapshot(Snapshot(moment, moment / groups[0].orders[0].per_epoch, params, buffers, metrics))


@contextmanager
def _threads(count: int) -> Iterator[None]:
    """PyTorch keeps the number a worker set as that of threads to come; restore the caller's."""
    try:
        yield
    finally:
        torch.set_num_threads(count)


def _gather(groups: list[_Group]) -> tuple[Params, Params, Tensor]:
    """Copies of the stacked parameters and buffers, and the losses of the last step, of all groups in order."""

    def join(tensors: Sequence[Mapping[str, Tensor]]) -> Params:
        return {name: torch.cat([stack[name].detach() for stack in tensors]) for name in tensors[0]}

    return (
        join([g.params for g in groups]),
        join([g.buffers for g in groups]),
        torch.cat([g.losses.to(next(iter(g.params.values())).device) for g in groups]),
    )


def _outputs(template: nn.Module, params: Params, buffers: Params, x: Inputs) -> Tensor:
    return logits(functional_call(template, {**params, **buffers}, *arguments(template, x)))


def _deal(members: int, workers: int) -> list[list[int]]:
    """Members 0 ... in `workers` runs of about equal length.

    >>> _deal(5, 2)
    [[0, 1, 2], [3, 4]]
    """
    if workers < 1:
        raise UsageError(f"workers={workers}; expected at least 1")
    return [part.tolist() for part in torch.arange(members).tensor_split(min(workers, members))]


def _stack(parts: list[Part]) -> Part:
    """Parts of one length as one with a first axis of members in front of the items."""

    return Part(*join([(p.x, p.y, dict(p.extras)) for p in parts], torch.stack, "the parts of the members"))


def _lean(part: Part, weights: Weights) -> Part:
    scale = item_weights(part, weights)
    return Part(part.x, part.y, {} if scale is None else {"weights": scale})


def _refuse_alone(settings: Settings) -> None:
    """Raise an error for settings that only `fit` has."""
    usual = {f.name: f.default for f in fields(Settings)} | {"mode": as_mode(None)}
    wrong = [name for name in ALONE if getattr(settings, name) != usual[name]]
    if wrong:
        raise UsageError(
            f"fit_ensemble got {', '.join(wrong)}, which only fit has; expected the default"
            f"{': members have seeds=' if 'seed' in wrong else ''}: train the networks one by one with fit"
        )
