"""The run: one network in training, a step at a time. `Trajectory` is what users hold; this is what it drives."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from jaxtyping import Int64
from torch import Tensor, nn

from ntkscope.core import NumericalError, Part, Snapshot, UsageError, derive_seed
from ntkscope.core.model.calling import call
from ntkscope.core.progress import Progress
from ntkscope.training.augment import ItemAugmentation
from ntkscope.training.batches import BatchOrder
from ntkscope.training.evaluation import evaluate, modes_kept
from ntkscope.training.losses import objective
from ntkscope.training.modes import checked_starts, redraw_, trainable
from ntkscope.training.optimizers import forget_state, load_optimizer_state, make_optimizer, optimizer_state
from ntkscope.training.settings import AUTOCAST, Settings, StepReport
from ntkscope.training.snapshots import restore, take

LOOK_EVERY = 64  # steps between checks of the loss on an accelerator, where a check waits for the device


class Run:
    """A network under training. `advance` moves it, `snapshot` copies it, `load` moves it to a snapshot."""

    def __init__(self, model: nn.Module, part: Part, settings: Settings) -> None:
        self.model, self.part, self.settings = model, part, settings
        self.order = BatchOrder(
            len(part),
            len(part) if settings.batch_size is None else settings.batch_size,
            settings.seed,
            settings.drop_last,
        )
        self.per_epoch = self.order.per_epoch
        self.total = settings.total(self.per_epoch)
        self.step, self.stopped = 0, self.total == 0
        self._parameters = dict(model.named_parameters())
        if not self._parameters:
            raise UsageError(f"{type(model).__name__} has no parameters to train")
        self.device = next(iter(self._parameters.values())).device
        self.modes = [module.training for module in model.modules()]
        self._wanted = {name: p.requires_grad for name, p in self._parameters.items()}
        self._starts = checked_starts(model, settings.phases, self.per_epoch)
        self._optimizer = self._fresh_optimizer()
        self._base_lr = [group["lr"] for group in self._optimizer.param_groups]
        self._generator = torch.Generator(device=self.device)
        self._permutation: tuple[int, Tensor] | None = None
        self._checked, self._phase = False, -1
        self._bad = torch.full((), -1, device=self.device, dtype=torch.long)
        self._random = self._first_random()
        self.after_first: Callable[[], None] | None = None  # called once, when the next update is done

    # -- what a snapshot holds ------------------------------------------------------------------------------------

    @property
    def epoch(self) -> float:
        """Epochs done."""
        return self.step / self.per_epoch

    @property
    def done(self) -> bool:
        """Whether the run is finished."""
        return self.stopped or self.step >= self.total

    def snapshot(self, measure: bool = True) -> Snapshot:
        """A frozen copy of where the run is."""
        names: dict[Tensor, str] = {parameter: name for name, parameter in self._parameters.items()}
        return take(
            self.model,
            self.step,
            self.epoch,
            metrics=self.metrics(self.part) if measure and self.settings.measure else None,
            optimizer=optimizer_state(self._optimizer, names),
            random={"seed": self.settings.seed, **{key: value.clone() for key, value in self._random.items()}},
        )

    def load(self, snapshot: Snapshot) -> None:
        """Resume from `snapshot` as if the run had reached it by itself."""
        if snapshot.random.get("seed", self.settings.seed) != self.settings.seed:
            raise UsageError(
                f"the snapshot belongs to a run with seed {snapshot.random['seed']}, this one has seed"
                f" {self.settings.seed}; resume with the same seed, or start from its weights with restore(model, ...)"
            )
        if snapshot.step > self.total:
            raise UsageError(
                f"the snapshot is of step {snapshot.step}; this run ends at step {self.total}: train longer"
            )
        if not snapshot.random:
            raise UsageError("the snapshot does not say where its generators were; resume from one that fit took")
        restore(self.model, snapshot)
        load_optimizer_state(self._optimizer, self._parameters, snapshot.optimizer)
        self._random = {key: snapshot.random.get(key, own).clone().cpu() for key, own in self._random.items()}
        self.step = snapshot.step
        self.stopped = self.total == snapshot.step or (self._time_to_look() and self._good_enough())

    def metrics(self, part: Part) -> dict[str, float]:
        """Loss and accuracy on `part`, in evaluation mode; item weights are those of the training part."""
        return evaluate(
            self.model,
            part,
            loss=self.settings.loss_rule,
            batch_size=self.settings.batch_size and max(self.settings.batch_size, 1024),
            weights="weights" if "weights" in part.extras else None,
            channels_last=self.settings.channels_last,
        )

    # -- moving ---------------------------------------------------------------------------------------------------

    def advance(
        self,
        until: int,
        *,
        bar: Progress[None] | None = None,
        every: float | int = math.inf,
        keep: Callable[[], None] | None = None,
    ) -> None:
        """Train until `until` updates are done or the stopping rule holds; call `keep` about every `every` seconds."""
        last = time.monotonic()
        with self._training():
            while self.step < until and not self.stopped:
                self._enter_phase()
                self._update()
                if self.after_first is not None:
                    self.after_first()
                    self.after_first = None
                if bar is not None:
                    bar.advance()
                if self._time_to_look():
                    self.stopped = self._good_enough()
                if keep is not None and self.step < until and time.monotonic() - last >= every:
                    self._check_finite()
                    self._capture_random()
                    keep()
                    last = time.monotonic()
            self._check_finite()

    def rehearse(self) -> None:
        """Make one update without reporting it; `load` restores the run."""
        with self._training(forget=False):
            self._enter_phase()
            self._update(watched=False)

    def _update(self, watched: bool = True) -> None:
        settings, model = self.settings, self.model
        _, batch = self.batch(self.step)
        x = batch.x
        if settings.channels_last:
            x = x.contiguous(memory_format=torch.channels_last)
        factor = settings.rate.factor(self.step, self.per_epoch, self.total)
        for group, lr in zip(self._optimizer.param_groups, self._base_lr):
            group["lr"] = lr * factor
        self._optimizer.zero_grad(set_to_none=True)
        with self._autocast():
            outputs = call(model, x)
        if settings.autocast is not None:
            outputs = outputs.float()
        if not self._checked:
            settings.loss_rule.check(outputs.detach(), self.part.y)
            self._checked = True
        loss = objective(settings.loss_rule, outputs, batch.y, batch.extras.get("weights"), len(self.part))
        loss.backward()
        self._optimizer.step()
        self.step += 1
        self._note(loss.detach())
        if watched and settings.on_step is not None:
            report = StepReport(self.step, self.epoch, loss.detach(), self._optimizer.param_groups[0]["lr"])
            settings.on_step(report)

    def batch(self, step: int) -> tuple[Int64[Tensor, " b"], Part]:
        """The numbers of the items of the update after `step` updates, and the items, their inputs changed at random where the
        settings say so."""
        epoch = step // self.per_epoch
        if self._permutation is None or (self._permutation[0] != epoch and not self.order.full):
            self._permutation = (epoch, self.order.permutation(epoch).to(self.part.y.device))
        items = self._permutation[1][self.order.place(step)]
        batch = self.part if self.order.full else self.part.take(items).to(self.device)
        augment, seed = self.settings.augment, self.settings.seed
        if augment is None:
            return items, batch
        if isinstance(augment, ItemAugmentation):
            keys = torch.tensor(augment.keys(seed, epoch), device=self.device)
            x = augment.apply(batch.x, items.to(self.device), keys.expand(len(items), -1))
        else:
            self._generator.manual_seed(derive_seed(seed, "augment", step))
            x = augment(batch.x, self._generator)
        return items, Part(x, batch.y, batch.extras)

    def learning(self, step: int) -> set[str]:
        """The parameters that the update after `step` updates changes."""
        names = trainable(self.model, self.settings.phases[self._phase_at(step)])
        return {name for name in names if self._wanted[name]}

    def _phase_at(self, step: int) -> int:
        return max(i for i, start in enumerate(self._starts) if start <= step)

    def _enter_phase(self) -> None:
        """Set which parameters learn; at the first step of a phase, redraw what the phase redraws."""
        current = self._phase_at(self.step)
        phase = self.settings.phases[current]
        if self.step == self._starts[current]:
            drawn = redraw_(self.model, phase, derive_seed(self.settings.seed, "phase", current))
            forget_state(
                self._optimizer,
                self._fresh_optimizer(),
                [self._parameters[name] for name in (self._parameters if phase.reset_optimizer else drawn)],
            )
            self._phase = -1
        if self._phase != current:
            names = self.learning(self.step)
            for name, parameter in self._parameters.items():
                parameter.requires_grad_(name in names)
            self._phase = current

    def _fresh_optimizer(self) -> torch.optim.Optimizer:
        return make_optimizer(self.settings.optimizer, self._parameters.values(), **self.settings.update_rule())

    def _time_to_look(self) -> bool:
        stop = self.settings.stop
        return stop is not None and self.step > 0 and self.step % (stop.every * self.per_epoch) == 0

    def _good_enough(self) -> bool:
        stop = self.settings.stop
        return stop is not None and stop.reached(self.metrics(stop.part or self.part))

    # -- numbers that are not ---------------------------------------------------------------------------------------

    def _note(self, loss: Tensor) -> None:
        """Remember the first step whose loss was not finite, without waiting for the device."""
        if self.device.type == "cpu":
            if not math.isfinite(loss.item()):
                self._bad.fill_(self.step)
                self._check_finite()
            return
        wrong = ~torch.isfinite(loss) & (self._bad < 0)
        self._bad = torch.where(wrong, torch.full_like(self._bad, self.step), self._bad)
        if self.step % LOOK_EVERY == 0:
            self._check_finite()

    def _check_finite(self) -> None:
        step = int(self._bad)
        if step >= 0:
            raise NumericalError(
                f"the loss is not finite at step {step} (epoch {step / self.per_epoch:.3g}) with learning rate"
                f" {self.settings.lr:g}; lower lr, or check the inputs for NaN and very large numbers"
            )

    # -- surroundings -------------------------------------------------------------------------------------------------

    @contextmanager
    def _training(self, forget: bool = True) -> Iterator[None]:
        """Training mode and the run's own random stream; the caller's modes, gradient flags and stream are restored. With
        `forget` gradients are dropped at the end."""
        devices = [self.device] if self.device.type == "cuda" else []
        with modes_kept(self.model), torch.random.fork_rng(devices=devices), torch.enable_grad():
            torch.set_rng_state(self._random["cpu"])
            if devices:
                torch.cuda.set_rng_state(self._random["cuda"], self.device)
            self.model.train()
            self._phase = -1
            try:
                yield
            finally:
                self._capture_random()
                if forget:
                    self._optimizer.zero_grad(set_to_none=True)
                for name, parameter in self._parameters.items():
                    parameter.requires_grad_(self._wanted[name])

    def _first_random(self) -> dict[str, Tensor]:
        seed = derive_seed(self.settings.seed, "forward")
        state = {"cpu": torch.Generator().manual_seed(seed).get_state()}
        if self.device.type == "cuda":
            state["cuda"] = torch.Generator(device=self.device).manual_seed(seed).get_state()
        return state

    def _capture_random(self) -> None:
        self._random["cpu"] = torch.get_rng_state()
        if "cuda" in self._random:
            self._random["cuda"] = torch.cuda.get_rng_state(self.device)

    def _autocast(self) -> AbstractContextManager[object]:
        if self.settings.autocast is None:
            return nullcontext()
        return torch.autocast(self.device.type, dtype=AUTOCAST[self.settings.autocast])
