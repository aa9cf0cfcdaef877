"""The page of one record: an X-ray by its sections, a tracked training by its spectra, any other by its claims and numbers."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Any

from ntkscope.core import NtkscopeError, Record
from ntkscope.core.arguments import path_of
from ntkscope.core.errors import RecordError
from ntkscope.report.comparison import COMPARISON, comparison
from ntkscope.report.document import document, save
from ntkscope.report.headlines import headline
from ntkscope.report.help import popover
from ntkscope.report.items import COLUMNS
from ntkscope.report.markup import Markup, folded, tag
from ntkscope.report.numbers import NONE, duration, number
from ntkscope.report.result import result, status_note
from ntkscope.report.scores import write_scores
from ntkscope.report.source import Section, Source, mapping
from ntkscope.report.tracking import TRACKING, tracking
from ntkscope.report.views import draw
from ntkscope.report.views._findings import findings, left_out

FILE = "page.html"
_KINDS = {COMPARISON: comparison, TRACKING: tracking}  # records with a page of their own
_STATES = {"skipped": "Left out", "failed": "This part failed", "waiting": "Not computed yet"}


def write_page(folder: str | Path, out: str | Path | None = None) -> Path:
    """Write the page of the record in `folder` and return its path; `out` is a file, `page.html` beside the record by default.

    The file contains everything it shows and loads nothing from the network; a record that is still being written gives a
    page of what is there so far. Beside the page of an X-ray in its own folder lie `scores.csv` and `scores.json`, with the
    scores of every training item. O(bytes of the arrays shown).

    Examples:
        >>> _ = ns.Record.create(folder, kind="example")
        >>> write_page(folder).name
        'page.html'
    """
    folder = path_of(folder, "folder")
    if out is not None:
        return Page(folder).write(out)
    page = Page(folder)
    page.files = write_scores(Source(page.record), folder) if is_xray(page.record) else ()
    return page.write(folder / FILE)


class Page:
    """The page of a record; a notebook shows it in a frame.

    Examples:
        >>> record = ns.Record.create(folder, kind="example")
        >>> "<!doctype html>" in Page(record).html.lower()
        True
    """

    def __init__(self, record: Record | str | Path) -> None:
        self.record = record if isinstance(record, Record) else Record.open(record)
        self.files: tuple[str, ...] = ()  # beside the page, which links to them

    @property
    def html(self) -> str:
        """The whole page."""
        try:
            if is_xray(self.record):
                return str(_xray(self.record, self.files))
            return str(_KINDS.get(self.record.kind, result)(self.record))
        except NtkscopeError:
            raise
        except Exception as error:  # a record may hold anything where its schema says nothing
            raise RecordError(
                f"no page can be made of {self.record.folder}: its record holds something that no run writes"
                f" ({type(error).__name__}: {error}); restore it or run again"
            ) from error

    def write(self, out: str | Path) -> Path:
        """Write the page to the file `out`."""
        return save(self.html, out)

    def __repr__(self) -> str:
        return f"Page({self.record!r})"

    def _repr_html_(self) -> str:
        """The page in its own frame: its styles and scripts cannot affect the notebook."""
        held = escape(self.html, quote=True)
        style = "width:100%;height:720px;border:1px solid #8886;border-radius:6px"
        return f'<iframe srcdoc="{held}" sandbox="allow-scripts allow-downloads" style="{style}" title="ntkscope"></iframe>'


def is_xray(record: Record) -> bool:
    """Whether a record has sections to show."""
    return record.kind == "xray" or "xray_schema" in record.metrics


def _xray(record: Record, files: tuple[str, ...] = ()) -> Markup:
    source = Source(record)
    source.files = files
    sections = source.sections()
    shown, data = [], {}
    for n, section in enumerate(sections, 1):
        body, published = _section(n, section, source)
        shown.append(body)
        if published:
            data[section.name] = published
    data["items"] = _items_data(source)
    return document(
        f"{_title(source)} – ntkscope",
        [_header(source), *shown, popover(source.regression), _dialog()],
        links=[(section.anchor, section.title) for section in sections],
        data=data,
        style=source.items.style(),
        foot=foot(record),
    )


def _title(source: Source) -> str:
    name = str(mapping(source.metrics.get("model")).get("name", ""))
    data = str(source.data.get("name") or "")
    if name:
        return f"X-ray of {name} on {data}" if data else f"X-ray of {name}"
    return f"X-ray: {source.record.name}"


def _header(source: Source) -> Markup:
    """What we checked, in a few facts, and what a reader must know first."""
    record, data = source.record, source.data
    model = mapping(source.metrics.get("model"))
    facts = [
        ("Parameters", number(model.get("parameters"))),
        ("Outputs" if source.regression else "Classes", number(len(source.classes) or model.get("outputs"))),
        ("Training items", _of(data.get("train_items"), data.get("train_total"))),
        ("Test items", _of(data.get("test_items"), data.get("test_total"))),
        ("Took", duration(record.wall_seconds)),
    ]
    return tag(
        "header",
        tag("p", "Which kernel machine is this network?", class_="eyebrow"),
        tag("h1", _title(source)),
        tag(
            "dl",
            *(tag("div", tag("dt", name), tag("dd", value)) for name, value in facts if value != NONE),
            class_="facts",
        ),
        tag("p", note, class_="note") if (note := status_note(record)) else None,
        left_out(source),
        _findings(source),
        _readers(source),
    )


def _readers(source: Source) -> Markup | None:
    """Where to begin, by what one came for."""
    wanted = (
        ("To clean labels", "problems"),
        ("To understand one prediction", "explain"),
        ("To know whether the explanations can be trusted", "surrogates"),
        ("To study feature learning", "kernel"),
    )
    found = [(words, source.section(name)) for words, name in wanted]
    links = [
        tag("li", f"{words}: ", tag("a", section.title, href=f"#{section.anchor}"))
        for words, section in found
        if section.status == "done"
    ]
    return tag("ul", *links, class_="readers", aria_label="Where to begin") if links else None


def _findings(source: Source) -> Markup | None:
    """What to act on; a record may hold anything, so a page without its findings is better than none."""
    try:
        return findings(source)
    except (ArithmeticError, AttributeError, LookupError, NtkscopeError, OSError, TypeError, ValueError):
        return None


def _of(used: Any, total: Any) -> str:
    if total is None:
        return number(used)
    return f"all {number(used)}" if used == total else f"{number(used)} of {number(total)}"


def foot(record: Record) -> Markup:
    """Where the numbers come from."""
    document = record.to_json()
    version = mapping(record.environment.get("packages")).get("ntkscope", "")
    said = f"ntkscope {version}, run started {document['started']}."
    return tag("p", said, " Made from a record on disk; this file loads nothing from the network.")


def _section(n: int, section: Section, source: Source) -> tuple[Markup, Mapping[str, Any]]:
    """Title, meaning, confidence, the formula (folded), then the content."""
    anchor = section.anchor
    parts = [
        tag("h2", tag("span", str(n), class_="ordinal-mark", aria_hidden="true"), section.title, id=f"{anchor}-title"),
        tag("p", section.meaning, class_="meaning") if section.meaning else None,
        tag("p", tag("b", "Confidence: "), section.confidence, class_="confidence") if section.confidence else None,
        tag("details", tag("summary", "Formula"), tag("pre", section.formula, tabindex="0"), class_="formula")
        if section.formula
        else None,
    ]
    data: Mapping[str, Any] = {}
    if section.status == "done":
        drawing, said = draw(section, source), headline(section, source)
        parts = (
            [parts[0], folded(said, [*parts[1:], drawing.body], "whole-section")] if said else [*parts, drawing.body]
        )
        data = drawing.data
    else:
        said = _STATES.get(section.status, section.status)
        parts.append(tag("p", tag("b", said), f": {section.why}" if section.why else ".", class_="note"))
    return tag(
        "section", *parts, id=anchor, aria_labelledby=f"{anchor}-title", class_=f"part-of-page {section.status}"
    ), data


def _items_data(source: Source) -> dict[str, Any]:
    """Training items by column: label, number and scores of all, place in the sheet, text and id of those that the page shows.

    Called after all views, since they decide which items are shown.
    """
    items, shown = source.items, source.items.used("train")
    columns = {
        "label": source.array("labels.train"),
        "target": source.array("targets.train"),
        "number": source.array("originals.train"),
        "score": source.label_scores,
        "suggested": source.array("problems.suggested"),
        "share": source.array("problems.share"),
    }
    return {
        "classes": source.classes,
        "columns": COLUMNS,
        "scores": next((name for name in source.files if name.endswith(".csv")), None),
        "shown": shown,
        "slot": [items.slot("train", i) for i in shown],
        "text": [items.text("train", i) for i in shown],
        "id": [items.identifier("train", i) for i in shown],
        "train": {name: values for name, values in columns.items() if values is not None and 1 <= values.ndim <= 2},
    }


def _dialog() -> Markup:
    """The empty panel for one training item; `assets/items.js` fills it."""
    close = tag("button", "Close", type="button", class_="action", popovertarget="train-item")
    inner = tag("div", id="train-item-body")
    return tag(
        "div",
        inner,
        close,
        id="train-item",
        popover="auto",
        class_="popover",
        role="dialog",
        aria_label="Training item",
    )
