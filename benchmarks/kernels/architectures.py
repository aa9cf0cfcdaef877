"""`python -m benchmarks.kernels.architectures`: the trace-NTK of many architectures, held to plain autograd, as a table.

For every architecture four inputs, three outputs, random weights. The reference is `torch.autograd.grad` on a second copy
of the model, sample by sample and output by output, summed in float64; it uses nothing of this package.
"""

from __future__ import annotations

import time
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
import typer
from torch import Tensor, nn

import ntkscope as ns
from benchmarks import machine
from benchmarks.kernels.architecture_catalogue import Architecture, architectures
from ntkscope.core.script import run_script

FAST = ("kronecker", "positions", "direct", "unused")
TOLERANCE = {torch.float64: 1e-8, torch.float32: 1e-4}
OUT = machine.ROOT / "docs" / "results" / "architectures.md"


@dataclass(frozen=True)
class Row:
    """One line of the table; `status` is exact, WRONG, refused, CRASH or "not built"."""

    name: str
    family: str
    status: str
    parameters: int = 0
    error: float = float("nan")
    methods: str = ""
    slow: float = 0.0
    certificate: str = ""
    note: str = ""
    seconds: float = 0.0


# -- the reference -------------------------------------------------------------------------------------------------
def samples(inputs: Any) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
    """Every sample as a batch of one: (args, kwargs)."""
    if isinstance(inputs, Tensor):
        return [((inputs[i : i + 1],), {}) for i in range(len(inputs))]
    if isinstance(inputs, Mapping):
        length = len(next(iter(inputs.values())))
        return [((), {key: value[i : i + 1] for key, value in inputs.items()}) for i in range(length)]
    return [(tuple(value[i : i + 1] for value in inputs), {}) for i in range(len(inputs[0]))]


def naive_trace_ntk(model: nn.Module, inputs: Any) -> Tensor:
    """`Σ_c <g_c(x), g_c(x')>` by one `torch.autograd.grad` per sample and output: (n, n) in float64.

    >>> naive_trace_ntk(nn.Linear(2, 1, bias=False), torch.tensor([[1.0, 0.0], [1.0, 1.0]])).tolist()
    [[1.0, 1.0], [1.0, 2.0]]
    """
    parameters = [p for p in model.parameters() if p.requires_grad]
    alone = samples(inputs)
    kernel, outputs, c = torch.zeros(len(alone), len(alone), dtype=torch.float64), 1, 0
    while c < outputs:
        rows = []
        for args, kwargs in alone:
            value = model(*args, **kwargs)
            value = value if isinstance(value, Tensor) else value.logits
            outputs = value.shape[1]
            rows.append(torch.autograd.grad(value[0, c], parameters, allow_unused=True))
        for column in zip(*rows):  # one parameter, all samples
            known = [None if g is None else g.to_dense().flatten().double() for g in column]
            for i, left in enumerate(known):
                for j, right in enumerate(known[: i + 1]):
                    if left is not None and right is not None:
                        kernel[i, j] += float(left @ right)
        c += 1
    return kernel + kernel.tril(-1).T


def relative_error(actual: Tensor, expected: Tensor) -> float:
    """max |A_ij - E_ij| / √(E_ii E_jj)."""
    scale = expected.diagonal().clamp_min(1e-300).sqrt()
    return float(((actual.double().cpu() - expected).abs() / (scale[:, None] * scale[None])).max())


