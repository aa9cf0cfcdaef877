"""What MkDocs calls while it builds the site: pages that are made, files that are linked, and the folders of the navigation."""

from __future__ import annotations

from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from tools.site import links, notebooks, reference

BOOST = {
    "results/findings": 1.0,
    "results/": 0.5,
    "tutorials/": 1.5,
    "reference/": 0.5,
    "design/": 0.5,
    "papers/": 0.3,
    "project/": 0.3,
}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add papers, notebooks, what pages link to, and the reference."""
    outside = links.linked([*links.DOCS.rglob("*.md"), *links.PAPERS.glob("*/README.md")])
    for path in sorted({*outside, *links.PAPERS.glob("*/README.md")}):
        if path.is_dir():
            files.append(File.generated(config, links.place(path), content=links.listing(path)))
        else:
            files.append(File.generated(config, links.place(path), abs_src_path=str(path)))
    for path in sorted((links.DOCS / "tutorials").glob("*.ipynb")):
        files.append(File.generated(config, links.place(path), content=notebooks.page(path)))
    texts = {file.src_uri: file.content_string for file in files.documentation_pages()}
    for place, text in reference.pages(texts).items():
        files.append(File.generated(config, place, content=text))
    config.nav = opened(config.nav, [file.src_uri for file in files.documentation_pages()])
    return files


def opened(nav: Any, places: list[str]) -> Any:
    """The navigation with every folder replaced by those of its pages that are not named elsewhere."""
    if isinstance(nav, dict):
        return {title: opened(inside, places) for title, inside in nav.items()}
    if isinstance(nav, list):
        return [each for item in nav for each in (inside(item, places) if is_folder(item) else [opened(item, places)])]
    return inside(nav, places) if is_folder(nav) else nav


def is_folder(item: Any) -> bool:
    return isinstance(item, str) and item.endswith("/")


def inside(folder: str, places: list[str]) -> list[str]:
    """The pages of a folder, its index first."""
    return sorted(
        (place for place in places if place.startswith(folder)), key=lambda place: (place[-9:] != "/index.md", place)
    )


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Links to files of the project become links in the site; a search finds what explains before what records."""
    page.meta.setdefault(
        "search", {"boost": next((b for f, b in BOOST.items() if page.file.src_uri.startswith(f)), 1.0)}
    )
    source = page.file.abs_src_path
    if source is None or page.file.src_uri.startswith("reference/"):
        return markdown
    return links.in_site(markdown, links.Path(source))
