"""Training modes: which layers learn, when, and what is redrawn in between.

A mode is a tuple of phases, run one after the other; `+` composes modes. The four of the feature-learning report
(section 5.1.1) freeze a whole layer, weights and bias; `"first.weight"` and the like choose otherwise.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import nn

from ntkscope.core import Registry, UsageError, derive_seed
from ntkscope.core.checked import Count


@dataclass(frozen=True)
class Phase:
    """A stretch of training in which the parameters that `train` names, less those that `freeze` names, learn.

    A selector is `"first"` or `"last"` (the first or last layer that has parameters), either followed by `.weight`
    or `.bias`, or a pattern on parameter names such as `"layer2.*"`. At its start the parameters that `reinit` names
    are redrawn: by their module's `reset_parameters`, or from `fresh(seed)`, a network built like the one trained.
    Their optimizer state is dropped; `reset_optimizer` drops all of it. `epochs=None` lasts to the end.

    Examples:
        >>> from ntkscope.core import Part
        >>> mode = (Phase(train=("last",), epochs=2), Phase())
        >>> trained = ns.training.fit(model, Part(x, y), lr=0.1, epochs=2, mode=mode).final()
        >>> trained.params["layer1.weight"].equal(model.layer1.weight)
        True
    """

    train: tuple[str, ...] = ("*",)
    freeze: tuple[str, ...] = ()
    reinit: tuple[str, ...] = ()
    epochs: Count | None = None
    reset_optimizer: bool = False
    fresh: Callable[[int], nn.Module] | None = None


Mode = tuple[Phase, ...]
MODES: Registry[Callable[[], Mode]] = Registry("training mode")


@MODES.register("reg")
def reg() -> Mode:
    """All layers learn throughout.

    Examples:
        >>> reg()[0].train
        ('*',)
    """
    return (Phase(),)


@MODES.register("stop-first")
def stop_first(epochs: int = 1) -> Mode:
    """All layers learn for `epochs`; then the first layer stays as it is.

    Examples:
        >>> [(phase.epochs, phase.freeze) for phase in stop_first(epochs=5)]
        [(5, ()), (None, ('first',))]
    """
    return (Phase(epochs=epochs), Phase(freeze=("first",)))


@MODES.register("first-last")
def first_last(epochs: int = 1) -> Mode:
    """Only the first layer learns for `epochs`, then only the last.

    Examples:
        >>> [phase.train for phase in first_last(epochs=5)]
        [('first',), ('last',)]
    """
    return (Phase(train=("first",), epochs=epochs), Phase(train=("last",)))


@MODES.register("reinit")
def reinit(epochs: int = 1, fresh: Callable[[int], nn.Module] | None = None) -> Mode:
    """As stop-first, but the last layer is redrawn when the first is frozen.

    Examples:
        >>> [(phase.freeze, phase.reinit) for phase in reinit(epochs=5)]
        [((), ()), (('first',), ('last',))]
    """
    return (Phase(epochs=epochs), Phase(freeze=("first",), reinit=("last",), fresh=fresh))


def as_mode(mode: str | Iterable[Phase] | None) -> Mode:
    """The mode named, given, or `reg`; every phase but the last must say how long it lasts."""
    phases = reg() if mode is None else MODES[mode]() if isinstance(mode, str) else tuple(mode)
    if not phases:
        raise UsageError("a training mode without phases; expected at least one")
    if any(phase.epochs is None for phase in phases[:-1]):
        raise UsageError("a phase without epochs is followed by another; only the last phase may last to the end")
    return phases


def phase_starts(mode: Mode, per_epoch: int) -> tuple[int, ...]:
    """The step each phase starts at.

    >>> phase_starts(stop_first(epochs=2), per_epoch=10)
    (0, 20)
    """
    starts = [0]
    for phase in mode[:-1]:
        assert phase.epochs is not None
        starts.append(starts[-1] + phase.epochs * per_epoch)
    return tuple(starts)


def checked_starts(model: nn.Module, mode: Mode, per_epoch: int) -> tuple[int, ...]:
    """The step each phase starts at; a selector that selects nothing is refused before anything is trained."""
    for phase in mode:
        trainable(model, phase)
        select(model, phase.reinit)
    return phase_starts(mode, per_epoch)


def select(model: nn.Module, selectors: Iterable[str]) -> set[str]:
    """The names of the parameters that any of `selectors` names.

    >>> sorted(select(nn.Sequential(nn.Linear(1, 2), nn.ReLU(), nn.Linear(2, 1)), ["first", "last.bias"]))
    ['0.bias', '0.weight', '2.bias']
    """
    names = [name for name, _ in model.named_parameters()]
    layers = list(dict.fromkeys(name.rpartition(".")[0] for name in names))
    if not layers:
        raise UsageError(f"{type(model).__name__} has no parameters to train")
    chosen: set[str] = set()
    for selector in selectors:
        head, _, rest = selector.partition(".")
        layer = {"first": layers[0], "last": layers[-1]}.get(head)
        if layer is None or selector in names:
            found = fnmatch.filter(names, selector)
        else:
            prefix = f"{layer}." if layer else ""
            found = [name for name in names if name.rpartition(".")[0] == layer]
            found = [name for name in found if fnmatch.fnmatch(name, prefix + (rest or "*"))]
        if not found:
            raise UsageError(
                f"{selector!r} selects no parameter of {type(model).__name__}; expected 'first', 'last' or a pattern"
                f" on: {', '.join(names[:8])}{', …' if len(names) > 8 else ''}"
            )
        chosen.update(found)
    return chosen


def trainable(model: nn.Module, phase: Phase) -> set[str]:
    """The names of the parameters that learn in `phase`."""
    return select(model, phase.train) - (select(model, phase.freeze) if phase.freeze else set())


def redraw_(model: nn.Module, phase: Phase, seed: int) -> set[str]:
    """Redraw the parameters that `phase.reinit` names, from `seed` alone, and return their names."""
    if not phase.reinit:
        return set()
    names = select(model, phase.reinit)
    parameters = dict(model.named_parameters())
    if phase.fresh is not None:
        source = dict(phase.fresh(seed).named_parameters())
        with torch.no_grad():
            for name in names:
                parameters[name].copy_(source[name])
        return names
    kept = {name: parameter.detach().clone() for name, parameter in parameters.items() if name not in names}
    with torch.random.fork_rng(devices=cuda_devices(model)):
        torch.manual_seed(derive_seed(seed, "reinit"))
        for layer in sorted({name.rpartition(".")[0] for name in names}):
            module = model.get_submodule(layer)
            reset = getattr(module, "reset_parameters", None)
            if reset is None:
                raise UsageError(
                    f"{layer or 'the model'} ({type(module).__name__}) has no reset_parameters() to redraw it with;"
                    " give the phase fresh=, a function of a seed that builds a fresh network"
                )
            reset()
    with torch.no_grad():
        for name, value in kept.items():
            parameters[name].copy_(value)
    return names


def cuda_devices(model: nn.Module) -> list[torch.device]:
    """The GPUs that hold parameters, whose generators a draw moves."""
    return sorted({p.device for p in model.parameters() if p.device.type == "cuda"}, key=str)
