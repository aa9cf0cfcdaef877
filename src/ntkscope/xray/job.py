"""The job: a trained network and its data in, a record out; a run that was stopped is resumed."""

from __future__ import annotations

import os
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import nn

import ntkscope.xray.sections  # noqa: F401 - registers them
from ntkscope.core import NtkscopeError, Record, UsageError
from ntkscope.core.arguments import as_device
from ntkscope.core.errors import RecordError
from ntkscope.core.files.plain import differences, to_plain
from ntkscope.core.identity import Answers
from ntkscope.core.progress import counter
from ntkscope.core.records.record import FILE
from ntkscope.core.types import fingerprint
from ntkscope.data.subsets import stratified
from ntkscope.kernels import KERNELS
from ntkscope.kernels.costs import Rates
from ntkscope.machines import measure_rates
from ntkscope.measures.faithfulness import probabilities
from ntkscope.training.evaluation import evaluating
from ntkscope.xray import given, resuming
from ntkscope.xray.budget import Budget, Clock, as_budget, half_of_the_budget
from ntkscope.xray.chance import check_trained
from ntkscope.xray.context import Context
from ntkscope.xray.items import Items, Tokenizer, collect_both, compared_inputs
from ntkscope.xray.network import chosen_matrices, chosen_parameters, class_logits, initial_network, shapes
from ntkscope.xray.pictures import channel_range, thumbnails
from ntkscope.xray.plan import Plan, check_choice, make_plan, section_step
from ntkscope.xray.registry import OutOfTime, Section, Skip, in_order, on_the_page
from ntkscope.xray.task import CLASSIFICATION, REGRESSION, STRATA
from ntkscope.xray.tracked import tracked_training

SCHEMA = 1
RESERVED = 3.0  # seconds of the budget for the page
Say = Callable[[str], None]


