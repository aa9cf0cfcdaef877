"""The job: a trained network and its data in, a record out; a run that was stopped is resumed."""

from __future__ import annotations

import math
import os
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import ntkscope.xray.sections  # noqa: F401 - registers them
from ntkscope.core import NtkscopeError, Record, UsageError
from ntkscope.core.arguments import as_device
from ntkscope.core.errors import RecordError
from ntkscope.core.files.plain import differences, to_plain
from ntkscope.core.identity import Answers
from ntkscope.core.machine.threads import single_blas
from ntkscope.core.progress import TimeLimit, counter, duration, time_limit
from ntkscope.core.records.record import FILE
from ntkscope.core.records.soundness import unsound
from ntkscope.core.types import fingerprint
from ntkscope.data.subsets import stratified
from ntkscope.kernels import KERNELS, kernel
from ntkscope.kernels.costs import Rates
from ntkscope.machines import measure_rates
from ntkscope.machines.rates import MOST
from ntkscope.measures.faithfulness import probabilities
from ntkscope.training.evaluation import evaluating
from ntkscope.xray import resuming
from ntkscope.xray.budget import Clock, Pace, as_budget, half_of_the_budget
from ntkscope.xray.context import Context, Subject
from ntkscope.xray.items import collect_both, compared_inputs, fitted
from ntkscope.xray.network import (
    Params,
    check_trained,
    chosen_parameters,
    initial_network,
    last_blocks,
    last_layer,
    tried,
)
from ntkscope.xray.pictures import channel_range, thumbnails
from ntkscope.xray.plan import EXACT, PAGE_STEP, Plan, extended, kernel_step, make_plan, section_step
from ntkscope.xray.registry import OutOfTime, Section, Skip, in_order, on_the_page
from ntkscope.xray.sections import surrogates
from ntkscope.xray.settings import Say, Settings
from ntkscope.xray.task import CLASSIFICATION
from ntkscope.xray.tracked import tracked_training
from ntkscope.xray.training import training_of
from ntkscope.xray.workload import Workload

SCHEMA = 1
DEFAULTS = Settings()
PROBING = 0.1  # of the time that is left, after which a probe is content with what it has
SLOW = 2.0  # times slower than at rest that the page may become


def xray(
    model: nn.Module,
    train: Any,
    test: Any,
    out: str | Path = "xray/",
    *,
    settings: Settings = DEFAULTS,
    **options: Any,
) -> Record:
    """X-ray a trained network: which kernel machine it is, how far to trust that, what supports each prediction.

    `train`, `test`: a `Part`, (inputs, labels), a mapping with labels, a Dataset or a DataLoader; texts with `tokenizer=`.
    `options`: any field of `Settings`, among them `initial` (the network before training), `budget`, `device`, `seed`,
    `classes`, `kernels`, `params` and `task`. The model is run in evaluation mode and left unchanged.

    The record in `out` is written as it grows. Called again with the same arguments it resumes from what is there; another
    network, other data, labels, seeds, or `options=` (what a factory made the network with) are refused: their fingerprints
    are compared, the network is run again and a few entries of a stored kernel are recomputed. The page is made from it by
    `ntkscope.report.write_page(out)`; `ntkscope xray` does both.

    Examples:
        >>> record = xray(model, (x, y), (x, y), folder, budget="1s", progress=False)
        >>> record.kind, record.status, ns.report.write_page(folder).name
        ('xray', 'done', 'page.html')
    """
    began = time.perf_counter() if settings.began is None else settings.began
    if not isinstance(model, nn.Module):
        raise UsageError(f"got a model of type {type(model).__name__}; expected a torch.nn.Module")
    chosen = replace(settings, **{"began": began, **options})
    chosen = replace(chosen, budget=as_budget(chosen.budget))
    with evaluating(model), single_blas():
        return _Job.of(model, train, test, chosen).run(Path(out))


