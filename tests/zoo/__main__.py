"""`python -m zoo [GLOB…] [--bad]`: judge cases, print one line per case and a count per family."""

from __future__ import annotations

import argparse
import time
from collections import Counter
from fnmatch import fnmatchcase

import torch

from zoo.catalogue import CASES
from zoo.judge import judge


def main(arguments: list[str] | None = None) -> int:
    """Exit status 1 when a verdict is not what the case expects."""
    parser = argparse.ArgumentParser(prog="python -m zoo", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="GLOB", help="of names or families; all when left out")
    parser.add_argument("--bad", action="store_true", help="print only verdicts that are not what was expected")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    counts: Counter[tuple[str, str]] = Counter()
    failed = 0
    for case in CASES.values():
        if options.names and not any(fnmatchcase(case.name, g) or fnmatchcase(case.family, g) for g in options.names):
            continue
        began = time.perf_counter()
        verdict = judge(case)
        fine = verdict.holds(case.expect)
        failed += not fine
        kind = verdict.kind if fine or verdict.kind.isupper() else "OVER-REFUSED"
        counts[case.family, kind] += 1
        if not (options.bad and fine):
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
    raise SystemExit(main())