def xray(
    model: nn.Module,
    train: Any,
    test: Any,
    out: str | Path = "xray/",
    *,
    initial: Any = None,
    budget: Any = None,
    device: torch.device | str | None = None,
    seed: int = 0,
    progress: bool | Literal["auto"] = "auto",
    classes: Sequence[str] | None = None,
    tokenizer: Tokenizer | None = None,
    max_train: int | None = None,
    max_test: int | None = None,
    kernels: Sequence[str] | None = None,
    params: Any = None,
    certify: str | bool = "every",
    untrained: bool = False,
    task: str | None = None,
    tracked: str | Path | None = None,
    compare: Any = None,
    name: str = "",
    data_name: str = "",
    options: Mapping[str, Any] | None = None,
    say: Say | None = None,
) -> Record:
    """X-ray a trained network: which kernel machine it is, how far to trust that, what supports each prediction.

    `train`, `test`: a `Part`, (inputs, labels), a mapping with labels, a Dataset or a DataLoader; texts with `tokenizer=`.
    `task`: "classification" or "regression"; by default real labels that are not whole numbers, (n,) or (n, outputs), are the
    targets of a regression, and all others class numbers. `classes`: names of the classes, or of a regression's outputs.
    `initial`: the network before training (a module, a state dict or a weights file), without which there is no verdict on
    how lazy it was. `budget`: `Budget("10m", "2GiB")` or a time; a probe of a few items finds what fits, `say` gets the
    plan before the run starts (default: printed unless `progress=False`), and items are sampled, class by class, only if
    not all fit. `device`: where to compute (where the model is). `params`: names or globs of the parameters by which kernels of
    gradients differentiate (all that are trainable), or "last" for the last affine layer's. `certify`: which blocks of
    gradients are checked against plain autograd: "every" one, "sampled" (one in eight), or False. A network that is at chance
    on training and on test items is refused unless `untrained=True`. `tracked`: the folder in which `ntkscope.Tracker` recorded
    the training of this network; the page then has a section on it. `compare`: further items, as `train` or inputs alone, which
    the section on shift compares with the training items. The model is run in evaluation mode and left unchanged.

    The record in `out` is written as it grows. Called again with the same arguments it resumes from what is there; another
    network, other data, labels, seeds, or `options` (what a factory made the network with) are refused: their fingerprints
    are compared, the network is run again and a few entries of a stored kernel are recomputed. The page is made from it by
    `ntkscope.report.write_page(out)`; `ntkscope xray` does both.
    """
    began = time.perf_counter()
    tell = say or (print if progress else _nothing)
    if not isinstance(model, nn.Module):
        raise UsageError(f"got a model of type {type(model).__name__}; expected a torch.nn.Module")
    limits = as_budget(budget)
    check_choice(kernels, max_train, max_test)
    given.certify(certify)
    where = as_device(device)
    clock = Clock(limits.seconds, began, reserved=RESERVED)
    chosen = chosen_parameters(model, params)
    followed = tracked_training(tracked, model)
    weights = shapes(chosen_matrices(model, chosen))
    everything, held = collect_both(train, test, tokenizer, task)
    others = None if compare is None else compared_inputs(compare, everything, tokenizer)
    regression = everything.y.is_floating_point()
    with evaluating(model):
        few, _ = (given.tried(model, items, what, where) for items, what in ((everything, "train"), (held, "test")))
        count = few.shape[1] if regression else class_logits(few).shape[1]
        names = (given.output_names if regression else given.class_names)(classes, count)
        (given.check_targets if regression else given.check_labels)(everything, held, count)
        first = initial_network(model, initial, everything.x)
        config = {
            "model": name or type(model).__name__,
            "weights": _weights(model),
            "network": resuming.described(model),
            "initial": None if first is None else {"weights": _weights(first), **resuming.described(first)},
            "options": resuming.plain_options(options),
            "data": data_name,
            "train": fingerprint(everything.x, everything.y),
            "test": fingerprint(held.x, held.y),
            "budget": {"time": limits.seconds, "memory": limits.bytes},
            "max_train": max_train,
            "max_test": max_test,
            "kernels": None if kernels is None else list(kernels),
            "classes": list(names),
            "certify": certify,
            **({} if chosen is None else {"params": chosen if isinstance(chosen, str) else list(chosen)}),
            **({"task": REGRESSION} if regression else {}),
            **({} if followed is None else {"tracked": followed.identity}),
            **({} if others is None else {"compare": fingerprint(others)}),
        }
        answers = resuming.answers(model, held, where)

        def prepared(record: Record, plan: Plan) -> Context:
            rows = stratified(everything.strata, plan.train, seed, "xray", "train")
            columns = stratified(held.strata, plan.test, seed, "xray", "test")
            return Context(
                record=record,
                model=model,
                initial=first,
                train=everything.take(torch.from_numpy(rows)),
                test=held.take(torch.from_numpy(columns)),
                classes=names,
                plan=plan,
                memory=limits.bytes,
                seed=seed,
                device=where,
                progress=progress,
                certify=certify,
                params=chosen,
                clock=clock,
                timings=list(record.metrics.get("timings", [])),
                tracked=followed,
                tokenizer=tokenizer,
                compared=others,
            )

        found = _found(Path(out), config, {"xray": seed}, answers)
        if found is not None and "plan" in found.metrics:
            lost = resuming.lost(found)
            resuming.check_kernel(prepared(found, Plan.from_json(found.metrics["plan"])), lost)
            if _finished(found) and not lost:
                tell(f"{found.folder} already holds this X-ray, finished")
                return found
        if not untrained:
            check_trained(model, everything, held, seed=seed, device=where)
        with _record(Path(out), found, config, {"xray": seed}, where) as record:
            resuming.repair(record)
            if "answers" not in record.metrics:
                record.put(answers=answers.to_json())

            def rated() -> Rates:
                memory = limits.bytes // 2
                return measure_rates(model, everything.x, device=where, memory=memory, certify=certify, params=chosen)

            def planned(rates: Rates) -> Plan:
                return make_plan(
                    rates,
                    limits,
                    train=len(everything),
                    test=len(held),
                    classes=max(count, STRATA) if regression else count,
                    initial=first is not None,
                    max_train=max_train,
                    max_test=max_test,
                    kernels=kernels,
                    params=chosen,
                    spent=clock.spent(),
                    task=REGRESSION if regression else CLASSIFICATION,
                    matrices=weights,
                    tracked=None if followed is None else followed.bytes,
                )

            context = prepared(record, _plan(record, rated, planned, limits, tell))
            _describe(context, everything, held, config, few.shape[1])
            _run(context, tell)
    return record


