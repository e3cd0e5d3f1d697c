"""Builds the site of the documentation into a folder: `python -m tools.docs_site build/site`.

Pages are copied, with the layout of the repository, to a folder beside the site; links to files that are not Markdown
lead to pages that show them. A warning of the build, a broken link or anchor, or a resource from the network ends it
with status 1 and without a site.
"""

from __future__ import annotations

import posixpath
import re
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path

from tools.docs_site.links import broken, from_network
from tools.docs_site.markdown import page_of_file, with_lists, with_targets
from tools.docs_site.reference import GROUPS, page

ROOT = Path(__file__).resolve().parents[2]
MEDIA = (".png", ".svg", ".gif", ".jpg")
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
FIRST = ("README.md", "ARCHITECTURE.md", "SECURITY.md", "CHANGELOG.md")


def stage(folder: Path) -> None:
    """Copy the pages and whatever they link to into `folder`, and generate the reference."""
    waiting = [*FIRST, *(file.relative_to(ROOT).as_posix() for file in sorted((ROOT / "docs").rglob("*.md")))]
    seen = set(waiting)
    while waiting:
        name = waiting.pop()
        source, target = ROOT / name, folder / staged(name)
        target.parent.mkdir(parents=True, exist_ok=True)
        if name.endswith(MEDIA):
            shutil.copyfile(source, target)
            continue
        text = source.read_text(encoding="utf-8")
        linked: set[str] = set()
        if name.endswith(".md"):
            text = with_targets(text, partial(_target, name, linked))
        target.write_text(with_lists(text if name.endswith(".md") else page_of_file(source.name, text)), "utf-8")
        waiting += sorted(linked - seen)
        seen |= linked
    (folder / "assets").mkdir()
    shutil.copyfile(Path(__file__).with_name("iframe-worker.js"), folder / "assets" / "iframe-worker.js")
    for module in GROUPS:
        target = folder / "docs" / "reference" / f"{module}.md"
        target.parent.mkdir(exist_ok=True)
        target.write_text(page(ROOT, module), "utf-8")


def staged(name: str) -> str:
    """The page that shows a file of the repository.

    Example:
        >>> staged("docs/kafka.md"), staged("LICENSE")
        ('docs/kafka.md', 'LICENSE.md')
    """
    return name if name.endswith((".md", *MEDIA)) else f"{name}.md"


def _target(page_name: str, linked: set[str], link: str) -> str:
    path, hash_sign, anchor = link.partition("#")
    name = posixpath.normpath(posixpath.join(posixpath.dirname(page_name), path))
    if not path or "://" in link or not (ROOT / name).is_file():
        return link  # one that leads nowhere is found when the site is checked
    linked.add(name)
    return staged(path) + hash_sign + anchor


def build(site: Path) -> list[str]:
    """Build the site, and return what is wrong with it."""
    work = site.parent / f"{site.name}-pages"
    for folder in (site, work):
        shutil.rmtree(folder, ignore_errors=True)
    stage(work / "pages")
    place = "docs_dir: pages\nsite_dir: site\n"
    (work / "mkdocs.yml").write_text(place + (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), "utf-8")
    command = [sys.executable, "-m", "zensical", "build", "--clean", "--strict", "-f", str(work / "mkdocs.yml")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    said = _COLOUR.sub("", done.stderr).partition("Traceback")[0].strip()
    if done.returncode or said != "No issues found":  # the reader of docstrings warns, and ends nothing
        return [said]
    (work / "site").rename(site)
    return [*broken(site), *from_network(site)]


def main(site: Path) -> int:
    """Build the site and print what is wrong; a site with faults is deleted."""
    faults = build(site)
    if faults:
        # RM
        print("\n".join(faults), file=sys.stderr)
        return 1
    print(f"{site / 'index.html'}: {len(list(site.rglob('*.html')))} pages")
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
