"""What MkDocs needs besides the pages: a menu, and pages for the source files that they link to.

The menu is the list of pages in docs/README.md. A link to a file or a folder outside of docs/ leads
to a page with its text, so that the site needs no other server.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

DOCS = Path(__file__).parent
ROOT = DOCS.parent
LINK = re.compile(r"(?<=\]\()([^)#\s:]+)(?=[)#])")
SECTION = re.compile(r"^\*\*(\w+)\*\*(.*?)(?=^\*\*|\Z)", re.M | re.S)
ENTRY = re.compile(r"\[([^\]]+)\]\(([^)#]+\.md)\)")
SOURCES = "source"
"""The folder of the site with the pages of source files."""


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Make the menu from the lists of links in docs/README.md."""
    text = (DOCS / "README.md").read_text(encoding="utf-8")
    menu: list[Any] = [{"Elman": "README.md"}]
    for name, body in SECTION.findall(text):
        pages = [{_titled(title): link} for title, link in ENTRY.findall(body)]
        if name == "Log":
            pages = [f"log/{path.name}" for path in sorted((DOCS / "log").glob("*.md"))]
        menu.append({name: pages})
    config.nav = menu
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add a page for each file outside of docs/ to which a page links."""
    wanted = {
        target
        for page in files.documentation_pages()
        for link in LINK.findall(page.content_string)
        if (target := _outside(page.src_uri, link)) is not None
    }
    for folder in [target for target in wanted if target.is_dir()]:
        wanted |= set(folder.glob("*.py"))
    for target in wanted:
        files.append(File.generated(config, _page_of(target), content=_content(target)))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Let links that leave docs/ lead to the pages of their files."""

    def moved(match: re.Match[str]) -> str:
        target = _outside(page.file.src_uri, match[0])
        if target is None:
            return match[0]
        return os.path.relpath(_page_of(target), Path(page.file.src_uri).parent)

    return LINK.sub(moved, markdown)


def _outside(page: str, link: str) -> Path | None:
    """The file that a link leads to, if it exists and is not below docs/."""
    target = Path(os.path.normpath(DOCS / Path(page).parent / link))
    is_source = target.is_relative_to(ROOT) and not target.is_relative_to(DOCS)
    return target if is_source and target.exists() else None


def _page_of(target: Path) -> str:
    return f"{SOURCES}/{target.relative_to(ROOT).as_posix()}.md"


def _content(target: Path) -> str:
    title = f"# {target.relative_to(ROOT).as_posix()}\n\n"
    if target.is_dir():
        files = sorted(target.glob("*.py"))
        return title + "\n".join(f"- [{f.name}]({target.name}/{f.name}.md)" for f in files)
    text = target.read_text(encoding="utf-8")
    if target.suffix == ".md":
        return text
    return f"{title}````{target.suffix.removeprefix('.')}\n{text}\n````\n"


def _titled(title: str) -> str:
    return title[:1].upper() + title[1:]
