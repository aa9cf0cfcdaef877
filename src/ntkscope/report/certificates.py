"""Certificates: what was checked while a record's kernels were computed, in plain words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import Any

from ntkscope.core import Certificate
from ntkscope.report.markup import Markup, join, tag
from ntkscope.report.numbers import as_float, power
from ntkscope.report.source import Source, mapping
from ntkscope.report.tables import Cell, figures, table

NAMES = 12  # names of parameters that are listed; the rest are counted
STATES = {"checked": "good", "partly checked": "neither", "not checked": "bad"}
TEXTS = ("fell_back", "changes")


@dataclass(frozen=True)
class Checks:
    """The certificate of every kernel of a record, and the kernels that have none, or one that cannot be read."""

    by_kernel: Mapping[str, Certificate]
    missing: tuple[str, ...] = ()

    @classmethod
    def of(cls, metrics: Mapping[str, Any], arrays: Iterable[str] = ()) -> Checks:
        """From `metrics["certificates"]`, `{kernel: {part: certificate}}`; `arrays`: the names of the arrays a record holds.

        >>> one = Certificate(1e-7, 1e-3, checked=2, blocks=2, alone=2).to_json()
        >>> checks = Checks.of({"certificates": {"ck": {"all": one}}}, ["kernels.ck.train", "kernels.em.train"])
        >>> checks.by_kernel["ck"].blocks, checks.missing
        (2, ('em',))
        """
        found, missing = dict[str, Certificate](), dict[str, None]()
        kept = mapping(metrics.get("certificates"))
        for kernel, parts in kept.items():
            read = [_read(part) for part in mapping(parts).values()]
            whole = [part for part in read if part is not None]
            if not whole or len(whole) < len(read):
                missing[str(kernel)] = None
            if whole:
                found[str(kernel)] = reduce(add, whole)
        for name in arrays:
            key, _, part = name.rpartition(".")
            if key.startswith("kernels.") and part in ("train", "test"):
                kernel = key.removeprefix("kernels.")
                if not {part, "all"} & set(mapping(kept.get(kernel))):
                    missing[kernel] = None
        return cls(found, tuple(missing))

    @property
    def groups(self) -> list[Certificate]:
        """One certificate for everything that was checked against the same reference."""
        kinds = dict.fromkeys(one.against for one in self.by_kernel.values())
        return [reduce(add, [one for one in self.by_kernel.values() if one.against == kind]) for kind in kinds]

    @property
    def state(self) -> str:
        """To what extent the kernels were checked, in up to three words."""
        checked = sum(one.checked for one in self.by_kernel.values())
        blocks = sum(one.blocks for one in self.by_kernel.values())
        if not checked:
            return "not checked"
        return "checked" if checked == blocks and not self.missing else "partly checked"

    def lines(self) -> list[str]:
        """The statement as plain text, for a terminal."""
        said = [sentence(one) for one in self.groups]
        said += [f"{before}{_listed(names)}{after}" for before, names, after in self._remarks()]
        return said

    def _remarks(self) -> list[tuple[str, tuple[str, ...], str]]:
        """What needed a slower method, what the model changes, what has no certificate: text, names, text."""
        whole = reduce(add, self.by_kernel.values(), Certificate())
        found = []
        if whole.fell_back:
            before = "A check of the fast method failed, so these parameters were computed by a slower exact method: "
            found.append((before, whole.fell_back, "."))
        if whole.changes:
            after = ". Every pass started from the same state, and the model was restored afterwards."
            found.append(("During a forward pass the model itself changes ", whole.changes, after))
        if self.missing and self.by_kernel:
            named = tuple(label(name) for name in self.missing)
            found.append(("These kernels have no complete certificate: ", named, "."))
        return found

    def statement(self) -> Markup | None:
        """What was checked, in a few sentences; None if the record does not say."""
        if not self.by_kernel:
            return None
        pill = tag("span", self.state, class_=f"pill {STATES[self.state]}")
        first, *others = (sentence(one) for one in self.groups)
        remarks = [tag("p", before, _codes(names), after) for before, names, after in self._remarks()]
        return tag("div", tag("p", pill, " ", first), *(tag("p", text) for text in others), *remarks, class_="checks")

    def table(self) -> Markup | None:
        """One row per kernel."""
        if not self.by_kernel:
            return None
        heads = [
            "Kernel",
            "Compared with",
            "Blocks checked",
            "Largest difference",
            "Allowed",
            "Samples alone",
            "Seconds",
        ]
        rows = [
            [
                Cell(label(name), name),
                Cell(one.against, one.against),
                Cell(f"{one.checked:,} of {one.blocks:,}", one.checked, True),
                Cell(power(one.worst) if one.checked else "–", one.worst if one.checked else None, bool(one.checked)),
                *figures(one.tolerance, shown=power),
                *figures(one.alone),
                *figures(one.seconds, digits=2),
            ]
            for name, one in self.by_kernel.items()
        ]
        return table(heads, rows, name="Checks", export="checks.csv")


def checks(source: Source) -> Checks:
    """The checks of a record."""
    return Checks.of(source.metrics, source.record.arrays)


def section(source: Source) -> Markup | None:
    """Heading, sentences and table; None without any."""
    found = checks(source)
    head = tag("h3", "How the kernels were checked")
    return join([head, found.statement(), found.table()]) if found.by_kernel else None


def sentence(one: Certificate) -> str:
    """What a certificate says, in a sentence or two.

    >>> print(sentence(Certificate(3e-7, 1e-3, checked=24, blocks=24, alone=24)))
    Every one of 24 blocks of gradients agrees with PyTorch's own autograd on your model to 3×10⁻⁷ (allowed: 10⁻³);
    24 samples were also run alone.
    >>> print(sentence(Certificate(blocks=2)))
    None of 2 blocks of gradients was compared with PyTorch's own autograd on your model.
    """
    gradients = one.against == "autograd"
    what = "gradients" if gradients else "features"
    whom = {"autograd": "PyTorch's own autograd on your model", "single samples": "the same samples run alone"}
    against = whom.get(one.against, one.against)
    if not one.checked:
        return f"None of {_count(one.blocks, 'block')} of {what} was compared with {against}."
    agrees = f"agree{'' if one.checked < one.blocks else 's'} with {against}"
    close = f"to {power(one.worst)} (allowed: {power(one.tolerance)})" if one.worst else "exactly"
    alone = (
        f"{_count(one.alone, 'sample')} {'was' if one.alone == 1 else 'were'} {'also ' if gradients else ''}run alone"
    )
    if one.checked == one.blocks:
        blocks = "The one block" if one.blocks == 1 else f"Every one of {one.blocks:,} blocks"
        return f"{blocks} of {what} {agrees} {close}; {alone}."
    rest = one.blocks - one.checked
    return (
        f"{one.checked:,} of {_count(one.blocks, 'block')} of {what} {agrees} {close}; {alone}."
        f" The other {rest:,} {'was' if rest == 1 else 'were'} not checked."
    )


def label(name: str) -> str:
    """A kernel's key in words for the reader.

    >>> label("initial.ck"), label("layers.trntk0"), label("em")
    ('ck, initial network', 'trntk0, layer by layer', 'em')
    """
    for prefix, said in (("initial.", "initial network"), ("layers.", "layer by layer")):
        if name.startswith(prefix):
            return f"{name.removeprefix(prefix)}, {said}"
    return name


def _read(value: Any) -> Certificate | None:
    """A certificate read from a record; None if it is not one."""
    if not isinstance(value, Mapping):
        return None
    counts = [value.get(key, 0) for key in ("checked", "blocks", "alone")]
    figures = [as_float(value.get(key, 0.0)) for key in ("worst", "tolerance", "seconds")]
    names = [value.get(key, []) for key in TEXTS]
    whole = all(isinstance(count, int) and not isinstance(count, bool) and count >= 0 for count in counts)
    if not whole or "blocks" not in value or counts[0] > counts[1] or not all(x >= 0 for x in figures):
        return None
    if not all(isinstance(several, (list, tuple)) for several in names) or not isinstance(
        value.get("against", ""), str
    ):
        return None
    return Certificate.from_json({**value, **{key: [str(name) for name in value.get(key, [])] for key in TEXTS}})


def _count(n: int, what: str) -> str:
    return f"{n:,} {what}{'' if n == 1 else 's'}"


def _listed(names: tuple[str, ...]) -> str:
    more = f" and {len(names) - NAMES:,} more" if len(names) > NAMES else ""
    return ", ".join(names[:NAMES]) + more


def _codes(names: tuple[str, ...]) -> Markup:
    shown: list[Any] = []
    for n, name in enumerate(names[:NAMES]):
        shown += [", "] * bool(n) + [tag("bdi", tag("code", name))]
    return join([*shown, f" and {len(names) - NAMES:,} more" if len(names) > NAMES else None])
