"""The plan: which kernels, on how many items, so that an X-ray fits its budget; shown before it starts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ntkscope.core import UsageError
from ntkscope.core.progress import duration
from ntkscope.kernels import KERNELS
from ntkscope.machines.computing import names_of
from ntkscope.xray.budget import Budget
from ntkscope.xray.registry import in_order, on_the_page
from ntkscope.xray.result import Result
from ntkscope.xray.workload import Workload

MAIN = "trntk"  # the kernel an X-ray is about: what is explained, decomposed and taken apart by layers
EXACT = KERNELS.computed_as(MAIN)  # what is computed for it
SAFETY = 0.9  # of the time budget: a probe of a few items is trusted no further
COPIES = 40  # bytes held for each entry of a training kernel: float64 twice, factor and eigenvectors, float32 once
LEAST_TRAIN, LEAST_TEST = 50, 20
BUSY = 1.3  # times slower than at rest from which it is worth a word
INITIAL_STEP, PAGE_STEP = "initial network", "page"


@dataclass(frozen=True)
class Plan(Result):
    """What will be computed and how long that should take."""

    kernels: tuple[str, ...]
    train: int
    test: int
    initial_train: int
    initial_test: int
    expected_seconds: float
    text: tuple[str, ...]
    subsampled: str | None
    steps: Mapping[str, float]  # seconds on a machine at rest
    pace: float = 1.0  # how many times longer they take now
    params: tuple[str, ...] | None = None  # of kernels of gradients, where those of all do not fit
    unplanned: tuple[str, ...] = ()  # kernels for which the time does not suffice
    gradients: str | None = None  # by which parameters, in words, if not by all

    def to_record(self) -> dict[str, Any]:
        """The fields, seconds to a millisecond."""
        steps = {name: round(value, 3) for name, value in self.steps.items()}
        return {**super().to_record(), "expected_seconds": round(self.expected_seconds, 3), "steps": steps}


def standard() -> tuple[str, ...]:
    """The kernels an X-ray computes when time allows, the most important first; cosines come with their kernel.

    >>> standard()
    ('trntk0', 'ck', 'em', 'pntk', 'proj-pntk', 'proj-trntk')
    """
    wanted = [name for name in KERNELS.per_input() if KERNELS.traits(name).priority is not None]
    return tuple(dict.fromkeys(KERNELS.computed_as(name) for name in (MAIN, *wanted)))


def check_choice(kernels: Sequence[str] | None, max_train: int | None, max_test: int | None) -> tuple[str, ...]:
    """The kernels to compute when time allows, and whether the caller's choices are possible ones.

    >>> check_choice(["trntk", "ck"], None, None)
    ('trntk0', 'ck')
    """
    for name, limit in (("max_train", max_train), ("max_test", max_test)):
        if limit is not None and limit < 2:
            raise UsageError(f"got {name}={limit}; expected at least 2 items, or None for as many as fit")
    if kernels is None:
        return standard()
    if isinstance(kernels, str):
        raise UsageError(f"kernels={kernels!r} is one string; expected several names, such as kernels=[{kernels!r}]")
    known = KERNELS.per_input()
    unknown = [name for name in kernels if name not in known]
    if unknown:
        raise UsageError(
            f"got the kernels {', '.join(map(str, kernels))}; an X-ray knows {', '.join(known)}: expected some"
            " of them, such as kernels=['trntk', 'ck'] (--kernels trntk,ck)"
        )
    return tuple(dict.fromkeys(KERNELS.computed_as(name) for name in (MAIN, *kernels)))


def make_plan(
    whole: Workload,
    budget: Budget,
    *,
    max_train: int | None = None,
    max_test: int | None = None,
    kernels: Sequence[str] | None = None,
    gradients: str | None = None,
    spent: float = 0.0,
    pace: float = 1.0,
) -> Plan:
    """All items with the main kernel and what is essential; more kernels, then more sections, while the time lasts.

    Fewer items only where even the essential does not fit. `whole`: the work on all items; its `initial_train` is 0 without
    an initial network. `max_train` and `max_test` are the caller's own limits, `kernels` the caller's own choice. `gradients`:
    by which parameters kernels differentiate, if not by all. `spent`: seconds of the budget that are gone already; `pace`: how
    many times slower than at rest the machine is now, which decides on items alone: what else no longer fits is left out on
    the way, if it comes to that.
    """
    train, test, classes = whole.train, whole.test, whole.classes
    chosen = check_choice(kernels, max_train, max_test)
    asked_train = min(train, max(max_train or train, classes))  # a sample has an item of every class
    asked_test = min(test, max(max_test or test, classes))
    memory_train = int((budget.bytes / COPIES) ** 0.5)
    n = min(max(min(asked_train, memory_train), LEAST_TRAIN, classes), asked_train)
    work = whole.sized(n, asked_test)
    limit = float("inf") if budget.seconds is None else SAFETY * budget.seconds - spent
    fraction = 1.0
    while pace * _essential(work) > limit and work.train > max(LEAST_TRAIN, 2 * classes):
        fraction *= 0.9
        smaller = max(int(n * fraction), min(n, max(LEAST_TRAIN, 2 * classes)))
        fewer = max(int(asked_test * fraction), min(asked_test, max(LEAST_TEST, classes)))
        work = whole.sized(smaller, fewer)
    kept = list(chosen if kernels is not None or work.train == n else chosen[:1])  # more items are worth more
    while kernels is None and len(kept) > 1 and _essential(work, kept) > limit:
        kept.pop()
    steps = _steps(work, kept)
    room = limit - _essential(work, kept)
    late = []
    for section in in_order(work.task, work.given):
        cost = steps[section_step(section.name)]
        if not section.essential and cost > room:
            late.append(section)
        elif not section.essential:
            room -= cost
    why = _reasons(train, test, work, asked_train, asked_test, memory_train, budget)
    unplanned = tuple(name for name in chosen if name not in kept)
    made = Plan(
        kernels=tuple(kept),
        train=work.train,
        test=work.test,
        initial_train=work.initial_train,
        initial_test=work.initial_test,
        expected_seconds=pace * (sum(steps.values()) - sum(steps[section_step(section.name)] for section in late)),
        text=(),
        subsampled=why,
        steps=steps | {kernel_step(name): work.kernel(name) for name in unplanned},
        pace=pace,
        unplanned=unplanned,
        gradients=gradients,
    )
    left_out = [*unplanned] + [section.title for section in late]
    return replace(made, text=tuple(_said(made, train, test, budget, left_out)))


def extended(plan: Plan, whole: Workload, budget: Budget, kernels: Sequence[str] | None) -> Plan:
    """The same items with all kernels that were wanted: on the way, those that do not fit are left out once more."""
    chosen = check_choice(kernels, None, None)
    steps = _steps(whole.sized(plan.train, plan.test), chosen)
    wider = replace(plan, kernels=chosen, unplanned=(), steps=steps, expected_seconds=plan.pace * sum(steps.values()))
    return replace(wider, text=tuple(_said(wider, whole.train, whole.test, budget, ())))


def _steps(work: Workload, kernels: Sequence[str]) -> dict[str, float]:
    """Expected seconds of every step, by name."""
    work = replace(work, fits=len(names_of(kernels)))
    steps = {kernel_step(name): work.kernel(name) for name in kernels}
    if work.initial_train:
        steps[INITIAL_STEP] = work.initial(EXACT)
    sections = {section_step(section.name): section.cost(work) for section in on_the_page(work.task, work.given)}
    return steps | sections | {PAGE_STEP: work.page()}


def fewer_items(step: str, plan: Plan, work: Workload, seconds: float) -> int | None:
    """The largest number of training items for which a step of the plan fits so many seconds; None if too few do.

    Test items shrink alike. Too few: less than the fewest a plan takes by itself.
    """
    low, high = LEAST_TRAIN, plan.train

    def costs(n: int) -> float:
        m = max(min(plan.test, LEAST_TEST), plan.test * n // plan.train)
        return _steps(work.sized(n, m), plan.kernels).get(step, 0.0)

    if high <= low or costs(low) > seconds:
        return None
    while high - low > max(1, low // 50):
        middle = (low + high) // 2
        low, high = (middle, high) if costs(middle) <= seconds else (low, middle)
    return low


def kernel_step(name: str) -> str:
    return f"kernel {name}"


def section_step(name: str) -> str:
    return f"section {name}"


def _essential(work: Workload, kernels: Sequence[str] = (EXACT,)) -> float:
    """Expected seconds of these kernels, the initial network and the essential sections."""
    optional = {section_step(each.name) for each in on_the_page(work.task, work.given) if not each.essential}
    return sum(seconds for step, seconds in _steps(work, kernels).items() if step not in optional)


def _reasons(
    train: int, test: int, work: Workload, asked_train: int, asked_test: int, memory_train: int, budget: Budget
) -> str | None:
    """Why not all items are used, in a sentence; None when all are."""
    if work.train == train and work.test == test:
        return None
    reasons = []
    if asked_train < train or asked_test < test:
        reasons.append("that many were requested")
    if memory_train < asked_train:
        reasons.append(f"a kernel of all would not fit {budget.memory}")
    if work.train < min(asked_train, memory_train) or work.test < asked_test:
        reasons.append(f"more would not fit {duration(budget.seconds or 0)}")
    return (
        f"{work.train:,} of {train:,} training items and {work.test:,} of {test:,} test items, every {work.task.stratum} in its"
        f" proportion, because {' and '.join(reasons)}"
    )


def _said(plan: Plan, train: int, test: int, budget: Budget, left_out: Sequence[str]) -> list[str]:
    """The lines shown before it starts."""
    names = [names_of([name])[0] for name in plan.kernels]
    beside = [name for name in plan.kernels if name not in names]
    lines = [
        f"{plan.train:,} of {train:,} training items and {plan.test:,} of {test:,} test items",
        f"kernels: {', '.join(names)}" + (f" (with {', '.join(beside)})" if beside else ""),
    ]
    if plan.subsampled:
        lines.append(f"a stratified sample: {plan.subsampled}")
    if plan.gradients:
        lines.append(plan.gradients)
    if left_out:
        lines.append(f"left out to fit {budget}: {', '.join(left_out)}")
    if plan.initial_train:
        lines.append(
            f"the initial network on {plan.initial_train:,} training and {plan.initial_test:,} test items, for the verdict"
        )
    busy = f"; other processes make this machine {plan.pace:.1f} times slower now" if plan.pace >= BUSY else ""
    lines.append(f"expected: about {duration(plan.expected_seconds)} (budget: {budget}{busy})")
    if budget.seconds is not None and plan.expected_seconds > budget.seconds:
        lines.append("that is more than the budget: what does not fit is left out, and can be added later")
    return lines