# -- one architecture ----------------------------------------------------------------------------------------------
def built(architecture: Architecture, device: str) -> tuple[nn.Module, Any]:
    """The same model and inputs at every call."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model, inputs = architecture.build()
    if device == "cpu":
        return model, inputs
    moved = {key: value.to(device) for key, value in inputs.items()} if isinstance(inputs, Mapping) else inputs
    if isinstance(moved, tuple):
        moved = tuple(value.to(device) for value in moved)
    return model.to(device), moved.to(device) if isinstance(moved, Tensor) else moved


def measure(architecture: Architecture, device: str = "cpu") -> Row:
    """Build it twice, compute both kernels, compare."""
    began = time.perf_counter()
    row: dict[str, Any] = {"name": architecture.name, "family": architecture.family}
    try:
        model, inputs = built(architecture, device)
        expected = naive_trace_ntk(*built(architecture, device))
    except Exception as error:  # a configuration of another library that this version builds otherwise
        return Row(**row, status="not built", note=_line(error))
    parameters = sum(p.numel() for p in model.parameters() if p.requires_grad)
    try:
        gram = ns.kernel("trntk0", model, inputs)
        values = gram.dense()
    except ns.NtkscopeError as error:
        return Row(**row, status="refused", parameters=parameters, note=_line(error))
    except Exception as error:  # the table says so instead of ending here
        return Row(**row, status="CRASH", parameters=parameters, note=_line(error))
    difference = relative_error(values, expected)
    tolerance = max(TOLERANCE.get(p.dtype, 5e-2) for p in model.parameters())
    shares = road_shares(gram.coverage)
    return Row(
        **row,
        status="exact" if difference <= tolerance else "WRONG",
        parameters=parameters,
        error=difference,
        methods=", ".join(f"{method} {share:.0%}" for method, share in shares.items()),
        slow=sum(share for method, share in shares.items() if not set(method.split("+")) <= set(FAST)),
        certificate=certified(gram),
        seconds=time.perf_counter() - began,
    )


def _line(error: Exception) -> str:
    text = " ".join(f"{type(error).__name__}: {error}".split()).replace("|", "/")
    return text if len(text) <= 160 else f"{text[:157]}…"


def road_shares(coverage: Any) -> dict[str, float]:
    """Which share of the parameters took which method, largest first."""
    total = sum(coverage.numbers.values()) or 1
    counts: Counter[str] = Counter()
    for name, method in coverage.methods.items():
        counts[method] += coverage.numbers[name]
    return {method: count / total for method, count in counts.most_common()}


def certified(gram: Any) -> str:
    """The worst discrepancy its certificate states and what fell back, where the kernel carries one."""
    found = getattr(gram, "certificate", None)
    if found is None:
        return ""
    fallbacks = len(found.fell_back)
    return f"{found.worst:.0e}" + (f", {fallbacks} fell back" if fallbacks else "")


# -- the page ------------------------------------------------------------------------------------------------------
def page(rows: Sequence[Row], device: str) -> str:
    """The Markdown page."""
    counted = Counter(row.status for row in rows)
    computed = [row for row in rows if row.status != "not built"]
    worst = max((row.error for row in rows if row.status == "exact"), default=float("nan"))
    shown = any(row.certificate for row in rows)
    lines = [
        "# Architectures",
        "",
        f"The trace-NTK of {len(computed)} architectures, four inputs each, against plain `torch.autograd.grad` sample by",
        f"sample: {counted['exact']} agree (the worst to {worst:.0e}); refused by name:"
        f" {counted['refused']}; wrong: {counted['WRONG']}; errors that are not ours: {counted['CRASH']}.",
        "",
        "Weights are random and sizes tiny; parameters are those that require a gradient. The error is the largest",
        "`|K_ij - E_ij| / √(E_ii E_jj)`. Roads are the shares of parameters that each way of computing took (see",
        "[engine](../design/engine.md)); the slow method is whatever is not a rule: `torch.func`, plain autograd.",
        f"Made by `python -m benchmarks.kernels.architectures` on {device}, torch {torch.__version__}.",
    ]
    for family in dict.fromkeys(row.family for row in computed):
        head = ["architecture", "parameters", "error", "methods", "slow method", *(["certificate"] if shown else [])]
        lines += [
            "",
            f"## {family[0].upper()}{family[1:]}",
            "",
            f"| {' | '.join(head)} |",
            "| --- | ---: | ---: | --- | ---: |",
        ]
        lines[-1] += " --- |" if shown else ""
        for row in computed:
            if row.family == family:
                lines.append(_cells(row, shown))
    missing = [row for row in rows if row.status == "not built"]
    if missing:
        lines += ["", "## Not built here", "", *(f"- {row.name} ({row.family}): {row.note}" for row in missing)]
    return "\n".join(lines) + "\n"


def _cells(row: Row, shown: bool) -> str:
    if row.status in ("refused", "CRASH"):
        cells = [row.name, f"{row.parameters:,}", "", f"{row.status}: {row.note}", ""]
    else:
        error = f"{row.error:.0e}" if row.status == "exact" else f"WRONG: {row.error:.0e}"
        cells = [row.name, f"{row.parameters:,}", error, row.methods, f"{row.slow:.0%}"]
    return f"| {' | '.join(cell.replace('|', '/') for cell in [*cells, *([row.certificate] if shown else [])])} |"


def main(
    out: Annotated[Path, typer.Option(help="File for the page.")] = OUT,
    only: Annotated[
        str | None, typer.Option(metavar="GLOB", help="Of names or families; the page is then only printed.")
    ] = None,
    device: Annotated[Literal["cpu", "cuda"], typer.Option(help="Where to compute.")] = "cpu",
) -> int:
    """Exit status 1 when a kernel is wrong or an error is not ours."""
    torch.set_num_threads(1)
    if device == "cuda":  # the reference must not round its products to TF32
        torch.backends.cuda.matmul.fp32_precision = torch.backends.cudnn.conv.fp32_precision = "ieee"  # type: ignore[attr-defined]
    warnings.simplefilter("ignore")
    rows = []
    for each in architectures():
        if only and not any(fnmatchcase(text, only) for text in (each.name, each.family)):
            continue
        row = measure(each, device)
        rows.append(row)
        print(
            f"{row.seconds:6.2f} s  {row.family}: {row.name}: {row.status} {row.error:.1e} {row.methods} {row.note}",
            flush=True,
        )
    text = page(rows, device)
    if only:
        print(text)
    else:
        out.write_text(text, encoding="utf-8")
        print(f"written to {out}")
    return 1 if any(row.status in ("WRONG", "CRASH") for row in rows) else 0


if __name__ == "__main__":
    raise SystemExit(run_script(main, None, "python -m benchmarks.kernels.architectures", __doc__))