class _Job(Subject):
    """One X-ray of all items there are: what is the same in every attempt."""

    @classmethod
    def of(cls, model: nn.Module, train: Any, test: Any, settings: Settings) -> _Job:
        device = as_device(settings.device)
        tracked = tracked_training(settings.tracked, model)
        tokenizer = fitted(settings.tokenizer, model, settings.tell)
        everything, held = collect_both(train, test, tokenizer, settings.task)
        compared = settings.compare
        if compared is not None:
            compared = compared_inputs(compared, everything, tokenizer)
        few, _ = (tried(model, items, what, device) for items, what in ((everything, "train"), (held, "test")))
        task = everything.task
        count = task.from_outputs(few).shape[1]
        classes = task.output_names(settings.classes, count)
        task.check({"train": everything.y, "test": held.y}, count)
        return cls(
            model=model,
            initial=initial_network(model, settings.initial, everything.x),
            train=everything,
            test=held,
            compared=compared,
            classes=classes,
            width=few.shape[1],
            params=chosen_parameters(model, settings.params, everything, device),
            tracked=tracked,
            training=training_of(settings.training, model, everything),
            device=device,
            settings=settings,
            clock=Clock(settings.budget.seconds, time.perf_counter() if settings.began is None else settings.began),
        )

    @property
    def budget(self) -> dict[str, Any]:
        """What a record keeps of the budget; one that is resumed may have another time."""
        return {"time": self.settings.budget.seconds, "memory": str(self.settings.budget.memory)}

    @property
    def seeds(self) -> dict[str, int]:
        return {"xray": self.seed}

    @cached_property
    def config(self) -> dict[str, Any]:
        """What a record keeps of the arguments; one that is resumed must have the same."""
        settings, first, params = self.settings, self.initial, self.params
        return {
            "model": settings.name or type(self.model).__name__,
            "weights": _weights(self.model),
            "network": resuming.described(self.model),
            "initial": None if first is None else {"weights": _weights(first), **resuming.described(first)},
            "options": resuming.plain_options(settings.options),
            "data": settings.data_name,
            "memory": settings.budget.bytes,
            "train": fingerprint(self.train.x, self.train.y),
            "test": fingerprint(self.test.x, self.test.y),
            "max_train": settings.max_train,
            "max_test": settings.max_test,
            "kernels": None if settings.kernels is None else list(settings.kernels),
            "classes": list(self.classes),
            "certify": settings.certify,
            **({} if params is None else {"params": list(params)}),
            **({} if self.task is CLASSIFICATION else {"task": self.task.name}),
            **({} if self.tracked is None else {"tracked": self.tracked.identity}),
            **({} if self.training is None else {"training": self.training.identity}),
            **({} if self.compared is None else {"compare": fingerprint(self.compared)}),
        }

    def run(self, folder: Path) -> Record:
        """The record in `folder`, made or completed."""
        tell = self.settings.tell
        answers = resuming.answers(self.model, self.test, self.device)
        found = self.found(folder, answers)
        if found is not None and "plan" in found.metrics:
            lost = unsound(found.folder, found.to_json())  # reads all files
            resuming.check_kernel(self.context(found, Plan.from_record(found.metrics["plan"])), lost)
            if (
                _finished(found, on_the_page(self.task, self.given))
                and not lost
                and found.metrics["plan"]["budget"] == self.budget
            ):
                tell(f"{found.folder} already holds this X-ray, finished")
                return found
        if not self.settings.untrained:
            check_trained(self.model, self.train, self.test, seed=self.settings.seed, device=self.device)
        how: dict[str, Any] = {"config": self.config, "seeds": self.seeds, "device": self.device}
        if found is None:
            opened = Record.create(folder, kind="xray", name=f"X-ray of {self.config['model']}", **how)
        else:
            opened = Record.resume(folder, **how)
        with opened as record:
            record.count_from(self.clock.began)
            resuming.repair(record)
            resuming.reopen_lacking(record, on_the_page(self.task, self.given))
            if "answers" not in record.metrics:
                record.put(answers=answers.to_json())
            context = self.context(record, self.plan(record))
            self.describe(context)
            _run(context, tell)
        return record

    def found(self, folder: Path, answers: Answers) -> Record | None:
        """The record in `folder` to resume, or None if there is none; an error if it is a record of something else."""
        if not os.path.exists(folder / FILE):
            return None
        found = Record.open(folder)
        if found.kind != "xray":
            raise UsageError(
                f"{folder} already holds a record of kind {found.kind!r}; choose another folder for the X-ray"
            )
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
        for key, now in (("config", self.config), ("seeds", self.seeds)):
            other = differences(document[key], to_plain(now, key))
            if other:
                raise RecordError(
                    f"{folder} was made with another {key} ({'; '.join(other)}); resume it with the recorded {key}, or choose"
                    " another folder"
                )
        resuming.check_answers(found, answers)
        return found

    def context(self, record: Record, plan: Plan) -> Context:
        """What sections are computed with: the items of the plan."""
        rows = stratified(self.train.strata, plan.train, self.seed, "xray", "train")
        columns = stratified(self.test.strata, plan.test, self.seed, "xray", "test")
        part: dict[str, Any] = {"train": self.train.take(torch.from_numpy(rows))}
        part["test"] = self.test.take(torch.from_numpy(columns))
        same: dict[str, Any] = {each.name: getattr(self, each.name) for each in fields(self)}
        timings = list(record.metrics.get("timings", []))
        if plan.params is not None:
            part["params"] = plan.params
        part["clock"] = replace(self.clock, reserved=max(plan.pace, SLOW) * plan.steps.get(PAGE_STEP, 0.0))
        return Context(**{**same, **part}, record=record, plan=plan, timings=timings, pace=Pace(plan.pace))

    def plan(self, record: Record) -> Plan:
        """The plan of an earlier attempt, so that its results can be used; else a new, measured one."""
        known, settings = record.metrics.get("plan"), self.settings
        plan = Plan.from_record(known) if known else self.new_plan(record)
        if known:
            settings.tell("resuming with the plan of the earlier attempt:")
            if known["budget"] != self.budget or record.metrics.get("left_out"):
                plan = extended(
                    plan, self.workload(Rates(**record.metrics["rates"])), settings.budget, settings.kernels
                )
                if record.metrics.get("left_out") or set(plan.kernels) - set(known["kernels"]):
                    resuming.reopen(record, surrogates.SECTION.of(self.task), on_the_page(self.task, self.given))
        document = {**plan.to_record(), "budget": self.budget}
        record.put(plan=document, left_out=[], recipe_checksum=resuming.recipe_checksum(record, document))
        for line in plan.text:
            settings.tell(f"  {line}")
        return plan

    def new_plan(self, record: Record) -> Plan:
        """By rates measured on a few items; where gradients by all parameters do not fit all items, by the last ones alone."""
        settings, budget, start = self.settings, self.settings.budget, time.perf_counter()
        of_all = sum(p.numel() for p in self.model.parameters() if p.requires_grad)
        options: dict[str, Any] = {name: getattr(settings, name) for name in ("max_train", "max_test", "kernels")}
        choices: list[Params] = [self.params]
        allowed = PROBING * self.clock.left()

        def whole(plan: Plan, work: Workload) -> bool:
            """Whether the time does not cost items."""
            unhurried = make_plan(work, replace(budget, time=None), **options)
            return (plan.train, plan.test) == (unhurried.train, unhurried.test)

        if self.params is None and budget.seconds is not None:
            choices += last_blocks(self.model)
            with suppress(UsageError):  # the outputs do not go through one last layer
                choices.append(last_layer(self.model, self.train, self.device))
        sizes, rates = {name: p.numel() for name, p in self.model.named_parameters()}, None
        for params in dict.fromkeys(choices):
            if rates is not None and params != choices[-1]:
                least = self.workload(rates.least(sum(sizes[name] for name in params or ())))
                if not whole(make_plan(least, budget, **options, spent=self.clock.spent()), least):
                    continue  # it need not be tried
            how: dict[str, Any] = {"memory": budget.bytes // 2, "certify": settings.certify, "params": params}
            with half_of_the_budget():
                by_all = 0.0 if rates is None else max(rates.whole, rates.sample)
                wait = allowed - (time.perf_counter() - start)
                measured = measure_rates(self.model, self.train.x, device=self.device, wait=wait, **how)
                rates = replace(measured, whole=by_all)
                work = self.workload(rates)
                pace = self.pace(work, how)
            if params is not None and params is self.params:
                options["gradients"] = (
                    f"gradients by {rates.parameters:,} parameters, those that match {', '.join(params)}"
                )
            elif params is not None:
                options["gradients"] = (
                    f"tangent kernels of the last {rates.parameters:,} of {of_all:,} parameters (from {params[0]} on): those of"
                    " all would not fit the time"
                )
            plan = make_plan(work, budget, **options, spent=self.clock.spent(), pace=pace)
            if whole(plan, work):
                break
        record.put(timings=[{"what": "probe", "seconds": round(time.perf_counter() - start, 4)}], rates=rates)
        return plan if params is self.params else replace(plan, params=params)

    def pace(self, work: Workload, how: dict[str, Any]) -> float:
        """How many times slower than at rest the machine is now; measured on a first block of items where time is short."""
        pace, count, left = work.rates.pace, work.train // 8, self.clock.left()
        if 3 * pace * work.kernel(EXACT) < left:
            return pace
        while count >= MOST and pace * work.once(count) > left / 20:
            count //= 2
        if count < MOST:
            return pace
        items, start = self.train.take(torch.arange(count)), time.perf_counter()
        kernel(EXACT, self.model, items.x, device=self.device, **how)
        return max(1.0, (time.perf_counter() - start) / work.once(count))

    def describe(self, context: Context) -> None:
        """Model, data and what the views show of single items."""
        record, plan, classifies = context.record, context.plan, self.task is CLASSIFICATION
        sections, metrics = on_the_page(self.task, context.given), record.metrics
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
            model={"name": self.config["model"], "parameters": parameters, "outputs": self.width},
            data={
                "name": self.config["data"],
                "train_items": plan.train,
                "train_total": len(self.train),
                "test_items": plan.test,
                "test_total": len(self.test),
                "classes": list(context.classes) if classifies else [],
                "subsampled": plan.subsampled,
                "kind": context.train.kind,
                **({} if classifies else {"task": self.task.name, "outputs": list(context.classes)}),
            },
            sections=[section.name for section in sections],
            **told,
            **kept,
        )
        labels = self.task.labels
        if f"{labels}.train" in record.arrays:
            return
        if classifies:
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


