"""Checks of a site that was built: links and anchors lead somewhere, and nothing comes from the network."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

_OF_NETWORK = re.compile(r"(https?:)?//[^/\s]")
_IN_STYLE = re.compile(r"(?:url\(|@import)\s*['\"]?((?:https?:)?//[^'\")\s]+)")


@dataclass(slots=True)
class Page:
    """The links, resources and anchors of a page."""

    links: list[str] = field(default_factory=list)
    resources: list[str] = field(default_factory=list)
    anchors: set[str] = field(default_factory=set)


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.page = Page()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.page.anchors |= {values[name] for name in ("id", "name") if name in values}
        if tag == "a" and "href" in values:
            self.page.links.append(values["href"])
        elif tag == "link" and values.get("rel") not in ("canonical", "prev", "next"):
            self.page.resources.append(values.get("href", ""))
        self.page.resources += [values[name] for name in ("src", "srcset", "data", "poster") if values.get(name)]
        self.page.resources += _IN_STYLE.findall(values.get("style", ""))


def read_page(html: str) -> Page:
    """The links, resources and anchors of a page.

    Example:
        >>> read_page('<a id="top" href="x.html#y">X</a><img src="x.png">')
        Page(links=['x.html#y'], resources=['x.png'], anchors={'top'})
    """
    reader = _Reader()
    reader.feed(html)
    reader.page.resources += [
        each for style in re.findall(r"<style[^>]*>(.*?)</style>", html, re.DOTALL) for each in _IN_STYLE.findall(style)
    ]
    return reader.page


def from_network(site: Path) -> Iterator[str]:
    """Every style, script, font or image that a page or a style sheet of the site takes from the network."""
    for file in sorted(site.rglob("*.html")):
        for resource in read_page(file.read_text(encoding="utf-8")).resources:
            if _OF_NETWORK.match(resource):
                yield f"{file.relative_to(site)}: {resource}"
    for file in sorted(site.rglob("*.css")):
        for resource in _IN_STYLE.findall(file.read_text(encoding="utf-8")):
            yield f"{file.relative_to(site)}: {resource}"


def broken(site: Path) -> Iterator[str]:
    """Every link of a page to a page, file or anchor of the site that is not there."""
    pages = {file.resolve(): read_page(file.read_text(encoding="utf-8")) for file in site.rglob("*.html")}
    for file, page in sorted(pages.items()):
        for link in [*page.links, *page.resources]:
            url = urlsplit(link)
            if url.scheme or url.netloc or (file.name == "404.html" and link.startswith("/")):
                continue
            target = (file.parent / unquote(url.path)).resolve() if url.path else file
            if target.is_dir():
                target = target / "index.html"
            where = f"{file.relative_to(site.resolve())}: {link}"
            if not target.exists():
                yield f"{where}: no such page"
            elif url.fragment and target in pages and unquote(url.fragment) not in pages[target].anchors:
                yield f"{where}: no such anchor"
