"""The exact trace-NTK of a trained LeNet on MNIST to disk within 2 GiB, at growing sizes, and a kernel GLM on the largest.

Each size is computed by a fresh process that loads network and images, notes its resident memory and makes the one call;
the most it had from then on is the kernel's own count (Linux). A benchmark that was stopped goes on with what lies in its
folder (runs/bench-store), the seconds of earlier attempts included; one that comes to its end removes the folder.
"""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.kernels.memory import MIB, resident, settled
from benchmarks.machine import ROOT, THREADS
from benchmarks.outcome import Check, Outcome

SIZES, TESTS, MEMORY = (1000, 2000, 5000, 10000, 20000), 2000, "2GiB"
QUICK_SIZES, QUICK_TESTS, QUICK_MEMORY = (100, 200, 300), 50, "48MiB"
FOLDER = ROOT / "runs" / "bench-store"
BUDGET_MIB = {MEMORY: 2048, QUICK_MEMORY: 48}
FLAT = 1.25  # memory above model and data may differ by this factor from 5,000 inputs on and still be called flat
SQUARE = (1.8, 2.2)  # the exponent of the time, from 5,000 inputs on, that is called quadratic
EVERY = 2.0  # seconds between notes of how long a leg has run
ALPHA = 1e-4


# -- in a process of its own ---------------------------------------------------------------------------------------------


def train(folder: Path, steps: int, most: int) -> dict[str, Any]:
    """LeNet trained on MNIST as its recipe says, or for so many `steps`; on noise where MNIST is not there.

    The images that the legs need are put beside it, so that a leg never holds the others.
    """
    import numpy as np

    import ntkscope as ns
    from ntkscope.training.lenet_mnist import RECIPE

    parts, source = data()
    model = ns.models.build("lenet")
    how = {**RECIPE.fit, **({"steps": steps} if steps else {"epochs": RECIPE.epochs})}
    ns.training.fit(model, parts["train"], **how, measure=False).final()
    ns.models.save_weights(model, folder / "lenet.safetensors")
    for name, part in parts.items():
        np.save(folder / f"{name}-x.npy", part.x[:most].numpy())
        np.save(folder / f"{name}-y.npy", part.y[:most].numpy())
    return {"source": source, "accuracy": ns.training.evaluate(model, parts["test"])["accuracy"]}


def data() -> tuple[dict[str, Any], str]:
    """Training and test part of MNIST, or noise shaped like them."""
    import torch

    import ntkscope as ns
    from ntkscope.core import Part, generator
    from ntkscope.core.errors import DataNotFound

    try:
        split = ns.data.load("mnist")
        return {"train": split.train, "test": split.test}, "mnist"
    except DataNotFound:
        parts = {}
        for name, n in (("train", 20000), ("test", 2000)):
            draw = generator(0, "store benchmark", name)
            y = torch.randint(10, (n,), generator=draw)
            parts[name] = Part(torch.randn(n, 1, 28, 28, generator=draw) + y.view(-1, 1, 1, 1) / 3, y)
        return parts, "noise shaped as mnist"


def images(folder: Path, part: str, n: int) -> tuple[Any, Any]:
    """The first `n` images of a part and their labels."""
    import numpy as np
    import torch

    x, y = (np.load(folder / f"{part}-{kind}.npy", mmap_mode="r")[:n].copy() for kind in "xy")
    return torch.from_numpy(x), y


def network(folder: Path) -> Any:
    import ntkscope as ns

    return ns.models.load_weights(ns.models.build("lenet"), folder / "lenet.safetensors").eval()


def leg(folder: Path, n: int, tests: int, memory: str) -> dict[str, Any]:
    """The kernel of the first n training images, or of `tests` test images with them, into the folder."""
    import torch

    import ntkscope as ns

    torch.set_num_threads(THREADS)
    model = network(folder)
    rows, _ = images(folder, "test", tests) if tests else images(folder, "train", n)
    columns = images(folder, "train", n)[0] if tests else None
    ns.kernel("trntk", model, rows[:4])  # loads what is loaded when it is first used
    before = settled()
    store = folder / f"kernel-{n}-{tests}"
    K = ns.kernel("trntk", model, rows, columns, memory=memory, store=store, progress=True)
    size = sum(file.stat().st_size for file in store.rglob("*") if file.is_file())
    cut = K.store.labels["cut"]  # type: ignore[attr-defined]
    return {"before": before, "peak": resident("VmHWM"), "bytes": size, "cut": cut, **K.meta["run"]}


