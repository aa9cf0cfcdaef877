"""Ensembles on disk: a `SnapshotStore` whose snapshots are stacked, from which a killed call continues."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ntkscope.core import NumericalError, Snapshot
from ntkscope.core.identity import Answers, network_identity
from ntkscope.core.identity.answers import MOST
from ntkscope.core.numerics import numerics
from ntkscope.core.types import fingerprint
from ntkscope.training import resuming
from ntkscope.training.ensembles.group import Group
from ntkscope.training.ensembles.members import GroupState, Members, Plan
from ntkscope.training.ensembles.stacked import each_member, outputs_of
from ntkscope.training.evaluation import evaluating
from ntkscope.training.store import SnapshotStore

Advance = Callable[[int], None]


def joined(groups: Sequence[Group]) -> GroupState:
    """Where all groups are, as one: the step is that of the group furthest on, behind which only ended groups lie."""
    states = [group.state() for group in groups]
    ahead = max(states, key=lambda state: state.step)
    return GroupState(
        ahead.step,
        _cat([state.params for state in states]),
        _cat([state.buffers for state in states]),
        {
            name: {key: _joined_state(states, name, key, value) for key, value in values.items()}
            for name, values in ahead.optimizer.items()
        },
        _cat([state.watch for state in states]),
    )


def divided(state: GroupState, sizes: Sequence[int]) -> list[GroupState]:
    """What `joined` made of groups of these sizes."""
    found, start = [], 0
    for size in sizes:
        at = slice(start, start + size)
        optimizer = {name: _cut(values, at) for name, values in state.optimizer.items()}
        found.append(
            GroupState(state.step, _cut(state.params, at), _cut(state.buffers, at), optimizer, _cut(state.watch, at))
        )
        start += size
    return found


def as_snapshot(state: GroupState, per_epoch: int) -> Snapshot:
    """A snapshot of stacked parameters, with the mean loss."""
    metrics = {"loss": float(state.watch["last losses"].mean())} if state.step else {}
    return Snapshot(
        state.step,
        state.step / per_epoch,
        dict(state.params),
        dict(state.buffers),
        metrics,
        state.optimizer,
        state.watch,
    )


class Keeper:
    """Keeps an ensemble in a folder: chosen snapshots, and every `seconds` a place to continue from."""

    def __init__(self, folder: str | os.PathLike[str], seconds: float | int) -> None:
        self.store, self._seconds, self._last = SnapshotStore(folder), seconds, time.monotonic()

    def begin(
        self, groups: Sequence[Group], members: Members, plan: Plan, moments: Sequence[int], advance: Advance
    ) -> None:
        """Begin a store for this ensemble, or move the groups to where the store is, after making sure it is the same one."""
        self.store.begin(_described(members, plan, moments), _answers(groups))
        start, latest = joined(groups), self.store.latest()
        if not plan.total:
            return
        kept = self.store.first
        try:
            advance(1)
        except NumericalError as error:
            if kept is None:
                raise
            raise resuming.different(self.store, f"its first update, repeated, fails ({error})") from error
        now = _first_update(groups)
        if kept is None:
            self.store.keep_first(now)
        else:
            resuming.compare_first(self.store, kept, now)
        resumed = start if latest is None else _as_state(latest)
        for group, state in zip(groups, divided(resumed, [len(group.seeds) for group in groups])):
            group.load(state)

    def passing(self, groups: Sequence[Group], per_epoch: int) -> None:
        """Save a place to continue from, if it is time."""
        if time.monotonic() - self._last >= self._seconds:
            self.store.checkpoint(as_snapshot(joined(groups), per_epoch))
            self._last = time.monotonic()


def _as_state(snapshot: Snapshot) -> GroupState:
    return GroupState(snapshot.step, snapshot.params, snapshot.buffers, snapshot.optimizer, snapshot.random)


def _described(members: Members, plan: Plan, moments: Sequence[int]) -> dict[str, Any]:
    """Everything the numbers of an ensemble depend on."""
    told: dict[str, Any] = dict(plan.settings.describe())
    how = plan.together
    for name, values in (("lr", members.lr), ("weight_decay", members.weight_decay)):
        if values is not None:
            told[name] = list(values)
    networks = [network_identity(model) for model in members.models]
    told |= {name: fingerprint([network[name] for network in networks]) for name in networks[0]}
    for name, parts in (("data", members.parts), ("validation", members.validation)):
        contents = {id(part): fingerprint(part.x, part.y, dict(part.extras)) for part in parts or ()}
        told[name] = fingerprint([contents[id(part)] for part in parts or ()])
    return told | {
        "seeds": list(members.seeds),
        "patience": how.patience,
        **({} if how.restore and not how.min_delta else {"restore": how.restore, "min_delta": how.min_delta}),
        "fast": how.fast,
        "diverged": how.diverged,
        "snapshots": tuple(moments),
        "ntkscope": numerics("training"),
    }


def _answers(groups: Sequence[Group]) -> Answers:
    """The members' outputs before training on a few of the training items, in evaluation mode."""

    def ask(items: list[int]) -> Tensor:
        found = []
        for group in groups:
            index = torch.tensor(items, device=group.data.owner.device).expand(len(group.seeds), -1)
            forward = each_member(
                lambda p, b, x, group=group: outputs_of(group.template, p, b, x), (0, 0, 0), group.vectorised
            )
            with evaluating(group.template), torch.no_grad():
                found.append(forward(group.params, group.buffers, group.data.rows(index).x))
        return torch.cat(found)

    return Answers.of(ask, groups[0].data.items, groups[0].device)


def _first_update(groups: Sequence[Group]) -> dict[str, Any]:
    """What the first update did: some parameters after it, to be compared up to rounding, and a hash of all of them."""
    state = joined(groups)
    each = -(-MOST // len(state.params))
    some = [value.flatten()[:: max(1, value.numel() // each)].double().tolist() for value in state.params.values()]
    tensors = (*state.params.items(), *state.buffers.items())
    return resuming.update_told(
        [number for numbers in some for number in numbers], tensors, groups[0].device, f"-{len(groups)}"
    )


def _cat(stacks: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    return {name: torch.cat([stack[name] for stack in stacks]) for name in stacks[0]}


def _joined_state(states: Sequence[GroupState], name: str, key: str, value: Tensor) -> Tensor:
    """One tensor of the optimizer's state; a group that ended before the others may lack it, and needs it no more."""
    if value.ndim == 0:
        return value
    own = [state.optimizer.get(name, {}).get(key) for state in states]
    return torch.cat([torch.zeros_like(s.params[name]) if v is None else v for s, v in zip(states, own)])


def _cut(stack: Mapping[str, Tensor], at: slice) -> dict[str, Tensor]:
    return {name: value[at] if value.ndim else value for name, value in stack.items()}
