"""`python -m benchmarks [names…] [--quick] [--out FOLDER]`: run comparisons, print and write their tables.

Exit status 1 when a promise fails. `trace_ntk_torch`, `gpu_trace_ntk` (on a CUDA device), `trust`, `distilled`, `ekfac`,
`spectra`, `feature_tables`, `changepoint`, `shift`, `ensemble_grid`, `kernel_svm`, `xray`, `steady` and `soak` run only when
named.
BENCH_THREADS says on how many cores everyone runs, 2 by default.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from benchmarks import machine
from benchmarks.outcome import Check, as_outcome, table, write
from ntkscope.core.script import run_script

COMPARISONS = {  # name: where its `run` is
    "trace_ntk": "kernels.trace_ntk",
    "certificate": "kernels.certificate",
    "growth": "kernels.growth",
    "memory": "kernels.memory",
    "projection": "kernels.projection",
    "ensemble": "learning.ensemble",
    "kernel_glm": "learning.kernel_glm",
    "infinite": "kernels.infinite",
    "mislabel": "learning.mislabel",
    "store": "kernels.store",
    "precision": "kernels.precision",
    "passes": "kernels.passes",
    "linearize": "kernels.linearize",
    "tracker": "learning.tracker",
    "feature_matrices": "kernels.feature_matrices",
    "rfm": "learning.rfm",
    "probes": "learning.probes",
}
ON_REQUEST = {
    "trace_ntk_torch": "kernels.trace_ntk_torch",
    "gpu_trace_ntk": "gpu.trace_ntk",
    "trust": "learning.trust",
    "mislabel_flags": "learning.mislabel_flags",
    "distilled": "learning.distilled",
    "ekfac": "learning.ekfac",
    "spectra": "statistics.spectra",
    "feature_tables": "kernels.feature_tables",
    "changepoint": "statistics.changepoint",
    "shift": "statistics.shift",
    "ensemble_grid": "learning.ensemble_grid",
    "kernel_svm": "learning.kernel_svm",
    "xray": "learning.xray",
    "steady": "learning.steady",
    "soak": "kernels.soak",
}
EVERY = COMPARISONS | ON_REQUEST


def main(
    names: Annotated[
        list[str] | None,
        typer.Argument(help=f"Of {', '.join(EVERY)}."),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Small sizes, one round: tries the machinery, proves nothing.")
    ] = False,
    out: Annotated[Path, typer.Option(help="Folder for the tables.")] = Path("benchmarks/results/bench"),
    minutes: Annotated[float | None, typer.Option(help="How long `soak` takes.")] = None,
) -> int:
    """Exit status 1 when a promise fails."""
    unknown = [name for name in names or () if name not in EVERY]
    if unknown:
        raise typer.BadParameter(f"no comparison {', '.join(unknown)}; there are {', '.join(EVERY)}")
    folder = out / "quick" if quick else out
    machine.keep_to_cores()
    failed: list[Check] = []
    for name in names or COMPARISONS:
        print(f"== {name}", flush=True)
        here, start = machine.describe(), time.perf_counter()
        options = {"minutes": minutes} if name == "soak" else {}
        result = importlib.import_module(f"benchmarks.{EVERY[name]}").run(quick, **options)
        for value in result if isinstance(result, Iterator) else [result]:  # what is known so far, and then the whole
            outcome = as_outcome(name, value)
            path = write(name, outcome, here, time.perf_counter() - start, folder)
        print(
            table(outcome.rows), *(f"{c.what}: {c.target}, {c.measured}: {c.verdict}" for c in outcome.checks), sep="\n"
        )
        print(f"written to {path} and {path.with_name('bench.md')}", flush=True)
        failed += [check for check in outcome.checks if check.holds is False]
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(run_script(main, None, "python -m benchmarks", __doc__))