def _weights(model: nn.Module) -> str:
    return fingerprint(
        {name: value for name, value in model.state_dict().items() if not name.endswith("num_batches_tracked")}
    )


def _found(folder: Path, config: dict[str, Any], seeds: dict[str, int], answers: Answers) -> Record | None:
    """The record in `folder` to resume, or None if there is none; an error if it is a record of something else."""
    if not os.path.exists(folder / FILE):
        return None
    found = Record.open(folder)
    if found.kind != "xray":
        raise UsageError(f"{folder} already holds a record of kind {found.kind!r}; choose another folder for the X-ray")
    resuming.check_metrics(found)
    if found.status == "failed" and "plan" not in found.metrics:  # nothing was computed
        (folder / FILE).unlink()
        return None
    if "network" not in found.config:
        raise RecordError(
            f"{folder} holds an X-ray of an earlier ntkscope, which did not store what identifies the network; its page"
            " can be made (ntkscope report), but it cannot be resumed: choose another folder"
        )
    resuming.check_recipe(found)
    document = found.to_json()
    for key, now in (("config", config), ("seeds", seeds)):
        other = differences(document[key], to_plain(now, key))
        if other:
            raise RecordError(
                f"{folder} was made with another {key} ({'; '.join(other)}); resume it with the recorded {key}, or choose"
                " another folder"
            )
    resuming.check_answers(found, answers)
    return found


def _finished(found: Record) -> bool:
    given = ("tracked",) if "tracked" in found.config else ()
    sections = on_the_page(str(found.config.get("task", CLASSIFICATION)), given)
    entries = [found.metrics.get(section.key, {}) for section in sections]
    skipped = [entry.get("status") == "skipped" and not entry.get("late") for entry in entries]
    return found.status == "done" and all(gone or _done(section, found) for section, gone in zip(sections, skipped))


def _done(section: Section[Any], record: Record) -> bool:
    """Whether the record holds the section's result in a form this version can read."""
    try:
        return section.read(record.metrics) is not None
    except RecordError:
        return False


def _record(
    folder: Path, found: Record | None, config: dict[str, Any], seeds: dict[str, int], device: torch.device | None
) -> Record:
    """The record in `folder`, new or resumed."""
    if found is None:
        return Record.create(
            folder, kind="xray", name=f"X-ray of {config['model']}", config=config, seeds=seeds, device=device
        )
    return Record.resume(folder, config=config, seeds=seeds, device=device)


def _plan(
    record: Record, rated: Callable[[], Rates], planned: Callable[[Rates], Plan], budget: Budget, tell: Say
) -> Plan:
    """The plan of an earlier attempt, so that its results can be used; else a new, measured one."""
    known = record.metrics.get("plan")
    if known:
        plan = Plan.from_json(known)
        tell("resuming with the plan of the earlier attempt:")
    else:
        start = time.perf_counter()
        with half_of_the_budget():
            rates = rated()
        record.put(timings=[{"what": "probe", "seconds": round(time.perf_counter() - start, 4)}], rates=rates)
        plan = planned(rates)
        record.put(plan={**plan.to_json(), "budget": {"time": budget.seconds, "memory": str(budget.memory)}})
        record.put(recipe_checksum=resuming.recipe_checksum(record))
    for line in plan.text:
        tell(f"  {line}")
    return plan


