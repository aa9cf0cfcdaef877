"""Adapting a trained network to other labels: a linear probe, fine-tuning, adapters, and random features to compare with."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ntkscope.core import Part, Registry, Snapshot, UsageError, derive_seed
from ntkscope.core.checked import Count, NonNegative, Positive, checked, renamed
from ntkscope.core.model.copies import own_copy
from ntkscope.training.evaluation import evaluate
from ntkscope.training.fit import fit
from ntkscope.training.modes import cuda_devices
from ntkscope.training.moments import Every
from ntkscope.training.settings import Settings, as_settings
from ntkscope.training.snapshots import restore
from ntkscope.training.transfer.heads import FEW, find_head, head_inputs, replace_head
from ntkscope.training.transfer.lora import adapter_targets, add_adapters
from ntkscope.training.transfer.redraw import redraw_network

PROBE: dict[str, Any] = {"optimizer": "adam", "lr": 1e-3}
DEFAULTS: dict[str, dict[str, Any]] = {
    "linear-probe": PROBE,
    "random-features": PROBE,
    "fine-tune": {"optimizer": "adamw", "lr": 2e-5, "weight_decay": 0.01},
    "lora": {"optimizer": "adamw", "lr": 1e-4, "weight_decay": 0.01},
}
RESERVED = ("snapshots", "mode", "measure", "dtype")
OF_INPUTS = ("augment", "channels_last")  # settings that a probe, trained on features, cannot have


@dataclass(frozen=True, eq=False)
class Adaptation:
    """What `adaptation` found: the adapted network and how it was chosen."""

    model: nn.Module
    """A network like the one given, in evaluation mode."""
    method: str
    head: str
    """The name of the readout that was drawn and trained."""
    parameters: int
    """How many numbers were trained."""
    epoch: int
    """The epoch whose weights the network has."""
    validation: tuple[Mapping[str, float], ...] = ()
    """Loss and accuracy on the validation part after each epoch."""


@checked
@dataclass(frozen=True, eq=False)
class MethodOptions:
    """What the methods of `adapt` take besides the settings of a run."""

    standardize: bool = True
    std: NonNegative | None = 0.02
    rank: Count = 8
    alpha: Positive = 16.0
    targets: Iterable[str] | None = None

    def __post_init__(self) -> None:
        if isinstance(self.targets, str):
            raise UsageError(
                f"got targets={self.targets!r}, one text; expected several names, such as ({self.targets!r},)"
            )
        if self.targets is not None:
            object.__setattr__(self, "targets", tuple(self.targets))


@dataclass(frozen=True, eq=False)
class _Job:
    """One adaptation: a network of our own with its new head, the data, and the settings."""

    model: nn.Module
    head: str
    part: Part
    validation: Part | None
    settings: Settings
    method: MethodOptions
    progress: bool


@dataclass(frozen=True, eq=False)
class _Trained:
    model: nn.Module
    parameters: int
    epoch: int
    validation: tuple[Mapping[str, float], ...]


METHODS: Registry[Callable[[_Job], _Trained]] = Registry("adaptation method")


@renamed(standardise="standardize")
def adapt(model: nn.Module, part: Part, *, method: str = "linear-probe", **options: Any) -> nn.Module:
    """A copy of `model` adapted to `part`: a new head, and as much of the rest as `method` says; `model` stays as it is.

    - "linear-probe": the head alone, a logistic regression on what the last hidden layer gives in evaluation mode. These
      features are computed once; `standardize=True` scales them by the training items and puts the scaling into the head.
    - "random-features": the same on weights drawn afresh, matrices with standard deviation `std=0.02` (`redraw_network`).
    - "fine-tune": all weights that require gradients.
    - "lora": adapters of `rank=8`, scaled by `alpha=16`, on the layers whose names end with one of `targets` (None:
      attention's matrices), and the head; the adapters are added to the matrices, so that the result has the layers and
      parameters of `model`.

    The head is the linear layer that returns the outputs (`head=`: its name), drawn anew with as many outputs as `classes=`.
    With a `validation=` part the weights of the epoch with the highest accuracy there are taken (ties: the lower loss, then
    the earlier epoch; the lowest loss where targets are no classes), else those of the last. `options` are those of `Settings`:
    ten epochs in batches of 16 unless they say otherwise; Adam at 1e-3 for probes, AdamW at 2e-5 for fine-tuning and at 1e-4
    for adapters. The result is in evaluation mode, as kernels need it. Hu et al. (2022) for adapters.

    Examples:
        >>> body = nn.Sequential(nn.Linear(1, 4), nn.Tanh(), nn.Linear(4, 2))
        >>> part = Part(torch.tensor([[-1.0], [1.0]]), torch.tensor([0, 1]))
        >>> adapt(body, part, lr=0.1, epochs=50)(part.x).argmax(1).tolist()
        [0, 1]
    """
    return adaptation(model, part, method=method, **options).model


@renamed(standardise="standardize")
def adaptation(
    model: nn.Module,
    part: Part,
    *,
    method: str = "linear-probe",
    validation: Part | None = None,
    classes: Count | None = None,
    head: str | None = None,
    progress: bool = False,
    **options: Any,
) -> Adaptation:
    """`adapt`, with what it found.

    Examples:
        >>> from ntkscope.core import Part
        >>> found = adaptation(model, Part(x, 1 - y), lr=0.5, epochs=50)
        >>> found.method, found.head, found.model(x).argmax(1).equal(1 - y)
        ('linear-probe', 'readout', True)
    """
    train = METHODS[method]
    _check(model, part, validation)
    own = MethodOptions(**{f.name: options.pop(f.name) for f in fields(MethodOptions) if f.name in options})
    _check_options(method, options)
    settings = _settings(method, part, options)
    made = own_copy(model, "that copy is trained").to(settings.device)
    where = next(made.parameters()).device
    name = find_head(made, part.take(range(min(FEW, len(part)))).to(where).x, head)
    made = replace_head(made, name, classes, derive_seed(settings.seed, "adapt"))
    _check_labels(part, validation, made.get_submodule(name), settings)
    done = train(_Job(made, name, part, validation, settings, own, progress))
    return Adaptation(done.model.eval(), method, name, done.parameters, done.epoch, done.validation)


@METHODS.register("linear-probe")
def _linear_probe(job: _Job) -> _Trained:
    head = job.model.get_submodule(job.head)
    assert isinstance(head, nn.Linear)
    features = head_inputs(job.model, job.head, job.part.x)
    mean, scale = torch.zeros_like(features[0]), torch.ones_like(features[0])
    if job.method.standardize:
        mean, scale = _moments(features)
        if head.bias is None:
            mean = torch.zeros_like(mean)  # nowhere to put it
    held = None
    if job.validation is not None:
        held = Part((head_inputs(job.model, job.head, job.validation.x) - mean) / scale, job.validation.y)
    probe = copy.deepcopy(head)  # a layer of ours, from replace_head
    part = Part((features - mean) / scale, job.part.y, job.part.extras)
    found = _train(probe, part, held, job.settings, job.progress)
    with torch.no_grad():  # W (z - mean) / scale + b, as one linear map of z
        head.weight.copy_(probe.weight / scale)
        if head.bias is not None:
            head.bias.copy_(probe.bias - (probe.weight.double() @ (mean / scale).double()).to(probe.bias))
    return _Trained(job.model, _count(probe), found.epoch, found.validation)


@METHODS.register("random-features")
def _random_features(job: _Job) -> _Trained:
    head = copy.deepcopy(job.model.get_submodule(job.head))  # a layer of ours
    redraw_network(job.model, derive_seed(job.settings.seed, "random features"), job.method.std)
    job.model.get_submodule(job.head).load_state_dict(head.state_dict())
    return _linear_probe(job)


@METHODS.register("fine-tune")
def _fine_tune(job: _Job) -> _Trained:
    return _train(job.model, job.part, job.validation, job.settings, job.progress)


@METHODS.register("lora")
def _lora(job: _Job) -> _Trained:
    wanted = {name: p.requires_grad for name, p in job.model.named_parameters()}
    names = adapter_targets(job.model, job.head, job.method.targets)
    with torch.random.fork_rng(devices=cuda_devices(job.model)):
        torch.manual_seed(derive_seed(job.settings.seed, "adapters"))
        adapted = add_adapters(job.model, names, rank=job.method.rank, alpha=job.method.alpha)
    job.model.get_submodule(job.head).requires_grad_(True)
    found = _train(job.model, job.part, job.validation, job.settings, job.progress)
    merged: nn.Module = adapted.merge_and_unload()
    for name, parameter in merged.named_parameters():
        parameter.requires_grad_(wanted[name])
    return _Trained(merged, found.parameters, found.epoch, found.validation)


def _train(model: nn.Module, part: Part, validation: Part | None, settings: Settings, progress: bool) -> _Trained:
    """Train `model` in place; with a validation part, leave it at its best epoch there."""
    count = _count(model)
    if validation is None:
        last = fit(model, part, settings, snapshots="final", progress=progress).final()
        return _Trained(model, count, round(last.epoch), ())
    rows: list[Mapping[str, float]] = []
    best: tuple[tuple[float, float], Snapshot] | None = None
    for snapshot in fit(model, part, settings, snapshots=Every(1, "epoch"), progress=progress):
        if snapshot.step == 0:
            continue
        found = evaluate(model, validation, loss=settings.loss_rule)
        rows.append({"epoch": round(snapshot.epoch, 6), **found})
        rank = (found.get("accuracy", 0.0), -found["loss"])
        if best is None or rank > best[0]:
            best = rank, snapshot
    if best is None:
        raise UsageError("got no epochs to choose from by the validation part; expected epochs= of at least 1")
    restore(model, best[1])
    return _Trained(model, count, round(best[1].epoch), tuple(rows))


def _moments(features: Float[Tensor, "n d"]) -> tuple[Float[Tensor, " d"], Float[Tensor, " d"]]:
    """Mean and standard deviation of each feature; 1 for one that is constant up to rounding."""
    exact = features.double()
    mean, scale = exact.mean(0), exact.std(0, correction=0)
    unit = torch.finfo(features.dtype).eps * exact.abs().amax(0) * 8
    return mean.to(features), torch.where(scale > unit, scale, torch.ones_like(scale)).to(features)


def _count(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters() if p.requires_grad)


def _settings(method: str, part: Part, options: Mapping[str, Any]) -> Settings:
    defaults = {**DEFAULTS.get(method.lower(), PROBE), "epochs": 10, "batch_size": 16, "measure": False}
    if "steps" in options:
        del defaults["epochs"]
    chosen = {**defaults, **options}
    if chosen["batch_size"] is not None:
        chosen["batch_size"] = min(chosen["batch_size"], len(part))
    return as_settings(None, chosen)


def _check(model: nn.Module, part: Part, validation: Part | None) -> None:
    if not any(True for _ in model.parameters()):
        raise UsageError(f"{type(model).__name__} has no parameters to adapt")
    for name, value in (("part", part), ("validation", validation)):
        if value is not None and len(value) == 0:
            raise UsageError(f"got an empty {name} part; expected at least one item")


def _check_options(method: str, options: Mapping[str, Any]) -> None:
    taken = [name for name in RESERVED if name in options]
    if taken:
        raise UsageError(f"got {taken[0]}=, which adapt sets itself; expected it left out")
    given = [name for name in OF_INPUTS if options.get(name)]
    if given and METHODS[method] in (_linear_probe, _random_features):
        raise UsageError(
            f"got {given[0]}= with method={method!r}, which is trained on features computed once; expected it left out, or"
            " method='fine-tune'"
        )


def _check_labels(part: Part, validation: Part | None, head: nn.Module, settings: Settings) -> None:
    """Class numbers that the new head has no output for are refused before anything is trained."""
    outputs = int(head.out_features)  # type: ignore[arg-type]
    for each in (part, validation):
        if each is None or not settings.loss_rule.names_classes(each.y) or each.y.ndim != 1 or outputs == 1:
            continue
        if int(each.y.min()) < 0 or int(each.y.max()) >= outputs:
            raise UsageError(
                f"got labels from {int(each.y.min())} to {int(each.y.max())} for a head of {outputs} outputs; expected 0 to"
                f" {outputs - 1}: give classes=, the number of classes"
            )