def surrogate(folder: Path, n: int, tests: int) -> dict[str, Any]:
    """A kernel GLM on the stored kernel, and how close it is to the network on test images."""
    import torch

    import ntkscope as ns

    torch.set_num_threads(THREADS)
    labels, (x, y) = images(folder, "train", n)[1], images(folder, "test", tests)
    K, K_test = (ns.open_kernel(folder / f"kernel-{n}-{count}") for count in (0, tests))
    before, began = settled(), time.perf_counter()
    glm = ns.surrogates.KernelGLM(alpha=ALPHA).fit(K, labels)
    fitted = time.perf_counter() - began
    logits = glm.logits(K_test)
    with torch.no_grad():
        theirs = network(folder)(x).numpy()
    found = ns.measures.faithfulness.faithfulness(logits, theirs, y)
    return {
        "seconds": fitted,
        "products": int(glm.n_products_),
        "gradient": float(glm.gradient_norm_),
        "accuracy": float(found.surrogate_accuracy),
        "network": float(found.network_accuracy),
        "tau": float(found.tau),
        "tau interval": list(found.intervals.get("tau", ())),
        "agreement": float(found.agreement),
        "before": before,
        "peak": resident("VmHWM"),
    }


# -- in the benchmark's process ----------------------------------------------------------------------------------------------


def attempt(note: Path, *arguments: str, module: str = "benchmarks.kernels.store") -> dict[str, Any]:
    """A command of `module` in a fresh process; what it found is kept in `note`, and its seconds while it runs.

    `wall_seconds` adds up over all attempts, the start of Python and the loading of the data included.
    """
    asked = [module, *arguments]
    new = {"wall_seconds": 0.0, "attempts": 0, "arguments": asked}
    written: dict[str, Any] = json.loads(note.read_text()) if note.exists() else new
    if written["arguments"] != asked:
        raise SystemExit(f"{note} was begun with {written['arguments']}; now came {asked}: choose another folder")
    if written.get("done"):
        return _found(written)
    spent, began = float(written["wall_seconds"]), time.perf_counter()
    written["attempts"] += 1
    answer = note.with_suffix(".answer")
    command = [sys.executable, "-m", module, *arguments, "--answer", str(answer)]
    process = subprocess.Popen(command, cwd=ROOT)
    try:
        while process.poll() is None:
            time.sleep(min(EVERY, 0.1 + (time.perf_counter() - began) / 20))
            _keep(note, written | {"wall_seconds": spent + time.perf_counter() - began})
    except BaseException:
        process.kill()
        process.wait()
        raise
    if process.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with {process.returncode}; what is done stays in {note.parent}")
    wall = {"wall_seconds": spent + time.perf_counter() - began, "done": True}
    found: dict[str, Any] = written | json.loads(answer.read_text()) | wall
    _keep(note, found)
    return _found(found)


def _found(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if key != "arguments"}


def _keep(note: Path, values: Mapping[str, Any]) -> None:
    """The note as a whole or as it was, also when this is killed."""
    beside = note.with_suffix(".new")
    beside.write_text(json.dumps(values))
    beside.replace(note)


def curve(folder: Path, sizes: Sequence[int], memory: str) -> dict[int, dict[str, Any]]:
    """Every size once, each in a fresh process."""
    found = {}
    for n in sizes:
        found[n] = attempt(folder / f"leg-{n}.json", "leg", str(folder), str(n), "0", memory)
        print(f"  {n:,} inputs: {found[n]['wall_seconds']:.3g} s", flush=True)
    return found


def taken(found: Mapping[str, Any]) -> float:
    """Seconds of the call that made the kernel; of the whole process, over all attempts, where one call did not make it all.

    >>> taken({"tiles": 3, "computed": 3, "seconds": 5.0, "wall_seconds": 9.0})
    5.0
    >>> taken({"tiles": 3, "computed": 2, "seconds": 5.0, "wall_seconds": 19.0})
    19.0
    """
    return float(found["seconds"] if found["computed"] == found["tiles"] else found["wall_seconds"])


def row(n: int, found: Mapping[str, Any]) -> dict[str, Any]:
    """One size as a line of the table."""
    return {
        "inputs": n,
        "seconds": taken(found),
        "whole process": found["wall_seconds"],
        "µs a pair": 1e6 * taken(found) / n**2,
        **{f"s {name}": seconds for name, seconds in found["spent"].items()},
        "tiles": f"{found['tiles']} of {found['cut']['size']}²",
        "MiB on disk": round(found["bytes"] / MIB),
        "MiB before": round(found["before"] / MIB),
        "MiB above": round((found["peak"] - found["before"]) / MIB),
        "MiB in all": round(found["peak"] / MIB),
        "attempts": found["attempts"],
    }


