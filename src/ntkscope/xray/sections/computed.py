"""How this was computed: command, versions, seeds, device, timings, numerical health."""

from __future__ import annotations

from ntkscope.xray.context import Context
from ntkscope.xray.registry import Finding, Section, register


def run(context: Context) -> Finding:
    document = context.record.to_json()
    environment = document["environment"]
    kernel = context.record.metrics.get("section:kernel", {}).get("data", {})
    fits = context.record.metrics.get("surrogate_fits", {})
    notes = []
    if context.plan.subsampled:
        notes.append(f"Not all items were used: {context.plan.subsampled}.")
    stopped = [name for name, told in fits.items() if not told["converged"]]
    if stopped:
        notes.append(f"The surrogates on {', '.join(stopped)} stopped before their optimum.")
    smallest = kernel.get("smallest_eigenvalue")
    if isinstance(smallest, float) and smallest < -1e-4:
        notes.append(f"The kernel's smallest eigenvalue is {smallest:.2g}: rounding in single precision shows.")
    if document["earlier"]:
        notes.append(f"The X-ray was interrupted and went on {len(document['earlier'])} times.")
    expected, spent = context.plan.seconds, context.record.wall_seconds
    return Finding(
        {
            "command": document["command"],
            "versions": {"python": environment["python"], **environment["packages"]},
            "commit": environment["commit"],
            "platform": environment["platform"],
            "threads": environment["threads"],
            "seeds": document["seeds"],
            "device": environment["device"],
            "timings": list(context.timings),
            "expected_seconds": expected,
            "health": {
                "smallest_eigenvalue": smallest,
                "jitter": 0.0,
                "precision": "kernels float32, sums and solves float64",
            },
            "notes": notes,
        },
        f"Expected {expected:.0f} s, took {spent:.0f} s. Run again with the same seeds and data, the same figures come out up"
        " to rounding.",
    )


register(
    Section(
        name="computed",
        place=7,
        title="How this was computed",
        meaning="Everything needed to run this again and to judge its numerical health.",
        formula="Fits and decompositions are in float64; the smallest eigenvalue shows what rounding left, no jitter is added.",
        run=run,
        after=("summary", "surrogates", "explain", "problems", "kernel", "layers"),
    )
)
