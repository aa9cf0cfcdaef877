"""A group: some members of an ensemble, stacked, trained in step."""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import stack_module_state

from ntkscope.core import Inputs, NumericalError, Params, Part, UsageError, derive_seed
from ntkscope.core.model.copies import duplicate
from ntkscope.core.progress import Progress
from ntkscope.training.batches import BatchOrder
from ntkscope.training.ensembles.batches import MemberBatches
from ntkscope.training.ensembles.chain import StackedChain, as_chain
from ntkscope.training.ensembles.execution import alone_is_faster, worth_a_trial
from ntkscope.training.ensembles.likeness import (
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
)
from ntkscope.training.ensembles.members import GroupState, Members, Plan
from ntkscope.training.ensembles.rates import cannot_record, make_updates
from ntkscope.training.ensembles.recording import Recorder
from ntkscope.training.ensembles.stacked import MemberData, each_member, evaluate_stacked, outputs_of
from ntkscope.training.ensembles.watch import Watch
from ntkscope.training.losses import objective
from ntkscope.training.modes import checked_starts, redraw_, trainable
from ntkscope.training.run import LOOK_EVERY

_DRAWING = threading.Lock()  # networks are drawn from the global generator, one at a time


class Group:
    """Some members, stacked, with an optimizer of their own. `advance` trains them, `state` and `load` move them."""

    def __init__(self, members: Members, plan: Plan) -> None:
        models, settings = members.models, plan.settings
        self.plan, self.template, self.seeds = plan, duplicate(models[0]), tuple(members.seeds)
        params, self.buffers = stack_module_state(list(models))
        self.params = {name: tensor.detach().requires_grad_(tensor.requires_grad) for name, tensor in params.items()}
        self.wanted = {name: p.requires_grad for name, p in self.params.items()}
        self.device = next(iter(self.params.values())).device
        self.data = MemberData(members.parts)
        self.validation = None if members.validation is None else MemberData(members.validation)
        stop = settings.stop
        self._stop_data = self.data
        if stop is not None and stop.part is not None:
            scale = {name: value for name, value in stop.part.extras.items() if name == "weights"}
            own = Part(stop.part.x, stop.part.y, scale).to(self.device, settings.dtype)
            self._stop_data = MemberData([own] * len(models))
        orders = [BatchOrder(self.data.items, plan.size, seed) for seed in members.seeds]
        self.per_epoch = orders[0].per_epoch
        self.batches = MemberBatches(self.data, orders, self.seeds, settings.augment)
        links = as_chain(models[0]) if isinstance(members.parts[0].x, Tensor) else None
        self.chain = None if links is None else StackedChain(links, self.params, plan.together.fast)
        learning = {name: p for name, p in self.params.items() if self.wanted[name]}
        self.updates = make_updates(settings, learning, members.lr, members.weight_decay)
        self.vectorised, self.notes = True, list[str]()
        how = plan.together
        ends = self.validation is not None or stop is not None or how.diverged == "nan"
        self.watch = Watch(len(models), how.patience, ends, how.restore, how.min_delta)
        self.step, self.losses = 0, torch.full((len(models),), math.nan, device=self.device)
        self._starts = checked_starts(self.template, settings.phases, self.per_epoch)
        self._phase, self._learning = -1, tuple(learning)
        self._checked, self._chosen, self._finite = False, False, 0
        some = next(iter(self.params.values()))
        self._recent = some.new_zeros(LOOK_EVERY, len(models), requires_grad=False)  # the losses since step `_finite`
        self._recorder = self._make_recorder()

    def _make_recorder(self) -> Recorder | None:
        if self.device.type != "cuda" or not self.plan.together.capture:
            return None
        refusal = cannot_record(self.updates, self.plan.settings)
        if refusal is None:
            return Recorder(self._update)
        self.notes.append(f"steps are not recorded as CUDA graphs: {refusal} cannot be")
        return None

    @property
    def finished(self) -> bool:
        """Whether no member has anything left to learn."""
        return self.step >= self.plan.total or bool(self.watch.done.all())

    # -- the networks are what they were ------------------------------------------------------------------------------

    @full_float32()
    def hold_to(self, models: Sequence[nn.Module]) -> None:
        """Every member must give the outputs of its own network on a few inputs; a chain that does not is not used, and what
        `vmap` cannot do is done one network after the other."""
        if self.chain is not None:
            few, axis = self._few(0), self.batches.axis
            with torch.no_grad():
                found = self.chain.forward(few, shared=axis is None)
            alone = [outputs_alone(m, member_inputs(few, axis, i)) for i, m in enumerate(models)]
            if alike(found, torch.stack([out for out, _, _ in alone]), max(size for _, _, size in alone)):
                return
            self.chain = None
            for parameter in self.params.values():
                parameter.grad = None
        try:
            self._hold_general(models)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:  # an operation without a batching rule, a branch on the data
            if not self.vectorised:
                raise
            self.vectorised = False
            self._hold_general(models)
            self.notes.append(
                f"members are computed one after the other: vmap failed ({str(error).strip().splitlines()[0]:.200})"
            )

    def _hold_general(self, models: Sequence[nn.Module]) -> None:
        left = list(range(len(models)))
        for attempt in range(ATTEMPTS):
            few = self._few(attempt * FEW)
            left = [left[k] for k in self._unlike([(models[i], i) for i in left], few)]
            if not left:
                return
        raise UsageError(f"the network of seed {self.seeds[left[0]]} {UNLIKE}")

    def _few(self, start: int) -> Any:
        """The inputs of a few items, along the axis along which the members' batches will lie."""
        if self.batches.axis is None:
            return few_inputs(self.data.part.x, 0, start)
        index = few_inputs(torch.arange(self.data.items, device=self.data.owner.device), 0, start)
        return self.data.rows(index.expand(len(self.seeds), -1)).x

    def _unlike(self, members: list[tuple[nn.Module, int]], few: Any) -> list[int]:
        """Which of some members do not compute what their own networks do, or have other gradients.

        At weights other than the networks' own: a forward pass that holds on to one of them does not follow.
        """
        axis = self.batches.axis
        params = {name: (p.detach() * SHAKEN).requires_grad_(p.requires_grad) for name, p in self.params.items()}
        buffers = {name: tensor.clone() for name, tensor in self.buffers.items()}
        try:
            outputs = each_member(partial(outputs_of, self.template), (0, 0, axis), self.vectorised)(
                params, buffers, few
            )
        except RuntimeError as error:
            if "randomness" in str(error):
                return []  # reported at the first step, with the remedy
            raise
        slopes = gradients(outputs, [p for p in params.values() if p.requires_grad])
        found = []
        for at, (model, i) in enumerate(members):
            out, own, size = outputs_alone(model, member_inputs(few, axis, i), SHAKEN)
            stacked, single = (torch.cat([g.flatten() for g in each]) for each in ([s[i] for s in slopes], own))
            if not (alike(outputs[i].detach(), out, size) and alike(stacked, single)):
                found.append(at)
        return found

    # -- moving -------------------------------------------------------------------------------------------------------

    @torch.enable_grad()
    def advance(self, until: int, bar: Progress[None] | None = None) -> None:
        """Train all members until `until` updates are done, or all ended."""
        while self.step < until and not self.finished:
            self._enter_phase()
            self.updates.scale(self.plan.settings.rate.factor(self.step, self.per_epoch, self.plan.total))
            batch, axis = self.batches.at(self.step), self.batches.axis
            if self._recorder is None:
                losses = self._update(batch, axis)
            else:
                self._choose_way(batch, axis)
                losses = self._recorder.run(batch, axis, self.batches.constant)
            self.losses = losses.detach()
            self._recent[self.step % LOOK_EVERY].copy_(self.losses)
            self.step += 1
            if self.device.type == "cpu" or self.step % LOOK_EVERY == 0:
                self._check_finite()
            if self.step % self.per_epoch == 0 or self.step == self.plan.total:
                self._look()
            if bar is not None:
                bar.advance()
        if self.step:
            self._check_finite()

    def _choose_way(self, batch: Part, axis: int | None) -> None:
        """Before the first step that is recorded: members one after the other, where that is faster."""
        if self._chosen:
            return
        self._chosen, left = True, self.plan.total - self.step
        if self.chain is not None or not self.vectorised or not worth_a_trial(len(self.seeds), left):
            return
        before = {name: tensor.clone() for name, tensor in self.buffers.items()}

        def step(vectorised: bool) -> None:
            self.vectorised = vectorised
            self._by_autograd(batch, axis)

        alone, told = alone_is_faster(step)
        self.vectorised = not alone
        if alone:
            self.notes.append(told)
        for name, tensor in self.buffers.items():  # batch norm counts
            tensor.copy_(before[name])

    def _update(self, batch: Part, axis: int | None) -> Tensor:
        """One update of all members, and their losses before it."""
        losses, slopes = (
            self._by_autograd(batch, axis) if self.chain is None else self._by_hand(self.chain, batch, axis)
        )
        self.updates.step(slopes)
        return losses

    def _by_hand(
        self, chain: StackedChain, batch: Part, axis: int | None
    ) -> tuple[Tensor, Mapping[str, Tensor | None]]:
        """The losses of the members; gradients by hand, but for the loss itself."""
        outputs = chain.forward(batch.x, shared=axis is None).detach().requires_grad_()
        weights = batch.extras.get("weights")
        in_dims = (0, axis, None if weights is None else axis)
        losses = each_member(self._objective, in_dims, vectorised=True)(outputs, batch.y, weights)
        chain.backward(torch.autograd.grad(losses.sum(), outputs)[0], self._learning)
        return losses, {name: chain.gradients[name] for name in self._learning}

    def _by_autograd(self, batch: Part, axis: int | None) -> tuple[Tensor, Mapping[str, Tensor | None]]:
        """The losses of the members; gradients of whatever network by PyTorch."""

        def one(params: Params, buffers: Params, x: Inputs, y: Tensor, weights: Tensor | None) -> Tensor:
            return self._objective(outputs_of(self.template, params, buffers, x), y, weights)

        weights = batch.extras.get("weights")
        in_dims = (0, 0, axis, axis, None if weights is None else axis)
        try:
            losses = each_member(one, in_dims, self.vectorised)(self.params, self.buffers, batch.x, batch.y, weights)
        except RuntimeError as error:
            if "randomness" not in str(error):
                raise
            raise UsageError(
                "the networks draw random numbers in their forward pass (dropout); an ensemble trains networks"
                " without: set the dropout to 0, or train them one by one with fit"
            ) from error
        learning = [self.params[name] for name in self._learning]
        found = torch.autograd.grad(losses.sum(), learning, allow_unused=True)
        # fused optimizers read a gradient as if it lay in memory like its parameter
        return losses, {name: None if g is None else g.contiguous() for name, g in zip(self._learning, found)}

    def _objective(self, outputs: Tensor, y: Tensor, weights: Tensor | None) -> Tensor:
        if not self._checked:
            self.plan.settings.loss_rule.check(outputs, self.data.targets)
            self._checked = True
        return objective(self.plan.settings.loss_rule, outputs, y, weights, self.data.items)

    def _enter_phase(self) -> None:
        """Set which parameters learn; at the first step of a phase, redraw what the phase redraws."""
        current = max(i for i, start in enumerate(self._starts) if start <= self.step)
        phase = self.plan.settings.phases[current]
        if self.step == self._starts[current]:
            drawn: set[str] = set()
            for i, seed in enumerate(self.seeds if phase.reinit else ()):
                self._wear(i)
                with _DRAWING:
                    drawn = redraw_(self.template, phase, derive_seed(seed, "phase", current))
                own = dict(self.template.named_parameters())
                with torch.no_grad():
                    for name in drawn:
                        self.params[name][i].copy_(own[name])
            self.updates.forget(self.params if phase.reset_optimizer else drawn)
            self._phase = -1
        if self._phase != current:
            names = trainable(self.template, phase)
            self._learning = tuple(name for name in self.params if self.wanted[name] and name in names)
            for name, parameter in self.params.items():
                parameter.requires_grad_(name in self._learning)
            if self._recorder is not None:
                self._recorder.forget()
            self._phase = current

    def _wear(self, i: int) -> None:
        """Give the template the weights of member i."""
        with torch.no_grad():
            for name, tensor in [*self.template.named_parameters(), *self.template.named_buffers()]:
                tensor.copy_((self.params if name in self.params else self.buffers)[name][i])

    # -- who ended ------------------------------------------------------------------------------------------------------

    def _look(self) -> None:
        """At the end of an epoch: validation losses, and the stopping rule."""
        stop, watch = self.plan.settings.stop, self.watch
        if self.validation is None and stop is None:
            return
        self._check_finite()
        if self.validation is not None:
            found = self._metrics(self.validation)["loss"]
            watch.note_validation(found, self.params, self.buffers, self.step, self.losses)
        if stop is not None and self.step % (stop.every * self.per_epoch) == 0 and not bool(watch.done.all()):
            reached = watch.reached(stop, self._metrics(self._stop_data))
            if self.validation is None or not watch.restore:
                watch.keep(reached, self.params, self.buffers, self.step)
            watch.end(reached, self.losses)
        self._check_validated()

    def _metrics(self, data: MemberData) -> dict[str, Tensor]:
        launched = self.chain if self.device.type != "cpu" else None  # where launches set the pace, few large ones
        at_once = None if launched is None else launched.items_within()
        rule, now = self.plan.settings.loss_rule, (self.params, self.buffers)
        return evaluate_stacked(self.template, *now, data, rule, self.vectorised, at_once)

    def _check_validated(self) -> None:
        """An error for members that ended without a best epoch, or their end."""
        wrong = self.watch.without_best(self.step >= self.plan.total)
        if self.validation is not None and bool(wrong.any()):
            what = "the validation loss of {} members was finite after no epoch"
            self._lose(wrong, what, "check the validation part")

    def _check_finite(self) -> None:
        """An error for members whose loss is not finite, or their end."""
        since = [step % LOOK_EVERY for step in range(self._finite, self.step)]
        losses = self.losses[None] if len(since) == 1 else self._recent[since]
        bad = ~torch.isfinite(losses).cpu() & ~self.watch.done  # (steps, k)
        wrong = bad.any(0)
        if bool(wrong.any()):
            first = self._finite + 1 + int(bad.any(1).nonzero()[0])
            self._finite = self.step
            self._lose(wrong, f"the loss of {{}} members is not finite at step {first}", "check the inputs")
        self._finite = self.step

    def _lose(self, wrong: Tensor, what: str, remedy: str) -> None:
        """Members that have no finite answer."""
        if self.plan.together.diverged == "raise":
            told, seed = what.format(int(wrong.sum())), self.seeds[int(wrong.nonzero()[0])]
            raise NumericalError(f"{told}, first of the member with seed {seed}; lower lr, or {remedy}")
        self.watch.mark_diverged(wrong, self.params, self.buffers, self.step)

    # -- where it is ----------------------------------------------------------------------------------------------------

    def told(self) -> list[str]:
        """What a user should know of how the members were computed."""
        return [*self.notes, *([self._recorder.note] if self._recorder is not None and self._recorder.note else [])]

    def final_losses(self) -> Tensor:
        """Of each member, at its last update."""
        own = self.watch.losses.to(self.losses.device, self.losses.dtype)
        return torch.where(self.watch.done.to(self.losses.device), own, self.losses)

    def state(self) -> GroupState:
        """A copy of everything `load` needs."""
        params, buffers = self.watch.shown(self.params, self.buffers, final=False)
        watch = self.watch.state(params, buffers) | {"last losses": self.final_losses().clone()}
        return GroupState(self.step, params, buffers, self.updates.state(), watch)

    def load(self, state: GroupState) -> None:
        """Continue from `state` as if this group had reached it."""
        with torch.no_grad():
            for own, stored in ((self.params, state.params), (self.buffers, state.buffers)):
                for name, tensor in own.items():
                    tensor.copy_(stored[name])
        self.updates.load(state.optimizer)
        self.watch.load(state.watch, self.device)
        self.losses = state.watch["last losses"].to(self.device)
        self.step, self._phase, self._finite = state.step, -1, state.step
        if self._recorder is not None:
            self._recorder.forget()