def exponent(seconds: Mapping[int, float]) -> float:
    """The slope of log seconds over log inputs, by least squares.

    >>> round(exponent({10: 1.0, 20: 4.0, 40: 16.0}), 6)
    2.0
    """
    points = [(math.log(n), math.log(s)) for n, s in seconds.items()]
    x, y = (sum(p[k] for p in points) / len(points) for k in (0, 1))
    return sum((a - x) * (b - y) for a, b in points) / sum((a - x) ** 2 for a, _ in points)


def run(quick: bool = False, folder: Path = FOLDER, sizes: Sequence[int] = ()) -> Outcome:
    """All sizes, then the cross kernel and the surrogate of the largest; other `sizes` for a part of it."""
    sizes = tuple(sizes) or (QUICK_SIZES if quick else SIZES)
    tests, memory = (QUICK_TESTS, QUICK_MEMORY) if quick else (TESTS, MEMORY)
    folder = folder / "quick" if quick else folder
    folder.mkdir(parents=True, exist_ok=True)
    trained = attempt(folder / "training.json", "train", str(folder), "30" if quick else "0", str(max(sizes)))
    legs = curve(folder, sizes, memory)
    n = sizes[-1]
    cross = attempt(folder / "cross.json", "leg", str(folder), str(n), str(tests), memory)
    fitted = attempt(folder / "surrogate.json", "surrogate", str(folder), str(n), str(tests))
    large = [m for m in sizes if m >= 5000] or list(sizes[1:])
    above = {m: (legs[m]["peak"] - legs[m]["before"]) / MIB for m in sizes}
    grows = exponent({m: taken(legs[m]) for m in large}) if len(large) > 1 else math.nan
    flat = max(above[m] for m in large) / min(above[m] for m in large)
    most = max(above.values())
    outcome = Outcome(
        f"Exact trace-NTK of LeNet ({trained['source']}) to disk within {memory}, {THREADS} cores, float32",
        [row(m, legs[m]) for m in sizes],
        [
            Check(
                f"most memory above model and data, up to {n:,} inputs",
                f"< {BUDGET_MIB[memory]} MiB",
                f"{most:.0f} MiB",
                None if quick else most < BUDGET_MIB[memory],
            ),
            Check(
                f"exponent of the time from {large[0]:,} inputs on",
                f"{SQUARE[0]} to {SQUARE[1]}",
                f"{grows:.2f}",
                None if quick or len(large) < 2 else SQUARE[0] <= grows <= SQUARE[1],
            ),
            Check(
                f"memory from {large[0]:,} inputs on, largest over smallest",
                f"≤ {FLAT}",
                f"{flat:.2f}",
                None if quick or len(large) < 2 else flat <= FLAT,
            ),
        ],
        notes=(
            f"{tests:,} test images with the {n:,}: {taken(cross):.3g} s. Kernel GLM on the stored kernel:"
            f" {fitted['seconds']:.3g} s, {fitted['products']} products K @ V, relative gradient {fitted['gradient']:.1e},"
            f" {(fitted['peak'] - fitted['before']) / MIB:.0f} MiB; test accuracy {fitted['accuracy']:.2%}, the network's"
            f" {fitted['network']:.2%}, Kendall's τ {fitted['tau']:.3f}, agreement {fitted['agreement']:.2%}.",
            "Seconds, and with them the exponent, are those of the call, from the first tile to the last one written. The"
            " whole process also starts Python and loads the data; its seconds stand for the call's where a leg was resumed.",
        ),
        details={"legs": legs, "cross": cross, "surrogate": fitted, "training": trained, "exponent": grows},
    )
    shutil.rmtree(folder)
    return outcome


def main(arguments: Sequence[str]) -> None:
    """A command of `attempt`, in its own process."""
    what, folder, *rest, _, answer = arguments
    place = Path(folder)
    if what == "train":
        found = train(place, int(rest[0]), int(rest[1]))
    elif what == "leg":
        found = leg(place, int(rest[0]), int(rest[1]), rest[2])
    else:
        found = surrogate(place, int(rest[0]), int(rest[1]))
    Path(answer).write_text(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1:])