def _describe(context: Context, train: Items, test: Items, config: dict[str, Any], outputs_count: int) -> None:
    """Model, data and what the views show of single items."""
    record, plan = context.record, context.plan
    sections, metrics = on_the_page(context.task, context.given), record.metrics
    kept = {each.key: metrics.get(each.key, each.entry("waiting", why="not reached yet")) for each in sections}
    parameters = sum(p.numel() for p in context.model.parameters())
    told: dict[str, Any] = {
        "kernel_names": {name: KERNELS.traits(name).title for name in KERNELS if KERNELS.traits(name).title}
    }
    if context.train.texts is not None:
        told["texts"] = {"train": list(context.train.texts), "test": list(context.test.texts or ())}
    if context.train.ids is not None or context.test.ids is not None:
        told["ids"] = {"train": list(context.train.ids or ()), "test": list(context.test.ids or ())}
    record.put(
        xray_schema=SCHEMA,
        model={"name": config["model"], "parameters": parameters, "outputs": outputs_count},
        data={
            "name": config["data"],
            "train_items": plan.train,
            "train_total": len(train),
            "test_items": plan.test,
            "test_total": len(test),
            "classes": list(context.classes) if context.task == CLASSIFICATION else [],
            "subsampled": plan.subsampled,
            "kind": context.train.kind,
            **({} if context.task == CLASSIFICATION else {"task": REGRESSION, "outputs": list(context.classes)}),
        },
        sections=[section.name for section in sections],
        **told,
        **kept,
    )
    labels = "labels" if context.task == CLASSIFICATION else "targets"
    if f"{labels}.train" in record.arrays:
        return
    if context.task == CLASSIFICATION:
        logits = context.network_logits
        context.keep("network.test_probabilities", probabilities(logits).astype(np.float32))
        context.keep("network.test_prediction", logits.argmax(1))
    if context.train.kind == "image":
        low, high = channel_range(context.train.x)
        context.keep("thumbs.train", thumbnails(context.train.x, low, high))
        context.keep("thumbs.test", thumbnails(context.test.x, low, high))
    context.keep("originals.train", context.train.original)
    context.keep("originals.test", context.test.original)
    context.keep(f"{labels}.test", context.test.y)
    context.keep(f"{labels}.train", context.train.y)


# -- the run --------------------------------------------------------------------------------------------------------------


def _run(context: Context, tell: Say) -> None:
    """Run every section that is not done and store each as soon as it is; one that fails does not affect the others."""
    record = context.record
    shares = {step: max(1, round(10 * seconds)) for step, seconds in context.plan.steps.items()}  # tenths of seconds
    with record.stage("sections"), counter(sum(shares.values()), "X-ray", enabled=context.progress) as bar:

        def step_done(step: str) -> None:
            bar.advance(shares.pop(step, 0))

        context.step_done = step_done
        for section in in_order(context.task, context.given):
            if section.every_attempt or not _done(section, record):
                bar.message(section.title)
                entry = _look(section, context)
                context.timings.append({"what": section_step(section.name), "seconds": entry["seconds"]})
                record.put(**{section.key: entry, "timings": context.timings})
                _say_left_out(context, tell)
                tell(f"{section.title}: {entry['status']}{'' if entry['why'] is None else ', ' + entry['why']}")
            step_done(section_step(section.name))


def _say_left_out(context: Context, tell: Say) -> None:
    """Add to the plan, once, which of its kernels were given up on the way."""
    record, plan = context.record, context.record.metrics["plan"]
    given_up = record.metrics.get("left_out", [])
    line = f"left out, since the time would not have sufficed: {', '.join(given_up)}"
    if given_up and line not in plan["text"]:
        record.put(plan={**plan, "text": [*plan["text"], line]})
        record.put(recipe_checksum=resuming.recipe_checksum(record))
        tell(line)


def _look(section: Section[Any], context: Context) -> dict[str, Any]:
    """What one section found, or why it failed."""
    start = time.perf_counter()
    late = None if section.every_attempt else context.too_short_for(section_step(section.name))
    try:
        if late is not None:
            raise OutOfTime(late)
        entry = section.entry("done", section.run(context))
    except OutOfTime as reason:
        entry = {**section.entry("skipped", why=str(reason)), "late": True}
    except Skip as reason:
        entry = section.entry("skipped", why=str(reason))
    except NtkscopeError as error:
        entry = section.entry("failed", why=str(error))
    except Exception as error:
        entry = section.entry("failed", why=f"{type(error).__name__}: {error}")
        entry["trace"] = traceback.format_exc(limit=-4)
    entry["seconds"] = round(time.perf_counter() - start, 4)
    return entry


def _nothing(line: str) -> None:
    """Says nothing."""
