"""The verdict: lazy or rich, and the evidence for it.

Training is lazy when the network stays in the tangent plane of its initial weights, `f(w₁) ≈ f(w₀) + J₀ (w₁ - w₀)`, and its
tangent kernel does not change (Jacot et al. 2018; Chizat, Oyallon & Bach 2019). Both are measured directly, on items the
network was and was not trained on, from its weights before and after. Without the initial weights, nothing that can be
observed of a trained network tells the two apart: a kernel that sorts the classes well may have done so from the start.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from ntkscope.core import NumericalError
from ntkscope.linalg import Gram
from ntkscope.machines import KernelPair, joined
from ntkscope.measures import change as measures
from ntkscope.measures.alignment import centred_alignment, kernel_target_alignment
from ntkscope.tangent import Jacobian
from ntkscope.xray.context import Context
from ntkscope.xray.network import displacement, outputs
from ntkscope.xray.plan import EXACT
from ntkscope.xray.result import Result

LAST = "ck"  # the kernel of the last layer's features


@dataclass(frozen=True)
class Threshold:
    """A value up to `lazy` indicates lazy, from `rich` on rich, in between neither; `reason` explains the thresholds."""

    lazy: float
    rich: float
    reason: str

    def says(self, value: float) -> str:
        return "lazy" if value <= self.lazy else "rich" if value >= self.rich else "neither"

    def position(self, value: float) -> float:
        """0 well on the lazy side, 1 well on the rich side; beyond half or twice a threshold counts as well."""
        low, high = math.log(self.lazy / 2), math.log(2 * self.rich)
        return min(1.0, max(0.0, (math.log(max(value, 1e-12)) - low) / (high - low)))


# Between the two thresholds lie values measured on networks that are neither, such as wide ones under Adam (errors of 0.4
# to 0.6). On digits, orthant shells and logistic boundaries, widths from 512 in NTK parametrisation under gradient descent have
# linearisation errors up to 0.26, and small and mean-field starts that learned have at least 0.85.
LINEARISATION = Threshold(
    0.4,
    0.65,
    "below 0.4 the tangent plane at the start explains over 84 % of the change in square, above 0.65 under 58 %",
)
KERNEL_CHANGE = Threshold(0.75, 1.0, "a kernel that changed by its own size is another kernel")
RELATIVE = "‖K₁ - K₀‖ / ‖K₀‖, relative to the initial kernel: a kernel that only grew counts too"
ROTATION = Threshold(
    0.02,
    0.1,
    "the change of direction, which growth does not touch;"
    " a wide lazy network's kernel rotates by about one over its width; learning features rotates it by tenths",
)
WEIGHTS = Threshold(0.1, 0.5, "supports only: a very wide network moves each weight little in either regime")
GAIN = Threshold(
    0.03,
    0.1,
    "how much closer to the network, in τ, a fit of the labels (or targets) on the trained trace-NTK is than on the initial",
)


@dataclass(frozen=True)
class Observations:
    """What was measured of a network before and after training; None where it could not be."""

    linearisation: float | None = None
    kernel_change: float | None = None
    centred_change: float | None = None
    rotation: float | None = None
    conjugate_rotation: float | None = None
    weights: float | None = None
    alignment_before: float | None = None
    alignment_after: float | None = None
    tau_before: float | None = None
    tau_after: float | None = None
    agreement_before: float | None = None
    agreement_after: float | None = None
    unrelated: bool = False
    still: bool = False
    learned: bool = True
    items: int = 0
    alignment_now: float | None = None


@dataclass(frozen=True)
class Evidence(Result):
    """One measured value and what it indicates."""

    what: str
    value: float
    says: str
    note: str


@dataclass(frozen=True)
class Verdict:
    """`word`: lazy, rich, in between, or not enough evidence; `score` from 0 (lazy) to 1 (rich), None without evidence."""

    word: str
    score: float | None
    why: str
    confidence: str
    evidence: tuple[Evidence, ...]


def judge(seen: Observations) -> Verdict:
    """The verdict on what was seen: the linearisation error, which is the definition, and the kernel, which must agree.

    Lazy: the tangent plane at the start explains what training did, and the kernel did not change, uncentred or centred (a
    constant part hides changes, a small remainder exaggerates them). Rich: the plane does not, and the kernel changed or
    rotated. Otherwise: in between.

    >>> judge(Observations(linearisation=0.05, kernel_change=0.02, rotation=0.001)).word
    'lazy'
    >>> judge(Observations(linearisation=0.95, kernel_change=20.0, rotation=0.3)).word
    'rich'
    >>> judge(Observations()).word
    'not enough evidence'
    """
    evidence = tuple(_evidence(seen))
    if seen.still:
        return _undecided("The weights given as initial are those of the trained network: nothing changed.", evidence)
    if seen.unrelated:
        return _undecided(
            "The weights given as initial have nothing in common with the trained ones: they look like a different"
            " initialisation, not like the start of this network.",
            evidence,
        )
    if not seen.learned:
        return _undecided(
            "On its training items the network does no better than always predicting the most frequent class, or the mean"
            " of the targets: it has not learned yet, so its regime cannot be told.",
            evidence,
            "Train the network further for a verdict.",
        )
    if seen.linearisation is None or seen.kernel_change is None or not math.isfinite(seen.linearisation):
        return _undecided(
            "The network's weights before training were not given; a trained network alone looks the same in both cases.",
            evidence,
        )
    changes = [value for value in (seen.kernel_change, seen.centred_change) if value is not None]
    side = LINEARISATION.says(seen.linearisation)
    stayed = KERNEL_CHANGE.says(min(changes)) == "lazy"
    turned = seen.rotation is not None and ROTATION.says(seen.rotation) == "rich"
    moved = KERNEL_CHANGE.says(max(changes)) == "rich" or turned
    score = LINEARISATION.position(seen.linearisation)
    explained = (
        f"The tangent plane at the start misses {100 * seen.linearisation:.0f} % of what training changed"
        if seen.linearisation < 1
        else "The tangent plane at the start explains nothing of what training changed"
    )
    change = _changed(max(changes), seen)
    if side == "lazy" and stayed:
        word, why = "lazy", f"{explained}, and {_changed(min(changes), seen)}."
    elif side == "rich" and moved:
        word, why = "rich", f"{explained}, and {change}."
    else:
        word, why = "in between", f"{explained}, while {change}: neither wholly lazy nor wholly rich."
    sides = [item.says for item in evidence if item.says != "neither"]
    agreeing = sum(side == word for side in sides)
    confidence = (
        f"Measured on {seen.items:,} items from the weights before and after."
        + (
            f" {agreeing} of {len(sides)} pieces of evidence that indicate a side agree."
            if word in ("lazy", "rich")
            else ""
        )
        + " The effects of batch normalisation, weight decay and learning-rate changes are included and not separated."
    )
    return Verdict(word, score, why, confidence, evidence)


def _changed(change: float, seen: Observations) -> str:
    """How much the kernel changed: the difference relative to the initial kernel's norm, of which growth alone can be most,
    and the rotation, which growth does not touch. `change` is that of the kernel or of the centred one.

    >>> print(_changed(272.3, Observations(kernel_change=272.3, rotation=0.013)))
    the difference between the kernels is 272 times the initial kernel's norm and its direction turned by 0.013
    (1 - CKA; 0: only its scale changed, 1: unrelated)
    """
    which = "kernels" if change == seen.kernel_change else "centred kernels"
    said = f"the difference between the {which} is {_times(change)} the initial kernel's norm"
    if seen.rotation is None or not math.isfinite(seen.rotation):
        return said
    return f"{said} and its direction turned by {seen.rotation:.2g} (1 - CKA; 0: only its scale changed, 1: unrelated)"


def _times(factor: float) -> str:
    """A factor in plain words.

    >>> _times(0.031), _times(2.71), _times(452.3), _times(0.9996), _times(1e7)
    ('3.1 % of', '2.7 times', '452 times', '100 % of', 'over 1,000 times')
    """
    if factor > 1000:
        return "over 1,000 times"  # the initial network's kernel was next to nothing
    if factor < 1:
        return "under 0.1 % of" if factor < 0.001 else f"{100 * factor:.{0 if factor >= 0.1 else 1}f} % of"
    return f"{factor:.1f} times" if factor < 10 else f"{factor:,.0f} times"


NEEDED = "Give the weights before training (initial=, --initial-weights) for a verdict."


def out_of_time() -> Verdict:
    """Where the time was over before anything was measured."""
    return _undecided("The time was over before it could be judged.", (), "The same command with more time judges it.")


def _undecided(why: str, evidence: tuple[Evidence, ...], remedy: str = NEEDED) -> Verdict:
    return Verdict("not enough evidence", None, why, remedy, tuple(replace(item, says="neither") for item in evidence))


def _evidence(seen: Observations) -> list[Evidence]:
    """The measured values, the most important first."""
    found = []

    def add(what: str, value: float | None, threshold: Threshold | None, note: str) -> None:
        if value is not None and math.isfinite(value):
            side = "neither" if threshold is None else threshold.says(value)
            found.append(Evidence(what, float(value), side, note))

    add("linearisation error", seen.linearisation, LINEARISATION, LINEARISATION.reason)
    add("change of the kernel", seen.kernel_change, KERNEL_CHANGE, f"{RELATIVE}; {KERNEL_CHANGE.reason}")
    add(
        "change of the centred kernel",
        seen.centred_change,
        KERNEL_CHANGE,
        "the same, without what is common to all items and usually is most of a kernel's norm",
    )
    add("rotation of the kernel (1 - CKA)", seen.rotation, ROTATION, ROTATION.reason)
    add(
        "rotation of the last layer's features (1 - CKA)",
        seen.conjugate_rotation,
        ROTATION,
        "the same for the conjugate kernel",
    )
    add("change of the weights", seen.weights, WEIGHTS, WEIGHTS.reason)
    if seen.tau_before is not None and seen.tau_after is not None:
        gain = seen.tau_after - seen.tau_before
        note = (
            f"{GAIN.reason}: {seen.tau_before:.2f} before, {seen.tau_after:.2f} after, on the same {seen.items:,} items"
        )
        if seen.agreement_before is not None and seen.agreement_after is not None:
            note += f"; same predictions {100 * seen.agreement_before:.0f} % and {100 * seen.agreement_after:.0f} %"
        add("improvement of the surrogate", gain, GAIN, note)
    if seen.alignment_before is not None and seen.alignment_after is not None:
        change = seen.alignment_after - seen.alignment_before
        note = (
            f"centred alignment with the labels, {seen.alignment_before:.2f} before, {seen.alignment_after:.2f} after"
        )
        side = Threshold(0.02, 0.1, "")
        add("increase in alignment", change, side if change > -0.02 else None, note)
    elif seen.alignment_now is not None:
        add(
            "alignment now",
            seen.alignment_now,
            None,
            "of the trained kernel with the labels; its initial value is unknown",
        )
    return found


# -- measuring ----------------------------------------------------------------------------------------------------------


def gather(context: Context, alignment_now: float | None) -> Observations:
    """Everything `judge` needs; costs a few forward passes, one forward derivative and two small fits.

    `alignment_now`: of the trained kernel with the labels, all that is known without the initial network.
    """
    if context.initial is None:
        return Observations(alignment_now=alignment_now)
    moved = displacement(context.initial, context.model)
    start = {name: p.detach() for name, p in context.initial.named_parameters() if name in moved}
    size = _norm(start)
    weights = _norm(moved) / size if size > 0 else math.inf
    rows, columns = context.initial_rows
    before, now = context.initial_pair(EXACT), context.pair(EXACT).take(rows, columns)
    y = context.aim_train[rows]
    return Observations(
        linearisation=linearisation_error(
            context.initial, context.model, _probe(context), context.device, context.settings.certify
        ),
        kernel_change=measures.relative_change(before.train, now.train),
        centred_change=measures.relative_change(before.train, now.train, centred=True),
        rotation=_turn(before.train, now.train),
        conjugate_rotation=_conjugate(context),
        weights=weights,
        alignment_before=aligned(before.train, y),
        alignment_after=aligned(now.train, y),
        **_closeness(context, before, now),
        unrelated=unrelated(start, {name: start[name] + moved[name] for name in moved}),
        still=weights < 1e-7,
        learned=context.task.learned(context.network_train_outputs, context.labels_train),
        items=len(rows) + len(columns),
    )


def linearisation_error(
    initial: nn.Module, model: nn.Module, x: Any, device: Any = None, certify: str | bool = "every"
) -> float:
    """`‖f₁ - f₀ - J₀ (w₁ - w₀)‖ / ‖f₁ - f₀‖` over the inputs `x`; three forward passes. NaN when the outputs are the same, or
    the prediction overflows.

    Chizat, Oyallon & Bach (2019), section 1: lazy training is training along which the linearised model stays near.

    >>> linear = nn.Linear(2, 1)
    >>> moved = nn.Linear(2, 1)
    >>> round(linearisation_error(linear, moved, torch.eye(2)), 6)
    0.0
    """
    change = outputs(model, x, device) - outputs(initial, x, device)
    jacobian = Jacobian(initial, x, device=device, certify=certify)
    predicted = jacobian.jvp(displacement(initial, model)).double().cpu()
    return measures.linearisation_error(change, predicted) if bool(predicted.isfinite().all()) else math.nan


def _closeness(context: Context, before: KernelPair, now: KernelPair) -> dict[str, float]:
    """How close surrogates of the labels on the initial and on the trained kernel are to the network, on the same few items."""
    rows, columns = context.initial_rows
    found: dict[str, float] = {}
    for key, pair in (("before", before), ("after", now)):
        scaled = pair.scaled()
        made = context.fitted(scaled, context.labels_train[rows], context.task.labels).logits(scaled.test)
        close = context.task.closeness(made, context.network_outputs[columns], context.labels_test[columns])
        found |= {f"{name}_{key}": value for name, value in close.items()}
    return found


def unrelated(before: dict[str, Tensor], after: dict[str, Tensor]) -> bool:
    """Whether two sets of weights look like independent draws: no correlation beyond chance, similar norms.

    Training that leaves a weight matrix at less than twice its size leaves it correlated with its start; chance alone gives
    a cosine of 1/√p. Nine in ten of the larger tensors must look like this.
    """
    signs = []
    for name, first in before.items():
        a, b = first.double().flatten(), after[name].double().flatten()
        if a.numel() < 256 or float(a.std()) < 1e-3 * float(a.norm()) / a.numel() ** 0.5:
            continue  # too few numbers to tell, or a constant start (zeros, ones)
        ratio = float(b.norm() / a.norm())
        cosine = abs(float(a @ b / (a.norm() * b.norm()).clamp_min(1e-300)))
        signs.append(cosine < 4 / a.numel() ** 0.5 and 0.5 < ratio < 2)
    return len(signs) > 0 and sum(signs) >= 0.9 * len(signs)


def _probe(context: Context) -> Any:
    """Training and test items of the initial subset, joined."""
    rows, columns = context.initial_rows
    return joined(context.train.take(torch.from_numpy(rows)).x, context.test.take(torch.from_numpy(columns)).x)


def _conjugate(context: Context) -> float | None:
    if LAST not in context.plan.kernels:
        return None
    return _turn(context.initial_pair(LAST).train, context.pair(LAST).take(*context.initial_rows).train)


def _turn(before: Gram, now: Gram) -> float | None:
    try:
        return 1 - centred_alignment(before, now)
    except NumericalError:
        return None


def aligned(K: Gram | Tensor, y: Any) -> float | None:
    """The centred alignment of a kernel with the labels; None for a constant kernel, such as that of a readout's bias."""
    try:
        return kernel_target_alignment(K, y, centred=True)
    except NumericalError:
        return None


def _norm(values: dict[str, Tensor]) -> float:
    return math.sqrt(sum(float(value.double().square().sum()) for value in values.values()))
