"""What a built site must be: every link leads somewhere, every page is found, and nothing comes from a network.

python -m tools.site.checks FOLDER

Exits with 1 if anything is wrong; links to other sites are listed, not followed.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

LOADED = {
    "img": "src",
    "script": "src",
    "link": "href",
    "iframe": "src",
    "source": "src",
    "video": "src",
    "object": "data",
}


class Reader(HTMLParser):
    """The links of a page, what it loads, its anchors, and the links of its navigation."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.navigation: list[str] = []
        self.anchors: set[str] = set()
        self._depth = 0  # of <nav>
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.anchors |= {given[name] for name in ("id", "name") if name in given}
        self._depth += tag == "nav"
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
            if self._depth:
                self.navigation.append(given["href"])
        if given.get(LOADED.get(tag, "")) and given.get("rel") != "canonical":
            self.loads.append(given[LOADED[tag]])

    def handle_endtag(self, tag: str) -> None:
        self._depth -= tag == "nav"


@dataclass(frozen=True)
class Site:
    """A built site; a page of it by its path in the folder."""

    folder: Path
    entry: str = "index.html"
    spared: tuple[str, ...] = field(default=("404.html",))  # its links start at the root of a server

    @cached_property
    def pages(self) -> dict[str, Reader]:
        return {
            path.relative_to(self.folder).as_posix(): Reader(path.read_text(encoding="utf-8"))
            for path in sorted(self.folder.rglob("*.html"))
            if path.name not in self.spared
        }

    def resolved(self, page: str, link: str) -> tuple[str, str] | None:
        """The file in the site that a link leads to, and the anchor; None of other sites."""
        parts = urlsplit(link)
        if parts.scheme or parts.netloc:
            return None
        file = os.path.normpath(os.path.join(os.path.dirname(page), unquote(parts.path))) if parts.path else page
        return ("index.html" if file == "." else file), unquote(parts.fragment)

    def dead(self) -> Iterator[str]:
        """Links to files or anchors that are not there."""
        for page, reader in self.pages.items():
            for link in dict.fromkeys([*reader.links, *reader.loads]):
                found = self.resolved(page, link)
                if found is None:
                    continue
                file, anchor = found
                if not (self.folder / file).is_file():
                    yield f"{page}: {link}: no such file"
                elif anchor and file in self.pages and anchor not in self.pages[file].anchors:
                    yield f"{page}: {link}: no such anchor"

    def from_a_network(self) -> Iterator[str]:
        """What pages load from elsewhere: a script, a style, a picture."""
        for page, reader in self.pages.items():
            for load in reader.loads:
                if urlsplit(load).scheme not in ("", "data") or urlsplit(load).netloc:
                    yield f"{page}: {load}"

    def out_of_reach(self) -> Iterator[str]:
        """Pages to which no navigation leads, starting at the entry."""
        reached, waiting = {self.entry}, [self.entry]
        while waiting:
            page = waiting.pop()
            for link in self.pages[page].navigation:
                found = self.resolved(page, link)
                if found is not None and found[0] in self.pages and found[0] not in reached:
                    reached.add(found[0])
                    waiting.append(found[0])
        yield from sorted(set(self.pages) - reached)

    def elsewhere(self) -> set[str]:
        """Links to other sites."""
        return {
            link
            for reader in self.pages.values()
            for link in reader.links
            if urlsplit(link).scheme in ("http", "https")
        }


def main(folder: str) -> int:
    site = Site(Path(folder))
    wrong = 0
    for title, found in (
        ("dead link", list(site.dead())),
        ("loaded from a network", list(site.from_a_network())),
        ("in no navigation", list(site.out_of_reach())),
    ):
        wrong += len(found)
        print("\n".join(f"{title}: {each}" for each in found), end="\n" if found else "")
    print("\n".join(f"to another site: {link}" for link in sorted(site.elsewhere())))
    print(f"{len(site.pages)} pages, {wrong} wrong")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
