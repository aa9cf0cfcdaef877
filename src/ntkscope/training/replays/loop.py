"""Loops: a training as something that can be replayed, one's own or one that `fit` recorded."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from jaxtyping import Int64
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel

from ntkscope.core import Inputs, Params, Snapshot, UsageError
from ntkscope.core.identity import identity
from ntkscope.core.model.calling import arguments, call, logits
from ntkscope.core.model.copies import own_copy
from ntkscope.core.model.tree import move
from ntkscope.core.random import kept_randomness
from ntkscope.training.evaluation import modes_kept
from ntkscope.training.optimizers import load_optimizer_state, optimizer_state
from ntkscope.training.replays.updates import update_rules
from ntkscope.training.snapshots import restore, take


class Loop(ABC):
    """A training loop that can be replayed. Subclass it for a loop of your own: say what a batch is, and its losses.

    Step t draws `batch(t)`, minimises `Σ losses / b` by one step of `optimizer` at `rate(t)` times its rates, with the model in
    training mode. Every call must give the same numbers. `model` is where the training starts; neither it nor the optimizer,
    which must have taken no step, is changed. A model that draws random numbers while it trains needs `seed(t)`, which the loop
    passed to `torch.manual_seed` before the forward pass of step t.
    """

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, *, items: int, steps: int) -> None:
        if optimizer.state:
            raise UsageError("the optimizer has taken steps; expected one as it was before training")
        self.rules = update_rules(optimizer, model)
        self.items, self.steps = items, steps
        self._groups = [
            {**group, "params": [name for name, p in model.named_parameters() if any(p is q for q in group["params"])]}
            for group in optimizer.param_groups
        ]
        self._kind = type(optimizer)
        self.start = take(model, 0, 0)
        self.model = own_copy(model, "a replay must not change the model").train()
        self.trained = {name for name, p in model.named_parameters() if p.requires_grad}

    # -- what a subclass says --------------------------------------------------------------------------------------

    @abstractmethod
    def batch(self, step: int) -> tuple[Int64[Tensor, " b"], Inputs, Tensor]:
        """The positions of step's items among the training points, their inputs and their targets."""

    @abstractmethod
    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The loss of each item, (b,)."""

    def rate(self, step: int) -> float:
        """The factor on the learning rates at this step."""
        return 1.0

    def seed(self, step: int) -> int | None:
        """What the loop seeds PyTorch's generator with before this step's forward pass."""
        return None

    def told(self) -> str:
        """What tells this training from others, for a replay that is resumed."""
        ends = [self.batch(step) for step in {0, max(0, self.steps - 1)}]
        rules = {name: options for name, (_, options) in self.rules.items()}
        return identity(type(self).__qualname__, self.start.params, self.start.buffers, self.steps, rules, ends)

    # -- what the replay asks --------------------------------------------------------------------------------------

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    def learning(self, step: int) -> set[str]:
        """The parameters that learn at this step."""
        return self.trained

    def objective(
        self, state: Snapshot, batch: tuple[Tensor, Inputs, Tensor], params: Params, weights: Tensor
    ) -> Tensor:
        """The loss that the step after `state` minimises, as a function of parameters and of weights on its items."""
        _, x, y = batch
        with self.randomness(state), sdpa_kernel(SDPBackend.MATH):  # the fused kernels have no second derivative
            args, options = arguments(self.model, x)
            dtype = next(iter(params.values())).dtype
            buffers = {k: v.to(dtype) if v.is_floating_point() else v for k, v in state.buffers.items()}
            outputs = logits(functional_call(self.model, {**params, **buffers}, args, options))
            each = self.losses(outputs, y)
        if each.ndim != 1:
            raise UsageError(f"got losses of shape {tuple(each.shape)}; expected one per item, ({len(weights)},)")
        return self.weighed(each, weights, state.step)

    def weighed(self, each: Tensor, weights: Tensor, step: int) -> Tensor:
        return (weights * each).sum() / len(each)

    @contextmanager
    def randomness(self, state: Snapshot) -> Iterator[None]:
        """The random stream of the step after `state`."""
        with kept_randomness([self.device] if self.device.type == "cuda" else []):
            seed = self.seed(state.step)
            if seed is not None:
                torch.manual_seed(seed)
            before = torch.get_rng_state()
            yield
            if seed is None and not torch.equal(before, torch.get_rng_state()):
                raise UsageError(
                    f"{type(self.model).__name__} draws random numbers while it trains (Dropout?); expected seed(step), what"
                    " the loop passed to torch.manual_seed before the step"
                )

    def path(self, state: Snapshot, until: int, weights: Tensor) -> Iterator[Snapshot]:
        """The states after `state`, one per step, up to step `until`: the training itself, its items weighted."""
        model = self.model
        restore(model, state)
        own = dict(model.named_parameters())
        groups = [{**group, "params": [own[name] for name in group["params"]]} for group in self._groups]
        optimizer = self._kind(groups)  # type: ignore[call-arg]
        load_optimizer_state(optimizer, own, state.optimizer)
        rates = [group["lr"] for group in optimizer.param_groups]
        names: dict[Tensor, str] = {parameter: name for name, parameter in own.items()}
        for step in range(state.step, until):
            learning = self.learning(step)
            for name, parameter in own.items():
                parameter.requires_grad_(name in learning)
            for group, rate in zip(optimizer.param_groups, rates):
                group["lr"] = rate * self.rate(step)
            optimizer.zero_grad(set_to_none=True)
            rows, x, y = self.batch(step)
            with modes_kept(model), torch.enable_grad(), self.randomness(state):
                outputs = call(model.train(), x)
                self.weighed(self.losses(outputs, y), weights[rows], step).backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            state = take(model, step + 1, 0, optimizer=optimizer_state(optimizer, names))
            yield state


def refuse_moving_buffers(loop: Loop, before: Snapshot, after: Snapshot) -> None:
    """Statistics that a step moves, as BatchNorm's running mean, are part of what is learned but have no derivative."""
    for name, value in after.buffers.items():
        if not torch.equal(value, before.buffers[name]):
            owner = name.rpartition(".")[0]
            kind = type(loop.model.get_submodule(owner)).__name__
            raise UsageError(
                f"training changes {name!r} of {owner or 'the model'} ({kind}), which is no parameter, so a replay would miss"
                " it; expected a network without running statistics: use GroupNorm or LayerNorm, or track_running_stats=False"
            )


def state_bytes(state: Snapshot) -> int:
    """What one state takes."""
    every = [*state.params.values(), *(v for one in state.optimizer.values() for v in one.values())]
    return sum(value.numel() * value.element_size() for value in every)


def precise(batch: tuple[Tensor, Inputs, Tensor], dtype: torch.dtype) -> tuple[Tensor, Inputs, Tensor]:
    """The batch with its real numbers in another precision."""
    rows, x, y = batch
    return rows, move(x, None, dtype), move(y, None, dtype)
