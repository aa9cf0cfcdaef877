"""Links between pages: where a file of the project is in the site, and the links of a page to it.

Pages are read in the repository too, so they link to files by their place in it. Whatever a page links to comes into the site:
Markdown as a page, everything else as it is.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAPERS = ROOT / "papers" / "ntkscope_papers"
FENCE = re.compile(r"^( *)(```|~~~).*?^\1\2 *$|`[^`\n]+`", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(\]\()([^)\s]+)((?: \"[^\"]*\")?\))")


def place(file: Path) -> str:
    """Where a file of the project is in the site.

    >>> place(DOCS / "guides" / "xray.md"), place(PAPERS / "im_2021" / "README.md"), place(ROOT / "CHANGELOG.md")
    ('guides/xray.md', 'papers/im_2021.md', 'project/CHANGELOG.md')
    >>> place(DOCS / "tutorials" / "01-xray.ipynb")
    'tutorials/01-xray.md'
    """
    if file.is_relative_to(DOCS):
        inside = file.relative_to(DOCS)
        return inside.with_suffix(".md").as_posix() if file.suffix == ".ipynb" else inside.as_posix()
    if file.name == "README.md" and file.parent.parent == PAPERS:
        return f"papers/{file.parent.name}.md"
    inside = file.relative_to(ROOT)
    if file.suffix == ".md" or file.is_dir():
        return f"project/{'-'.join(inside.with_suffix('').parts[-3:])}.md"
    return f"files/{inside.as_posix()}"


def over_links(text: str, change: Callable[[str], str]) -> str:
    """The text with every link outside of code replaced by what `change` makes of it."""

    def changed(prose: str) -> str:
        return LINK.sub(lambda match: f"{match[1]}{change(match[2])}{match[3]}", prose)

    parts, end = [], 0
    for code in FENCE.finditer(text):
        parts += [changed(text[end : code.start()]), code[0]]
        end = code.end()
    return "".join([*parts, changed(text[end:])])


def target_of(link: str, page: Path) -> tuple[Path, str] | None:
    """The file of the project that a link of `page` leads to, and the anchor; None of other sites and of the page itself."""
    name, _, anchor = link.partition("#")
    if re.match(r"[a-z]+:", link) or not name:
        return None
    return Path(os.path.normpath(page.parent / name)), anchor


def in_site(text: str, page: Path) -> str:
    """The text of a page with its links as they are in the site."""

    def one(link: str) -> str:
        found = target_of(link, page)
        if found is None:
            return link
        file, anchor = found
        here = PurePosixPath(place(page)).parent
        return os.path.relpath(place(file), here) + (f"#{anchor}" if anchor else "")

    return over_links(text, one)


def linked(pages: Iterable[Path]) -> list[Path]:
    """The files and folders outside of docs/ that pages link to, and those that these link to."""
    reached: set[Path] = set()
    waiting = list(pages)
    while waiting:
        page = waiting.pop()
        if page.suffix != ".md" and not page.is_dir():
            continue
        for target in targets(page):
            if target.exists() and not target.is_relative_to(DOCS) and target not in reached:
                reached.add(target)
                waiting.append(target)
    return sorted(reached)


def targets(page: Path) -> list[Path]:
    """What a page links to, and what is in a folder."""
    if page.is_dir():
        return sorted(page.iterdir())
    targets: list[Path] = []

    def one(link: str) -> str:
        found = target_of(link, page)
        if found is not None:
            targets.append(found[0])
        return link

    over_links(page.read_text(encoding="utf-8"), one)
    return targets


def listing(folder: Path) -> str:
    """A page that lists a folder."""
    here = PurePosixPath(place(folder)).parent
    lines = [f"- [{file.name}]({os.path.relpath(place(file), here)})" for file in sorted(folder.iterdir())]
    return "\n".join([f"# {folder.relative_to(ROOT).as_posix()}", "", *lines, ""])