def _weights(model: nn.Module) -> str:
    return fingerprint(
        {name: value for name, value in model.state_dict().items() if not name.endswith("num_batches_tracked")}
    )


def _finished(found: Record, sections: Sequence[Section[Any]]) -> bool:
    entries = [found.metrics.get(section.key, {}) for section in sections]
    skipped = [entry.get("status") == "skipped" and not entry.get("late") for entry in entries]
    whole = all(gone or _done(section, found) for section, gone in zip(sections, skipped))
    return found.status == "done" and whole and not found.metrics.get("left_out")


def _done(section: Section[Any], record: Record) -> bool:
    """Whether the record holds the section's result in a form this version can read."""
    try:
        return section.read(record.metrics) is not None
    except RecordError:
        return False


# -- the run --------------------------------------------------------------------------------------------------------------


def _run(context: Context, tell: Say) -> None:
    """Run every section that is not done and store each as soon as it is; one that fails does not affect the others."""
    record = context.record
    unplanned = {kernel_step(name) for name in context.plan.unplanned}
    steps = {step: seconds for step, seconds in context.plan.steps.items() if step not in unplanned}
    shares = {step: max(1, round(10 * seconds)) for step, seconds in steps.items()}  # tenths of seconds
    how: dict[str, Any] = {"enabled": context.settings.progress, "most_left": context.clock.left}
    with record.stage("sections"), counter(sum(shares.values()), "X-ray", **how) as bar:

        def step_done(step: str) -> None:
            bar.advance(shares.pop(step, 0))

        context.step_done = step_done
        for section in _turns(context):
            if section.every_attempt or not _done(section, record):
                bar.message(section.title)
                entry = look(section, context)
                context.timings.append({"what": section_step(section.name), "seconds": entry["seconds"]})
                record.put(**{section.key: entry, "timings": context.timings})
                tell(f"{section.title}: {entry['status']}{'' if entry['why'] is None else ', ' + entry['why']}")
            step_done(section_step(section.name))
        if record.metrics["left_out"]:
            tell(f"left out, since the time would not have sufficed: {', '.join(record.metrics['left_out'])}")


