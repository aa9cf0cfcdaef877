"""The exact trace-NTK of ResNet-18 on all of CIFAR-10, to disk, and what a kernel GLM on it says: one resumable command.

    python -m benchmarks.gpu.full_kernel --data-root DATA --folder DIR --out FILE [--weights FILE]

Without weights the network is trained first, as its recipe says. Then, each in a process of its own: the kernels of the 50,000
training images with themselves and of the 10,000 test images with them, the error of entries drawn from everywhere against
float64, and, unless `--no-surrogate`, a kernel GLM on all of it. Killed at any moment, the same command goes on from the last
tile (training begins again); seconds of all attempts are added up, Python's start, the loading of data and the writing of
tiles among them.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from benchmarks import machine
from benchmarks.kernels.store import attempt
from benchmarks.outcome import plain
from ntkscope.core.script import run_script

MODULE = "benchmarks.gpu.full_kernel"
TRAIN, TEST = 50_000, 10_000
MINUTES, TOLERANCE = 8.0, 5e-4
BLOCK = 128
ALPHA = 1e-4


# -- in a process of its own ---------------------------------------------------------------------------------------------


def device() -> str:
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def network(weights: str) -> Any:
    import ntkscope as ns

    return ns.models.load_weights(ns.models.build("resnet18"), weights).eval().to(device())


def parts(options: dict[str, Any]) -> tuple[Any, Any]:
    """Training and test part of CIFAR-10, the first of each where fewer are wanted."""
    import ntkscope as ns

    split = ns.data.load("cifar10", root=options["data_root"])
    return split.train.take(list(range(options["train"]))), split.test.take(list(range(options["test"])))


def train(options: dict[str, Any]) -> dict[str, Any]:
    """The recipe's network, its weights in the folder."""
    import ntkscope as ns
    from ntkscope.training.resnet18_cifar10 import RECIPE

    split = ns.data.load("cifar10", root=options["data_root"])
    model = ns.models.build("resnet18").to(device())
    epochs = options["epochs"] or RECIPE.epochs
    ns.training.fit(model, split.train, **RECIPE.fit, epochs=epochs, measure=False).final()
    ns.models.save_weights(model.cpu(), options["weights"])
    return {}


def kernels(options: dict[str, Any]) -> dict[str, Any]:
    """Both, one after the other, into the folder."""
    model, (mine, other) = network(options["weights"]), parts(options)
    train_x, test_x = (part.x.to(device()) for part in (mine, other))
    return {
        rows: kernel(options, rows, model, x1, x2)
        for rows, x1, x2 in (("train", train_x, None), ("test", test_x, train_x))
    }


def kernel(options: dict[str, Any], rows: str, model: Any, x1: Any, x2: Any) -> dict[str, Any]:
    """`rows` of the data (train or test) with the training images, into the folder."""
    import torch

    import ntkscope as ns

    began = time.perf_counter()
    store = Path(options["folder"]) / f"{rows}.zarr"
    K = ns.kernel(
        "trntk",
        model,
        x1,
        x2,
        precision=options["precision"],
        memory=options["memory"],
        schedule=options["schedule"],
        store=store,
        progress=True,
    )
    size = sum(file.stat().st_size for file in store.rglob("*") if file.is_file())
    peak = torch.cuda.max_memory_allocated() / 2**30 if device() == "cuda" else None
    cut: Any = K.store.labels["cut"]  # type: ignore[attr-defined]
    did = None if K.coverage is None else {"stages": K.coverage.by_stage(), "samples run": K.coverage.samples_run}
    took = {"seconds": time.perf_counter() - began, "peak device GiB": peak, "certificate": plain(K.certificate)}
    return {"shape": list(K.shape), "bytes": size, "cut": cut, **took, "run": K.meta["run"], "work": did}


def error(options: dict[str, Any]) -> dict[str, Any]:
    """Entries between inputs drawn from everywhere against float64, which is held to the naive oracle on four of them."""
    import numpy as np
    import torch

    import ntkscope as ns
    from benchmarks.networks import oracle_trace_ntk, relative_error

    model = network(options["weights"])
    mine, other = parts(options)
    draw = np.random.default_rng(0)
    found: dict[str, Any] = {}
    for rows, part in (("train", mine), ("test", other)):
        K = ns.open_kernel(Path(options["folder"]) / f"{rows}.zarr")
        at, to = (np.sort(draw.choice(n, min(BLOCK, n), replace=False)) for n in (len(part), len(mine)))
        to = at if rows == "train" else to
        x1, x2 = (p.x[torch.from_numpy(index)].to(device()) for p, index in ((part, at), (mine, to)))
        true = ns.kernel("trntk", model, x1, x2, dtype=torch.float64, memory=options["memory"]).dense().cpu()
        if rows == "train":
            naive = oracle_trace_ntk(model, x1[:4]).cpu()
            scale = naive.diagonal().rsqrt()
            gap = relative_error(true[:4, :4], naive * scale[:, None] * scale)
            if gap > 1e-10:
                raise ArithmeticError(f"the float64 kernel is {gap:.2g} off the naive one; expected ≤ 1e-10")
        ours = K[at.tolist(), to.tolist()].dense().cpu().double()
        found[rows] = {
            "entries": true.numel(),
            "relative error": relative_error(ours, true),
            "largest error of a cosine": float((ours - true).abs().max()),
        }
    return found


