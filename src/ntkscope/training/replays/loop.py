"""Loops: a training as something that can be replayed, one's own or one that `fit` recorded."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeAlias

import torch
from jaxtyping import Int64
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel

from ntkscope.core import Inputs, Params, Snapshot, UsageError
from ntkscope.core.identity import identity, network_identity
from ntkscope.core.model.calling import arguments, call, logits
from ntkscope.core.model.copies import own_copy
from ntkscope.core.model.tree import move
from ntkscope.core.random import kept_randomness
from ntkscope.training.evaluation import modes_kept
from ntkscope.training.optimizers import load_optimizer_state, optimizer_state
from ntkscope.training.replays.updates import sgd, update_rules
from ntkscope.training.snapshots import restore, take

Batch: TypeAlias = tuple[Tensor, Inputs, Tensor]


class Loop(ABC):
    """A training loop that can be replayed. Subclass it for a loop of your own: say what a batch is, and its losses.

    Step t draws `batch(t)` and minimises `Σ losses / b` by one step of `optimizer` at `rate(t)` times its rates (where a
    scheduler has set others, times its `initial_lr`), with the model in training mode. Every call must give the same numbers.
    `model` is where the training starts; neither it nor the optimizer, which must have taken no step, is changed. A model that
    draws random numbers while it trains needs `seed(t)`, which the loop passed to `torch.manual_seed` before step t.

    Examples:
        >>> class FullBatch(Loop):
        ...     def batch(self, step):
        ...         return torch.arange(12), x, y
        ...     def losses(self, outputs, targets):
        ...         return nn.functional.cross_entropy(outputs, targets, reduction="none")
        >>> loop = FullBatch(model, torch.optim.SGD(model.parameters(), lr=0.1), items=12, steps=3)
        >>> found = ns.training.replay(loop, lambda model: model(x[:1])[:, 1])
        >>> found.weights.shape, found.certificate.relative_error < 0.01
        (torch.Size([1, 12]), True)
    """

    pace = 1.0  # a factor on all rates, for a training slower than the one that was
    clip: float | None = None  # what `torch.nn.utils.clip_grad_norm_` clips the norm of all gradients to
    final: Params | None = (
        None  # the parameters that the training ended with, to be held to; None where they are not known
    )

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, *, items: int, steps: int) -> None:
        self.rules = update_rules(optimizer, model)
        if any(key not in ("step",) for state in optimizer.state.values() for key in state):
            raise UsageError("the optimizer has taken steps; expected one as it was before training")
        for module in model.modules():
            if isinstance(module, nn.Embedding | nn.EmbeddingBag) and (module.sparse or module.scale_grad_by_freq):
                raise UsageError(
                    f"got {module} with sparse=True or scale_grad_by_freq=True, whose gradient has no second derivative;"
                    " expected neither"
                )
        self.items, self.steps = items, steps
        names = {parameter: name for name, parameter in model.named_parameters()}
        self._groups = [
            {**group, "params": [names[p] for p in group["params"]], "lr": group.get("initial_lr", group["lr"])}
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

    # -- what the replay asks --------------------------------------------------------------------------------------

    def told(self) -> str:
        """What tells this training from others, for a replay that is resumed. Goes over all batches."""
        functions = [
            vars(kind).get(name) for kind in type(self).__mro__ for name in ("batch", "losses", "rate", "seed")
        ]
        steps = [(self.batch(step), self.rate(step), self.seed(step)) for step in range(self.steps)]
        own = {name: value for name, value in vars(self).items() if name not in ("model", "start", "rules", "pace")}
        own["clip"] = self.clip
        return identity(functions, own, self._kind.__qualname__, network_identity(self.model), self.start.params, steps)

    @property
    def sees_scale(self) -> bool:
        """Whether a smaller loss is a slower training; Adam divides by the gradient's size."""
        return all(rule is sgd for rule, _ in self.rules.values())

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    def factor(self, step: int) -> float:
        """The factor on the rates of `optimizer` at this step."""
        return self.pace * self.rate(step)

    def clipped(self, gradients: Params) -> Params:
        """The gradients of a step as the optimizer gets them."""
        if self.clip is None:
            return gradients
        norm = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(value) for value in gradients.values()]))
        share = (self.clip / (norm + 1e-6)).clamp(max=1.0)
        return {name: value * share for name, value in gradients.items()}

    def learning(self, step: int) -> set[str]:
        """The parameters that learn at this step."""
        return self.trained

    def objective(self, state: Snapshot, batch: Batch, params: Params, weights: Tensor) -> Tensor:
        """The loss that the step after `state` minimises, as a function of parameters and of weights on its items."""
        _, x, y = batch
        args, options = arguments(self.model, x)
        real = next(iter(params.values())).dtype
        buffers = {k: v.to(real) if v.is_floating_point() else v for k, v in state.buffers.items()}
        # The fused kernels of attention have no second derivative.
        with modes_kept(self.model), self.randomness(state), sdpa_kernel(SDPBackend.MATH):
            outputs = logits(functional_call(self.model.train(), {**params, **buffers}, args, options))
            return self.weighed(self.losses(outputs, y), weights, state.step)

    def weighed(self, each: Tensor, weights: Tensor, step: int) -> Tensor:
        """The loss of a batch."""
        if each.shape != weights.shape:
            raise UsageError(f"got losses of shape {tuple(each.shape)}; expected one per item, ({len(weights)},)")
        return (weights * each).sum() / len(each)

    @contextmanager
    def randomness(self, state: Snapshot) -> Iterator[None]:
        """The random stream of the step after `state`."""
        with kept_randomness([self.device] if self.device.type == "cuda" else []):
            seed = self.seed(state.step)
            if seed is not None:
                torch.manual_seed(seed)
            before = self._random_states()
            yield
            if seed is None and not all(map(torch.equal, before, self._random_states())):
                raise UsageError(
                    f"{type(self.model).__name__} draws random numbers while it trains (Dropout?); expected seed(step), what"
                    " the loop passed to torch.manual_seed before the step"
                )

    def _random_states(self) -> list[Tensor]:
        on_gpu = self.device.type == "cuda"
        return [torch.get_rng_state(), *([torch.cuda.get_rng_state(self.device)] if on_gpu else [])]

    def path(self, state: Snapshot, until: int, weights: Tensor) -> Iterator[Snapshot]:
        """The states after `state`, one per step, up to step `until`: the training itself, its items weighted."""
        model = self.model
        own = dict(model.named_parameters())
        names: dict[Tensor, str] = {parameter: name for name, parameter in own.items()}
        groups = [{**group, "params": [own[name] for name in group["params"]]} for group in self._groups]
        optimizer = self._kind(groups)  # type: ignore[call-arg]
        rates = [group["lr"] for group in optimizer.param_groups]
        for step in range(state.step, until):
            restore(model, state)
            load_optimizer_state(optimizer, own, state.optimizer)
            learning = self.learning(step)
            for name, parameter in own.items():
                parameter.requires_grad_(name in learning)
            for group, rate in zip(optimizer.param_groups, rates):
                group["lr"] = rate * self.factor(step)
            optimizer.zero_grad(set_to_none=True)
            rows, x, y = self.batch(step)
            with modes_kept(model), torch.enable_grad(), self.randomness(state):
                self.weighed(self.losses(call(model.train(), x), y), weights[rows], step).backward()
            if self.clip is not None:
                torch.nn.utils.clip_grad_norm_(model.parameters(), self.clip)
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


def padding_rows(model: nn.Module) -> dict[str, int]:
    """The rows of embeddings that no gradient reaches."""
    return {
        f"{name}.weight" if name else "weight": module.padding_idx
        for name, module in model.named_modules()
        if isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.padding_idx is not None
    }


def state_bytes(state: Snapshot) -> int:
    """What one state takes."""
    every = [*state.params.values(), *(v for one in state.optimizer.values() for v in one.values())]
    return sum(value.numel() * value.element_size() for value in every)


def precise(batch: Batch, dtype: torch.dtype) -> Batch:
    """The batch with its real numbers in another precision."""
    rows, x, y = batch
    return rows, move(x, None, dtype), move(y, None, dtype)
