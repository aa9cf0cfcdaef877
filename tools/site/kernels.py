"""What each kernel costs and how faithful it is, read from the records: the tables of docs/choose.md.

python -m tools.site.kernels
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from statistics import mean, median
from typing import Any

from tools.site.links import DOCS, PAPERS, ROOT

from ntkscope.core.files.atomic import write_file
from ntkscope.kernels import KERNELS

PAGE = DOCS / "choose.md"
COST = PAPERS / "engel_2023" / "results" / "kernel-cost" / "record.json"
FAITH = PAPERS / "engel_2023" / "results" / "surrogate-kernels" / "record.json"
TRUST = ROOT / "benchmarks" / "results" / "bench" / "trust.json"
NETWORKS = range(5)
SMALL = ("trntk", "trntk0", "pntk", "ck")
MARK = re.compile(r"(<!-- table: (\w+) -->\n\n).*?(\n\n<!-- end -->)", re.DOTALL)


def read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def spread(values: Sequence[float], form: str) -> str:
    """A mean, and the smallest and largest.

    >>> spread([0.5, 0.7], ".2f")
    '0.60 (0.50–0.70)'
    """
    return f"{mean(values):{form}} ({min(values):{form}}–{max(values):{form}})"


def large() -> list[str]:
    """ResNet-18 on CIFAR-10: seconds and size of each kernel, and the surrogates fitted on it to the labels."""
    seconds = next(claim["measured"] for claim in read(COST)["claims"] if claim["id"] == "surrogate-table4-times")
    near, far = seconds["seconds at 4000 points"], seconds["seconds at 50000 points, carried on"]
    found = read(FAITH)["metrics"]
    lines = [
        "| kernel | in words | 4,000 items, s | 50,000 items, s | kept per | same class as the network | of its errors | τ |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name in ("trntk", "trntk0", "proj-trntk", "proj-pntk", "em", "ck"):
        rows = [found[f"{network}/{name}/common"] for network in NETWORKS]
        timed = KERNELS.views_of(name)[0]  # cosines come at no cost
        traits = KERNELS.traits(name)
        cells = [
            f"`{name}`",
            traits.title,
            f"{near[timed]:.1f}",
            f"{far[timed]:,.0f}",
            "item" if traits.features else "pair",
            spread([row["agreement"] for row in rows], ".1%"),
            spread([row["agreement_wrong"] for row in rows], ".0%"),
            spread([row["tau"] for row in rows], ".2f"),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def small() -> list[str]:
    """Small trained networks: surrogates fitted to the network's logits and to the labels, on fresh items."""
    rows = [
        row
        for row in read(TRUST)["details"]["surrogates"]
        if row["network"].endswith(", trained") and row["items"] == 400
    ]
    lines = [
        "| kernel | fitted to | same class as the network | of its errors | τ |",
        "| --- | --- | --- | --- | --- |",
    ]
    for name in SMALL:
        for target in ("logits", "labels"):
            of = [row for row in rows if (row["kernel"], row["target"]) == (name, target)]
            if all(row["trivial"] for row in of):
                continue
            same, wrong, tau = (
                median(row[key] for row in of) for key in ("fresh_agreement", "fresh_agreement_wrong", "tau")
            )
            lines.append(f"| `{name}` | the {target} | {same:.1%} | {wrong:.0%} | {tau:.2f} |")
    return lines


def filled(text: str) -> str:
    """The page with its tables made anew."""
    tables = {"large": large, "small": small}
    return MARK.sub(lambda match: match[1] + "\n".join(tables[match[2]]()) + match[3], text)


if __name__ == "__main__":
    write_file(PAGE, filled(PAGE.read_text(encoding="utf-8")).encode("utf-8"), over=b"<!-- table: ")
