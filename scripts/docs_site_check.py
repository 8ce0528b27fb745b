"""Checks a built site: every link in it leads somewhere, and it loads nothing from elsewhere."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

# What a browser loads by itself; `a` is only followed.
LOADED = {"audio", "embed", "iframe", "img", "link", "script", "source", "video"}
_NOT_LOADED = {"canonical", "next", "prev", "edit"}  # of `link`
# The page of errors is shown at any address, and so names everything from the server's root.
_ERRORS = "404.html"


@dataclass
class Page(HTMLParser):
    """What an HTML page refers to, and what can be referred to in it."""

    links: list[str] = field(default_factory=list)
    loads: list[str] = field(default_factory=list)
    anchors: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        super().__init__()

    __hash__ = object.__hash__

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value for name, value in attrs if value}
        self.anchors.update(values[name] for name in ("id", "name") if name in values)
        target = values.get("href") or values.get("src")
        if target is None:
            return
        if tag in LOADED and values.get("rel") not in _NOT_LOADED:
            self.loads.append(target)
        else:
            self.links.append(target)


def read_pages(site: Path) -> dict[Path, Page]:
    """Every HTML page of the site, by its resolved path."""
    pages = {}
    for path in sorted(site.resolve().rglob("*.html")):
        page = Page()
        page.feed(path.read_text(encoding="utf-8"))
        pages[path] = page
    return pages


def find_faults(site: Path) -> list[str]:
    """What is wrong with the site's references, a line each."""
    pages = read_pages(site)
    faults = [] if pages else [f"{site} has no pages"]
    for path, page in pages.items():
        if path.name == _ERRORS:
            continue
        where = path.relative_to(site.resolve()).as_posix()
        faults += [f"{where}: loads {target} from elsewhere" for target in page.loads if _is_elsewhere(target)]
        for target in [*page.links, *page.loads]:
            if not _is_elsewhere(target) and not _leads_somewhere(path, target, pages):
                faults.append(f"{where}: {target} leads nowhere")
    return faults


def _is_elsewhere(target: str) -> bool:
    parts = urlsplit(target)
    return bool(parts.netloc) or parts.scheme in ("http", "https", "mailto", "javascript")


def _leads_somewhere(page: Path, target: str, pages: dict[Path, Page]) -> bool:
    parts = urlsplit(target)
    if parts.scheme == "data":
        return True
    path = (page.parent / unquote(parts.path)).resolve() if parts.path else page
    if path.is_dir():
        path /= "index.html"
    if not path.is_file():
        return False
    return not parts.fragment or path not in pages or unquote(parts.fragment) in pages[path].anchors


def main(arguments: list[str]) -> int:
    site = Path(arguments[0])
    faults = find_faults(site)
    print("\n".join(faults) if faults else f"{len(read_pages(site))} pages in {site}/", file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