def surrogate(options: dict[str, Any]) -> dict[str, Any]:
    """A kernel GLM on all training images, and how close it is to the network on the test images."""
    import torch

    import ntkscope as ns

    mine, other = parts(options)
    began = time.perf_counter()
    K, K_test = (
        ns.linalg.as_gram(ns.open_kernel(Path(options["folder"]) / f"{rows}.zarr").dense().to(device()))
        for rows in ("train", "test")
    )
    read = time.perf_counter() - began
    health = ns.linalg.psd_health(K)
    began = time.perf_counter()
    glm = ns.surrogates.KernelGLM(alpha=ALPHA).fit(K, mine.y.numpy())
    fitted = time.perf_counter() - began
    model = network(options["weights"])
    with torch.no_grad():
        theirs = torch.cat([model(x.to(device())) for x in other.x.split(500)]).cpu().numpy()
    found = ns.measures.faithfulness.faithfulness(glm.logits(K_test), theirs, other.y.numpy())
    return {
        "points": len(mine),
        "alpha": ALPHA,
        "reading, seconds": read,
        "fitting, seconds": fitted,
        "products": int(glm.n_products_),
        "gradient": float(glm.gradient_norm_),
        "accuracy": float(found.surrogate_accuracy),
        "network accuracy": float(found.network_accuracy),
        "tau": float(found.tau),
        "tau interval": list(found.intervals.get("tau", ())),
        "agreement": float(found.agreement),
        "smallest eigenvalue": health.smallest_eigenvalue,
    }


# -- in the command's process ----------------------------------------------------------------------------------------------


def run(options: dict[str, Any], weights: str | None, fit: bool) -> dict[str, Any]:
    folder = Path(options["folder"])
    folder.mkdir(parents=True, exist_ok=True)
    said = json.dumps(options)
    trained = None

    def leg(name: str) -> dict[str, Any]:
        found = attempt(folder / f"{name}.json", name, said, module=MODULE)
        print(f"{name}: {found['wall_seconds']:.1f} s in {found['attempts']} attempt(s)", flush=True)
        return found

    if weights is None:
        trained = leg("training")
    made = leg("kernels")
    errors, fitted = leg("error"), leg("surrogate") if fit else {}
    seconds = made["wall_seconds"]
    worst = max(errors[rows]["relative error"] for rows in ("train", "test"))
    n, m = options["train"], options["test"]
    whole = n == TRAIN and m == TEST
    return {
        "name": "gpu_full_kernel",
        "title": f"Exact trace-NTK of ResNet-18, 10 outputs: {n:,} training images with themselves, {m:,} test images"
        " with them, to disk",
        "minutes": seconds / 60,
        "attempts": made["attempts"],
        "kernels": {rows: made[rows] for rows in ("train", "test")},
        "training": trained,
        "error": {rows: errors[rows] for rows in ("train", "test")},
        "surrogate": {key: value for key, value in fitted.items() if key not in ("done", "attempts")},
        "promise": f"≤ {MINUTES:g} min in all, writing included, at relative error ≤ {TOLERANCE:g}",
        "holds": seconds / 60 <= MINUTES and worst <= TOLERANCE if whole else None,
        "options": {key: value for key, value in options.items() if key not in ("folder", "data_root", "weights")},
        "machine": machine.describe(),
    }


def main(
    folder: Annotated[Path, typer.Option(help="For the kernels (7 GB) and what is needed to resume.")],
    data_root: Annotated[str | None, typer.Option(help="Where the data are; $NTKSCOPE_DATA unless given.")] = None,
    weights: Annotated[str | None, typer.Option(help="A safetensors file; without it the network is trained.")] = None,
    train_: Annotated[int, typer.Option("--train", help="Training images.")] = TRAIN,
    test: Annotated[int, typer.Option(help="Test images.")] = TEST,
    precision: Annotated[Literal["exact", "tf32", "bf16", "fp16"], typer.Option(help="Of the products.")] = "bf16",
    memory: Annotated[str, typer.Option(help="Most memory besides model and data.")] = "128GiB",
    schedule: Annotated[Literal["auto", "blocks", "layers"], typer.Option(help="Of a tile's work.")] = "auto",
    epochs: Annotated[int, typer.Option(help="Of training, without weights; 0: the recipe's.")] = 0,
    surrogate: Annotated[bool, typer.Option(help="Whether a kernel GLM is fitted.")] = True,
    out: Annotated[Path, typer.Option(help="File for the record.")] = Path(
        "benchmarks/results/gpu/gpu_full_kernel.json"
    ),
) -> int:
    folder = folder.resolve()  # the legs begin elsewhere
    options = {
        "train": train_,
        "test": test,
        "precision": precision,
        "memory": memory,
        "epochs": epochs,
        "schedule": schedule,
        "data_root": None if data_root is None else str(Path(data_root).resolve()),
        "folder": str(folder),
        "weights": str(Path(weights).resolve() if weights else folder / "resnet18.safetensors"),
    }
    record = run(options, weights, surrogate)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(plain(record), indent=1) + "\n")
    shown = ("title", "minutes", "error", "surrogate", "holds")
    print(json.dumps(plain({key: record[key] for key in shown}), indent=1))
    return 0 if record["holds"] is not False else 1


def leg_main(name: str, said: str, answer: str) -> None:
    """One leg, in its own process."""
    options = json.loads(said)
    work = {"training": train, "kernels": kernels, "error": error, "surrogate": surrogate}
    found = work[name](options)
    Path(answer).write_text(json.dumps(found))


if __name__ == "__main__":
    if "--answer" in sys.argv:
        leg_main(sys.argv[1], sys.argv[2], sys.argv[4])
    else:
        raise SystemExit(run_script(main, None, f"python -m {MODULE}", __doc__))
