"""Coverage: the method used for each parameter, and what it cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch

from ntkscope.core.html import few, table
from ntkscope.core.machine.peak import peak as device_peak


@dataclass(frozen=True)
class Coverage:
    """What the engine did with every chosen parameter.

    `methods`: kronecker, positions, direct or func (a packed parameter whose slices differ lists them joined by "+").
    `numbers` and `seconds`: how many numbers each parameter holds and how long its features and products took.

    `stages` has the seconds of each stage, on a GPU those of the device, and `flops` the floating-point operations of its
    matrix products and convolutions: of layers that have parameters, not of what lies between them (attention's own products,
    activations), so shares of the peak are rather too small. `device` and `kind` (float64, float32, tf32, bf16) say where and
    in what products were made; the peak is that of its data sheet, or of a short trial when it is first asked for.

    Examples:
        >>> coverage = ns.kernel("trntk", model, x).coverage
        >>> coverage.methods["readout.weight"], coverage.numbers["readout.weight"], coverage.unruled
        ('kronecker', 8, ())
    """

    methods: Mapping[str, str]
    numbers: Mapping[str, int]
    seconds: Mapping[str, float]
    stages: Mapping[str, float] = field(default_factory=dict)  # seconds of capture, features, products, writing
    samples_run: int = 0  # samples run through the model, those captured again counted again
    func_method: str = ""
    flops: Mapping[str, float] = field(default_factory=dict)
    device: str = ""
    kind: str = ""
    execution: str = ""  # how blocks were run through the network and back, and what that was compared with

    def __add__(self, other: Coverage) -> Coverage:
        """What both took together, of the same parameters or of others."""
        both = ((self.seconds, other.seconds), (self.stages, other.stages), (self.flops, other.flops))
        seconds, stages, flops = (
            {key: left.get(key, 0.0) + right.get(key, 0.0) for key in {**left, **right}} for left, right in both
        )
        methods, numbers = {**self.methods, **other.methods}, {**self.numbers, **other.numbers}
        ran = self.samples_run + other.samples_run
        return replace(
            self, methods=methods, numbers=numbers, seconds=seconds, stages=stages, flops=flops, samples_run=ran
        )

    def times(self, factor: float) -> Coverage:
        """All seconds multiplied: those of several threads at once as what they took."""
        seconds, stages = ({key: value * factor for key, value in d.items()} for d in (self.seconds, self.stages))
        return replace(self, seconds=seconds, stages=stages)

    def share(self, method: str) -> float:
        """The share of the chosen numbers computed by one method, in [0, 1]."""
        total = sum(self.numbers.values())
        return sum(count for name, count in self.numbers.items() if self.methods[name] == method) / total

    def time_share(self, method: str) -> float:
        """The share of the measured time spent computed by one method, in [0, 1]."""
        total = sum(self.seconds.values())
        spent = sum(seconds for name, seconds in self.seconds.items() if self.methods[name] == method)
        return spent / total if total else 0.0

    def peak(self, stage: str) -> float:
        """Flop/s of the device in what a stage computes in; 0 where that is not known.

        With shortened products, passes back through the network are in TF32, and what checks them in float32.
        """
        if not self.device:
            return 0.0
        kind = self.kind
        if kind in ("tf32", "bf16"):
            kind = {"capture": "tf32", "certificate": "float32"}.get(stage, kind)
        return device_peak(torch.device(self.device), kind)[0]

    def share_of_peak(self, stage: str) -> float:
        """The flops a second of one stage over the device's peak; 0 where nothing was counted."""
        spent, counted = self.stages.get(stage, 0.0), self.flops.get(stage, 0.0)
        rate = self.peak(stage) if spent and counted else 0.0
        return counted / spent / rate if rate else 0.0

    def by_stage(self) -> list[dict[str, str | float]]:
        """A row for each stage: seconds, flops, share of the peak.

        Examples:
            >>> Coverage({}, {}, {}, {"products": 2.0, "writing": 1.0}, flops={"products": 1e12}).by_stage()[0]
            {'stage': 'products', 'seconds': 2.0, 'flops': 1000000000000.0, 'share of peak': 0.0}
        """
        return [
            {
                "stage": stage,
                "seconds": seconds,
                "flops": self.flops.get(stage, 0.0),
                "share of peak": self.share_of_peak(stage),
            }
            for stage, seconds in self.stages.items()
        ]

    @property
    def unruled(self) -> tuple[str, ...]:
        """The parameters no rule knows; exact all the same, by `torch.func`."""
        return tuple(name for name, method in self.methods.items() if method == "func")

    def __str__(self) -> str:
        parts = [
            f"{method} {self.share(method):.1%} of parameters, {self.time_share(method):.1%} of time"
            for method in sorted(set(self.methods.values()))
        ]
        return "; ".join([*parts, f"execution: {self.execution}"] if self.execution else parts)

    def _repr_html_(self) -> str:
        methods = [
            (method, f"{self.share(method):.1%} of parameters", f"{self.time_share(method):.1%} of time")
            for method in sorted(set(self.methods.values()))
        ]
        stages = [(stage, f"{seconds:.3g} s") for stage, seconds in self.stages.items()]
        facts = {"execution": self.execution, "without a rule, exact all the same": few(self.unruled)}
        known = [(name, value) for name, value in facts.items() if value]
        return table("Coverage", [*methods, *stages, *known])
