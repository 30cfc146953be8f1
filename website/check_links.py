"""Links of the built site: every one inside it, and its anchor, leads somewhere.

python website/check_links.py build/site     # prints the ones that do not; exit 1 if there are any

Nothing that a page loads may come from elsewhere: scripts, styles, fonts and images are local.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

_LOADING = {"script": "src", "img": "src", "link": "href", "iframe": "src", "source": "src"}


class _Page(HTMLParser):
    """Anchors, links and loaded files of a page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.anchors |= {values[name] for name in ("id", "name") if name in values}
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        elif tag in _LOADING and _LOADING[tag] in values:
            self.loaded.append(values[_LOADING[tag]])


def faults(site: Path) -> Iterator[str]:
    """Yield a line for every link that leads nowhere and every file from elsewhere."""
    pages = {path.resolve(): _Page(path) for path in sorted(site.rglob("*.html"))}
    for path, page in pages.items():
        name = path.relative_to(site.resolve())
        yield from (f"{name}: loads {url}" for url in page.loaded if urlsplit(url).netloc)
        for url in {*page.links, *page.loaded}:
            parts = urlsplit(url)
            if parts.scheme or parts.netloc or name.name == "404.html":
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            target = target / "index.html" if target.is_dir() else target
            anchor = unquote(parts.fragment)
            if not target.exists():
                yield f"{name}: {url} is no page"
            elif anchor and target in pages and anchor not in pages[target].anchors:
                yield f"{name}: {url} is no place"


if __name__ == "__main__":
    SITE = Path(sys.argv[1])
    found = list(faults(SITE))
    print(
        "\n".join(found) or f"{len(list(SITE.rglob('*.html')))} pages, every link leads somewhere"
    )
    sys.exit(bool(found))
