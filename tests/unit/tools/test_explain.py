"""The pages that explain: their drawings, the example beside one, and links by name."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from tests.support.tools.browser import browser
from tests.support.tools.places import ROOT


def drawings() -> list[Path]:
    return sorted((ROOT / "docs/images").glob("*.svg"))


def faults_of(drawing: str) -> list[str]:
    """The faults of a drawing for readers without a network, with a screen reader, and on a page of 700 pixels."""
    found = [f"no {name}" for name in ("title", "desc") if not re.search(rf"<{name}[^>]*>\s*[^<\s]", drawing)]
    root = ET.fromstring(drawing)
    for element in root.iter():
        name = element.tag.rpartition("}")[2]
        if name in {"script", "foreignObject", "image"}:
            found.append(f"<{name}>")
        found += [
            f"{key}={value}" for key, value in element.attrib.items() if key.endswith("href") and value[:1] != "#"
        ]
    found += re.findall(r"@import[^;]*|url\((?!#)[^)]*\)", drawing)
    width = float(root.attrib["viewBox"].split()[2])
    sizes = re.findall(r"font(?:-size)?:\s*([\d.]+)px", drawing)
    return found + [f"{size}px" for size in sizes if float(size) * min(1, 700 / width) < 12]


def test_every_image_of_a_page_is_there_and_has_a_text() -> None:
    shown = set()
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]:
        for text, target in re.findall(r"!\[([^\]]*)\]\(([^)]+)\)", page.read_text("utf-8")):
            assert text, f"{page.name}: {target}"
            assert (page.parent / target).is_file(), f"{page.name}: {target}"
            shown.add((page.parent / target).resolve())
    assert set((ROOT / "docs/images").iterdir()) - shown == set()


@pytest.mark.parametrize("file", drawings(), ids=lambda file: file.stem)
def test_a_drawing_is_read_by_everybody(file: Path) -> None:
    assert faults_of(file.read_text("utf-8")) == []


def test_faults_of_drawings_are_found() -> None:
    text = (
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 1400 9"><title> </title><desc>A</desc><script/>'
        '<style>@import "x.css"; p { fill: url(//example.org/y); font: 13px sans-serif }</style>'
        '<use href="#a"/><image href="https://example.org/z.png"/></svg>'
    )
    assert faults_of(text) == [
        "no title",
        "<script>",
        "<image>",
        "href=https://example.org/z.png",
        '@import "x.css"',
        "url(//example.org/y)",
        "13px",
    ]


CROWDED = """
    const view = document.documentElement.viewBox.baseVal, found = [];
    const texts = [...document.querySelectorAll("text")].map(each => [each.textContent, each.getBBox()]);
    const right = box => box.x + box.width, bottom = box => box.y + box.height;
    texts.forEach(([text, box], number) => {
        if (box.x < 8 || box.y < 4 || right(box) > view.width - 8 || bottom(box) > view.height - 4) found.push(text);
        for (const [other, its] of texts.slice(number + 1))
            if (Math.min(right(box), right(its)) - Math.max(box.x, its.x) > 1 &&
                Math.min(bottom(box), bottom(its)) - Math.max(box.y, its.y) > 2) found.push(`${text} | ${other}`);
    });
    return found;
"""


@pytest.mark.slow
def test_texts_of_drawings_neither_overlap_nor_leave_the_drawing() -> None:
    with browser() as found:
        for file in drawings():
            found.get(file.as_uri())
            assert found.execute_script(CROWDED) == [], file.name
        texts = "<text x='20' y='40'>one</text><text x='30' y='40'>two</text><text x='80' y='80'>out</text>"
        found.get(f"data:image/svg+xml,<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 90 90'>{texts}</svg>")
        assert found.execute_script(CROWDED) == ["one | two", "out"]


def test_the_example_of_concepts_is_its_drawing_of_time() -> None:
    page = (ROOT / "docs/concepts.md").read_text("utf-8")
    (block,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    exec(compile(block, "concepts.md", "exec"), {"__name__": "concepts_page"})


def test_links_by_name_are_defined_and_used() -> None:
    for page in (ROOT / "docs").rglob("*.md"):
        text = re.sub(r"```.*?```|`[^`\n]*`", "", page.read_text("utf-8"), flags=re.DOTALL)
        defined = re.findall(r"^\[([^\]]+)\]: \S+$", text, re.MULTILINE)
        assert set(re.findall(r"\]\[([^\]]+)\]", text)) == set(defined), page.name
        assert len(defined) == len(set(defined)), page.name


def test_figures_of_the_comparison_are_those_of_the_benchmarks() -> None:
    measured = (ROOT / "benchmarks/README.md").read_text("utf-8")
    speed = (ROOT / "docs/comparison.md").read_text("utf-8").partition("\n## Speed\n")[2].partition("\n## ")[0]
    rows = [line for line in speed.split("\n") if line.startswith("| ") and "results/" in line]
    assert len(rows) > 5
    for row in rows:
        ours, theirs, ratio = (re.findall(r"\d[\d,]*(?:\.\d+)?", cell)[0] for cell in _figures(row))
        assert all(
            re.search(rf"(?<![\d,.]){re.escape(each)}(?![\d,]|\.\d)", measured) for each in (ours, theirs, ratio)
        ), row
        exact = int(ours.replace(",", "")) / int(theirs.replace(",", ""))
        assert f"{exact:.{len(ratio.partition('.')[2])}f}" == ratio, row


def _figures(row: str) -> tuple[str, str, str]:
    """The cells of a row that have a figure: Penstock's, the other one's behind the colon, and the ratio."""
    _, _, ours, theirs, ratio, _ = row.split("|")
    return ours, theirs.rpartition(":")[2], ratio
