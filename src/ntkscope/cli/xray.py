"""`ntkscope xray`: from a checkpoint and its data to a page a person can read.

The rooms are imported when it runs: its `--help` does not wait for PyTorch.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

import ntkscope as ns
from ntkscope.cli import BEGAN
from ntkscope.cli import _options as opt


def xray(
    demo: Annotated[
        bool, typer.Option("--demo", help="A small CNN on scikit-learn's digits; needs nothing else.")
    ] = False,
    model: Annotated[str | None, opt.MODEL] = None,
    weights: opt.Weights = None,
    data: Annotated[str | None, opt.DATA] = None,
    initial_weights: Annotated[
        Path | None, typer.Option(help="Its weights before training; without them no verdict on lazy or rich.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder for the record and the page; one that stopped is resumed.")
    ] = None,
    max_train: Annotated[int | None, typer.Option(help="Use at most so many training items.", min=2)] = None,
    max_test: Annotated[int | None, typer.Option(help="Use at most so many test items.", min=2)] = None,
    device: opt.Device = "auto",
    memory: opt.Memory = opt.MEMORY,
    time: Annotated[str, typer.Option(help="Time to fit into: 90s, 10m, 1h; none for no limit.")] = opt.TIME,
    kernels: Annotated[
        str | None, typer.Option(help="Kernels by name, with commas; what fits the time unless given.")
    ] = None,
    params: opt.ParamGlobs = None,
    certify: opt.Certify = "every",
    tokenizer: opt.Tokenizer = None,
    task: Annotated[
        str | None,
        typer.Option(help="classification or regression; unless given, labels that are not whole are real targets."),
    ] = None,
    model_option: opt.ModelOptions = None,
    data_option: opt.DataOptions = None,
    data_root: opt.DataRoot = None,
    tracked: Annotated[
        Path | None, typer.Option(help="Folder in which ntkscope.Tracker recorded this network's training.")
    ] = None,
    training: Annotated[
        str | None,
        typer.Option(
            help="package.module:function that makes the call of fit(…, store=DIR) which trained this network, and returns it."
        ),
    ] = None,
    compare: Annotated[
        str | None,
        typer.Option(help="Data, as --data, whose test items are compared with the training items for a shift."),
    ] = None,
    untrained: Annotated[
        bool, typer.Option("--untrained", help="X-ray a network with random weights, or one that is at chance.")
    ] = False,
    replay: Annotated[
        bool, typer.Option("--replay", help="With --demo: its training too, as --training for one of your own.")
    ] = False,
    seed: opt.Seed = 0,
) -> None:
    """X-ray a trained network: which kernel machine it is, how far to trust that, what speaks for each prediction."""
    from ntkscope.cli._common import certified, show, stoppable
    from ntkscope.cli._factories import data_of, options, training_of
    from ntkscope.cli._subject import subject_of
    from ntkscope.cli.demo import demo_folder, demo_xray
    from ntkscope.core import UsageError
    from ntkscope.core.files.printable import printable
    from ntkscope.xray.budget import as_budget
    from ntkscope.xray.plan import check_choice
    from ntkscope.xray.settings import Settings

    checked = certified(certify)
    chosen = None if kernels is None else [name.strip() for name in kernels.split(",")]
    if demo:
        if model or weights or data or initial_weights or task or tracked or training or compare:
            raise UsageError(
                "--demo came with a model, weights, data, task or training of your own, or data to compare; expected one or the"
                " other"
            )
        limits: dict[str, Any] = {"max_train": max_train, "max_test": max_test, "device": device, "certify": checked}
        limits |= {"began": BEGAN.get(), "replay": replay}
        if params:
            limits["params"] = params
        if chosen is not None:
            limits["kernels"] = chosen
        if time != opt.TIME or memory != opt.MEMORY:
            limits["budget"] = _budget(time, memory)
        with stoppable():
            record = demo_xray(demo_folder(seed) if out is None else out, seed=seed, **limits)
        show(record)
        return
    if replay:
        raise UsageError(
            "--replay came without --demo; expected --training package.module:function for a network of your own"
        )
    if model is None or data is None:
        lacking = " and no ".join(["--model"] * (model is None) + ["--data"] * (data is None))
        raise UsageError(
            f"no {lacking}; expected --demo alone, or all of a network of your own:"
            " ntkscope xray --model mycnn:Net --weights trained.pt --data photos/ (class Net in mycnn.py, images in"
            " photos/train/CLASS/ and photos/test/CLASS/)"
        )
    if weights is None and model in ns.models.MODELS and not untrained:
        raise UsageError(
            f"--model {model} came without --weights, so its weights are random; expected --weights with those of its training,"
            " or --untrained to X-ray it as it is"
        )
    budget = as_budget(_budget(time, memory))
    check_choice(chosen, max_train, max_test)
    about = subject_of(model, weights, data, model_option, data_option, data_root, tokenizer, seed)
    root = None if data_root is None else str(data_root)
    settings = Settings(
        initial=initial_weights,
        budget=budget,
        device=device,
        seed=seed,
        classes=about.classes or None,
        tokenizer=about.tokenizer,
        max_train=max_train,
        max_test=max_test,
        kernels=chosen,
        params=params or None,
        certify=checked,
        untrained=untrained,
        task=task,
        tracked=tracked,
        training=training_of(training),
        compare=None if compare is None else data_of(compare, {}, root, seed, about.network)[1],
        name=model,
        data_name=data,
        options={**about.made_with} | {f"data {key}": value for key, value in options(data_option).items()},
        say=lambda line: typer.echo(printable(line)),
        began=BEGAN.get(),
    )
    with stoppable():
        record = ns.xray(about.network, about.train, about.test, "xray/" if out is None else out, settings=settings)
    show(record)


def _budget(time: str, memory: str) -> dict[str, str | None]:
    return {"time": None if time == "none" else time, "memory": memory}
