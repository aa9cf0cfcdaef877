"""`ntkscope compare`: what changed from one X-ray to another."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import ntkscope as ns
from ntkscope.core.files.printable import printable
from ntkscope.xray.comparison import Comparison
from ntkscope.xray.comparison import compare as compared


def compare(
    a: Annotated[Path, typer.Argument(help="The folder of an X-ray.")],
    b: Annotated[Path, typer.Argument(help="The folder of another X-ray, of the same data as far as possible.")],
    out: Annotated[Path | None, typer.Option(help="Folder for the comparison; under runs/ if left out.")] = None,
) -> None:
    """Compare two X-rays: accuracy, kernels, surrogates, explanations, doubtful labels; makes one page."""
    folder = Path("runs") / f"compare-{a.resolve().name}-{b.resolve().name}" if out is None else out
    record = compared(a, b, folder)
    found = Comparison.from_record(record.metrics["comparison"])
    lines = [f"A: {a}", f"B: {b}"]
    if found.a.accuracy is not None and found.b.accuracy is not None:
        lines.append(f"accuracy: {100 * found.a.accuracy:.2f} % → {100 * found.b.accuracy:.2f} %")
    if found.predictions is not None:
        both = found.predictions
        lines.append(
            f"shared test items: {both.items:,}; right in B alone {both.only_b}, in A alone {both.only_a} (p = {both.p:.2g})"
        )
    lines += [f"alignment of {each.name} (CKA): {each.cka:.3f}" for each in found.kernels]
    if found.overlaps:
        share = sum(each.shared / each.k for each in found.overlaps) / len(found.overlaps)
        lines.append(
            f"explanations: {100 * share:.0f} % of the supporting points are the same, over {len(found.overlaps):,} items"
        )
    counts = f"{len(found.doubtful_new):,} new, {len(found.doubtful_gone):,} gone, {found.doubtful_kept:,} in both"
    lacking = found.doubtful_lacking
    lines.append(f"doubtful labels: {f'not compared ({lacking})' if lacking else counts}")
    lines += found.notes
    typer.echo("\n".join(map(printable, lines)))
    typer.echo(f"\npage: {ns.report.write_page(record.folder).resolve()}")
