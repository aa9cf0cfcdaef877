"""`ntkscope xray`: from a checkpoint and its data to a page a person can read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

import ntkscope as ns
from ntkscope.cli._factories import data_of, imported, model_of, options, tokenizer_of
from ntkscope.cli.demo import demo_folder, demo_xray
from ntkscope.core import UsageError
from ntkscope.core.identity import identity
from ntkscope.core.interrupts import Terminated
from ntkscope.core.printable import printable
from ntkscope.report.certificates import Checks
from ntkscope.xray.sections import problems, summary, surrogates

TIME, MEMORY = "10m", "2GiB"
CERTIFY: dict[str, str | bool] = {"every": "every", "sampled": "sampled", "none": False}
CERTIFY_HELP = "Blocks of gradients that are checked against autograd: every, sampled (one in eight) or none."
CHOICE = "package.module:factory, or a name `ntkscope list` knows"


def xray(
    demo: Annotated[
        bool, typer.Option("--demo", help="A small CNN on scikit-learn's digits; needs nothing else.")
    ] = False,
    model: Annotated[str | None, typer.Option(help=f"The network: {CHOICE}.")] = None,
    weights: Annotated[Path | None, typer.Option(help="Its trained weights (.safetensors, .pt).")] = None,
    data: Annotated[str | None, typer.Option(help=f"The data: {CHOICE}; makes a Split or (train, test).")] = None,
    initial_weights: Annotated[
        Path | None, typer.Option(help="Its weights before training; without them no verdict on lazy or rich.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder for the record and the page; one that stopped goes on.")
    ] = None,
    max_train: Annotated[int | None, typer.Option(help="Use at most so many training items.", min=2)] = None,
    max_test: Annotated[int | None, typer.Option(help="Use at most so many test items.", min=2)] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda, or auto: a GPU where there is one.")] = "auto",
    memory: Annotated[str, typer.Option(help="Most memory besides model and data.")] = MEMORY,
    time: Annotated[str, typer.Option(help="Time to fit into: 90s, 10m, 1h; none for no limit.")] = TIME,
    kernels: Annotated[
        str | None, typer.Option(help="Kernels by name, with commas; what fits the time unless given.")
    ] = None,
    certify: Annotated[str, typer.Option(help=CERTIFY_HELP)] = "every",
    tokenizer: Annotated[
        str | None, typer.Option(help="For texts: a folder save_pretrained wrote, or package.module:factory.")
    ] = None,
    model_option: Annotated[
        list[str] | None, typer.Option(help="key=value for the network's factory; repeatable.")
    ] = None,
    data_option: Annotated[list[str] | None, typer.Option(help="key=value for the data's factory; repeatable.")] = None,
    data_root: Annotated[Path | None, typer.Option(help="Where real data lie; $NTKSCOPE_DATA unless given.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of everything random.")] = 0,
) -> None:
    """X-ray a trained network: which kernel machine it is, how far to trust that, what speaks for each prediction."""
    checked = certified(certify)
    chosen = None if kernels is None else [name.strip() for name in kernels.split(",")]
    if demo:
        if model or weights or data or initial_weights:
            raise UsageError("--demo came with a model, weights or data of your own; expected one or the other")
        limits: dict[str, Any] = {"max_train": max_train, "max_test": max_test, "device": device, "certify": checked}
        if chosen is not None:
            limits["kernels"] = chosen
        if time != TIME or memory != MEMORY:
            limits["budget"] = {"time": None if time == "none" else time, "memory": memory}
        with stoppable():
            record = demo_xray(demo_folder(seed) if out is None else out, seed=seed, **limits)
        show(record)
        return
    if model is None or data is None:
        raise UsageError("--model and --data are needed (or --demo alone); see ntkscope xray --help")
    told = made_with(model, model_option)
    network, words = model_of(model, options(model_option)), tokenizer_of(tokenizer)
    if isinstance(network, tuple) and len(network) == 2:  # a factory may bring the tokenizer along
        network, words = network[0], words or network[1]
    if weights is not None:
        ns.models.load_weights(network, weights)
    root = None if data_root is None else str(data_root)
    train, test, classes = data_of(data, options(data_option), root, seed)
    with stoppable():
        record = ns.xray(
            network,
            train,
            test,
            "xray/" if out is None else out,
            initial=initial_weights,
            budget={"time": None if time == "none" else time, "memory": memory},
            device=device,
            seed=seed,
            classes=classes or None,
            tokenizer=words,
            max_train=max_train,
            max_test=max_test,
            kernels=chosen,
            certify=checked,
            name=model,
            data_name=data,
            options=told | {f"data {key}": value for key, value in options(data_option).items()},
            say=lambda line: typer.echo(printable(line)),
        )
    show(record)


def certified(certify: str) -> str | bool:
    """What `--certify` means."""
    if certify not in CERTIFY:
        raise UsageError(f"got --certify {certify!r}; expected one of {', '.join(CERTIFY)}")
    return CERTIFY[certify]


def made_with(model: str, model_option: list[str] | None) -> dict[str, Any]:
    """What the command line makes a network with: the factory, its code and its options; another one is another network."""
    factory = identity(imported(model, "model")) if ":" in model else ""
    return {
        "factory": model,
        "code": factory,
        **{f"model {key}": value for key, value in options(model_option).items()},
    }


@contextmanager
def stoppable() -> Iterator[None]:
    """Says, when Ctrl-C stops the block, how to go on."""
    try:
        yield
    except (KeyboardInterrupt, Terminated):
        typer.echo("\nntkscope: stopped; the same command goes on from what was done", err=True)
        raise


def show(record: ns.Record) -> None:
    """Make the page, print the summary and where the page is; exit code 1 when a section failed."""
    page = ns.report.write_page(record.folder)
    typer.echo("\n".join(in_short(record)))
    typer.echo(f"\npage: {page.resolve()}")
    if any(entry["status"] == "failed" for entry in sections(record)):
        raise typer.Exit(1)


def sections(record: ns.Record) -> list[dict[str, Any]]:
    """The sections of a record in the order of the page."""
    return [record.metrics[f"section:{name}"] for name in record.metrics["sections"]]


def in_short(record: ns.Record) -> list[str]:
    """The main results in a few lines for a terminal."""
    metrics = record.metrics
    found, rated = summary.SECTION.read(metrics), surrogates.SECTION.read(metrics)
    lines = ["", f"X-ray of {metrics['model']['name']} on {metrics['data']['name'] or 'its data'}"]
    if found is not None:
        lines.append(f"verdict: {found.verdict}. {found.why}")
        lines.append(f"network accuracy: {100 * found.network_accuracy:.2f} %")
    if rated is not None:
        lines.append(f"{'surrogate':>12} {'accuracy':>10} {'agreement':>10} {'Kendall τ':>10}")
        lines += [
            f"{row.kernel:>12} {100 * row.accuracy:>8.2f} % {100 * row.agreement:>8.2f} % {row.tau:>10.3f}"
            for row in rated.table
        ]
    doubts = problems.SECTION.read(metrics)
    if doubts is not None:
        contradicted = sum(entry.score > 0 for entry in doubts.mislabelled)
        lines.append(f"doubtful labels: {contradicted}, near-duplicates: {len(doubts.duplicates)}")
    checks = Checks.of(metrics, record.arrays)
    if checks.by_kernel:
        lines.append(f"kernels: {checks.state}. {' '.join(checks.lines())}")
    lines += [f"{entry['title']}: {entry['status']} ({entry['why']})" for entry in sections(record) if entry["why"]]
    return [*map(printable, lines), f"record: {record.folder} ({record.wall_seconds:.0f} s)"]