def _turns(context: Context) -> Iterator[Section[Any]]:
    """Essential sections, those of them that were stopped once more in the time that the others left, and then the rest."""
    sections = in_order(context.task, context.given)
    essential = [section for section in sections if section.essential]
    yield from essential
    for section in essential:
        if context.clock.left() > 0 and context.record.metrics[section.key].get("late"):
            resuming.reopen(context.record, section, essential)
    yield from [section for section in essential if context.record.metrics[section.key]["status"] == "waiting"]
    yield from [section for section in sections if not section.essential]


def look(section: Section[Any], context: Context) -> dict[str, Any]:
    """What one section found, or why it failed."""
    start, kernels, over = time.perf_counter(), context.kernel_seconds, context.clock.left() <= 0
    step = section_step(section.name)
    try:
        if not (section.every_attempt or section.essential) and (late := context.too_short_for(step)) is not None:
            raise OutOfTime(late)
        with time_limit(math.inf if section.every_attempt or section.keeps_time else context.allowed(section)):
            entry = section.entry("done", section.run(context))
        context.pace.saw(
            context.plan.steps.get(step, 0.0), time.perf_counter() - start - context.kernel_seconds + kernels
        )
    except TimeLimit:
        took = duration(time.perf_counter() - start)
        told = (
            "the time was over before it began"
            if over
            else f"it took longer than expected, and the time was over after {took}"
        )
        entry = {**section.entry("skipped", why=f"{told}; start the same X-ray again to compute it"), "late": True}
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
