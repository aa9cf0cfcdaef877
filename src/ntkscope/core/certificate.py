"""The certificate of a kernel: how its blocks were checked against plain autograd, and the result."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from ntkscope.core.html import few, table


@dataclass(frozen=True)
class Certificate:
    """What was checked while a kernel was computed.

    `worst`: the largest relative discrepancy between what the kernel was computed from and plain autograd on the caller's own
    model, of all checks that passed; `tolerance`: what was allowed. `checked` of `blocks` blocks were checked, and `alone`
    samples were run by themselves. `fell_back`: parameters computed by a slower exact method because a check failed, and why.
    `changes`: what the model itself writes to during a forward pass (it was restored). `seconds`: what the checks cost.
    `model`: which model was run, the caller's own or a copy in another dtype or on another device, which was `compared` with
    the caller's own on so many samples.

    Examples:
        >>> one = Certificate(worst=1e-7, tolerance=1e-3, checked=2, blocks=2, alone=2)
        >>> print(one + Certificate(worst=2e-7, tolerance=1e-3, checked=1, blocks=1, alone=1))
        3 of 3 blocks agree with autograd to 2.0e-07 (allowed: 1e-03), 3 samples checked alone
    """

    worst: float = 0.0
    tolerance: float = 0.0
    checked: int = 0
    blocks: int = 0
    alone: int = 0
    fell_back: tuple[str, ...] = ()
    changes: tuple[str, ...] = ()
    seconds: float = 0.0
    against: str = "autograd"
    model: str = ""
    compared: int = 0

    def __add__(self, other: Certificate) -> Certificate:
        """Both together."""
        return Certificate(
            max(self.worst, other.worst),
            max(self.tolerance, other.tolerance),
            self.checked + other.checked,
            self.blocks + other.blocks,
            self.alone + other.alone,
            tuple(dict.fromkeys((*self.fell_back, *other.fell_back))),
            tuple(dict.fromkeys((*self.changes, *other.changes))),
            self.seconds + other.seconds,
            self.against if self.checked else other.against,
            self.model or other.model,
            max(self.compared, other.compared),
        )

    def since(self, earlier: Certificate) -> Certificate:
        """What was checked since an earlier certificate of the same run: the earlier counts and seconds are subtracted."""
        return replace(
            self,
            checked=self.checked - earlier.checked,
            blocks=self.blocks - earlier.blocks,
            alone=self.alone - earlier.alone,
            seconds=self.seconds - earlier.seconds,
        )

    def __str__(self) -> str:
        if not self.checked:
            return f"not certified: none of {self.blocks} blocks was checked"
        text = (
            f"{self.checked} of {self.blocks} blocks agree with {self.against} to {self.worst:.1e}"
            f" (allowed: {self.tolerance:.0e}), {self.alone} samples checked alone"
        )
        if self.model:
            text += f"; of {self.model}" + (
                f", which agrees with it on {self.compared} samples" if self.compared else ""
            )
        if self.fell_back:
            text += f"; by a slower exact method: {', '.join(self.fell_back)}"
        if self.changes:
            text += f"; the model itself changes {', '.join(self.changes)} (restored)"
        return text

    def _repr_html_(self) -> str:
        facts: dict[str, object] = {
            "blocks checked": f"{self.checked} of {self.blocks}, against {self.against}",
            "worst relative difference": f"{self.worst:.1e} (allowed: {self.tolerance:.0e})" if self.checked else "",
            "samples checked alone": self.alone,
            "by a slower exact method": few(self.fell_back),
            "changed by the model itself, restored": few(self.changes),
            "model": self.model + (f" (compared on {self.compared} samples)" if self.compared else ""),
            "seconds": f"{self.seconds:.2g}",
        }
        return table("Certificate" if self.checked else "not certified", {k: v for k, v in facts.items() if v != ""})

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"fell_back": list(self.fell_back), "changes": list(self.changes)}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Certificate:
        """The certificate that was written to a store or a record."""
        known = {field.name for field in fields(cls)}
        kept: dict[str, Any] = {
            key: tuple(v) if isinstance(v, list) else v for key, v in values.items() if key in known
        }
        return cls(**kept)
