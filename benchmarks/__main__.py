"""`python -m benchmarks [names…] [--quick] [--out FOLDER]`: run comparisons, print and write their tables.

Exit status 1 when a promise fails. `gpu_trace_ntk` needs a CUDA device and runs only when named.
"""

from __future__ import annotations

import argparse
import importlib
import time
from pathlib import Path

from benchmarks import machine
from benchmarks.outcome import Check, as_outcome, table, write

COMPARISONS = (
    "trace_ntk",
    "certificate",
    "growth",
    "memory",
    "projection",
    "ensemble",
    "kernel_glm",
    "infinite",
    "mislabel",
    "store",
    "precision",
    "passes",
)
ON_REQUEST = ("gpu_trace_ntk",)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="name", help=f"of {', '.join(COMPARISONS + ON_REQUEST)}")
    parser.add_argument(
        "--quick", action="store_true", help="small sizes, one round: tries the machinery, proves nothing"
    )
    parser.add_argument("--out", type=Path, default=Path("results/bench"))
    options = parser.parse_args(arguments)
    unknown = [name for name in options.names if name not in COMPARISONS + ON_REQUEST]
    if unknown:
        parser.error(f"no comparison {', '.join(unknown)}; there are {', '.join(COMPARISONS + ON_REQUEST)}")
    out = options.out / "quick" if options.quick else options.out
    machine.keep_to_cores()
    failed: list[Check] = []
    for name in options.names or COMPARISONS:
        print(f"== {name}", flush=True)
        here, start = machine.describe(), time.perf_counter()
        outcome = as_outcome(name, importlib.import_module(f"benchmarks.{name}").run(options.quick))
        path = write(name, outcome, here, time.perf_counter() - start, out)
        print(
            table(outcome.rows), *(f"{c.what}: {c.target}, {c.measured}: {c.verdict}" for c in outcome.checks), sep="\n"
        )
        print(f"written to {path} and {path.with_name('bench.md')}", flush=True)
        failed += [check for check in outcome.checks if check.holds is False]
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
