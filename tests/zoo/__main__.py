"""`python -m zoo [GLOB…] [--bad]`: judge cases, print one line per case and a count per family."""

from __future__ import annotations

import time
from collections import Counter
from fnmatch import fnmatchcase
from typing import Annotated

import torch
import typer

from ntkscope.core.script import run_script
from zoo.catalogue import CASES
from zoo.judge import judge


def main(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="GLOB", help="Of names or families; all unless given.")
    ] = None,
    bad: Annotated[bool, typer.Option("--bad", help="Print only verdicts that are not what was expected.")] = False,
) -> int:
    """Exit status 1 when a verdict is not what the case expects."""
    torch.set_num_threads(1)
    counts: Counter[tuple[str, str]] = Counter()
    failed = 0
    for case in CASES.values():
        if names and not any(fnmatchcase(case.name, glob) or fnmatchcase(case.family, glob) for glob in names):
            continue
        began = time.perf_counter()
        verdict = judge(case)
        fine = verdict.holds(case.expect)
        failed += not fine
        kind = verdict.kind if fine or verdict.kind.isupper() else "OVER-REFUSED"
        counts[case.family, kind] += 1
        if not (bad and fine):
            line = f"{case.family} | {case.name} | {case.kernel} | expected {case.expect} | {verdict}"
            print(
                f"{'ok  ' if fine else 'FAIL'} {time.perf_counter() - began:5.2f} s | {line}".replace("\n", " "),
                flush=True,
            )
    for (family, kind), count in sorted(counts.items()):
        print(f"{family}: {kind} {count}")
    print(f"{failed} of {sum(counts.values())} cases are not as expected")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(run_script(main, None, "python -m zoo", __doc__))
