"""The web site's menu has every page, and its links to source files lead to pages of them."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("mkdocs", reason="mkdocs is not installed")
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


@pytest.fixture(scope="module")
def hooks() -> dict[str, Any]:
    return runpy.run_path(str(DOCS / "site_hooks.py"))


def test_the_menu_has_every_page(hooks: dict[str, Any]) -> None:
    config = hooks["on_config"](SimpleNamespace(nav=None))
    listed = re.findall(r"[\w./-]+\.md", str(config.nav))
    assert all((DOCS / page).is_file() for page in listed)
    folders = ("guides", "concepts", "reference", "design", "log")
    pages = {
        p.relative_to(DOCS).as_posix() for folder in folders for p in (DOCS / folder).glob("*.md")
    }
    assert pages <= set(listed)


def test_a_link_to_a_source_file_leads_to_a_page_of_it(hooks: dict[str, Any]) -> None:
    plugins = SimpleNamespace(_current_plugin="hooks")
    config: Any = SimpleNamespace(site_dir="site", use_directory_urls=False, plugins=plugins)
    page = File.generated(
        config,
        "guides/page.md",
        content="[a](../../src/elman/nn/cells.py) [b](train.md#c) [d](x://y)",
    )
    files = hooks["on_files"](Files([page]), config)
    (source,) = [file for file in files if file is not page]
    assert source.src_uri == "source/src/elman/nn/cells.py.md"
    assert "class LSTMCell" in source.content_string
    moved = hooks["on_page_markdown"](page.content_string, SimpleNamespace(file=page))
    assert moved == "[a](../source/src/elman/nn/cells.py.md) [b](train.md#c) [d](x://y)"


@pytest.mark.slow
def test_the_site_has_no_broken_link_and_asks_no_other_server(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "-d", tmp_path]
    env = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for page in ("index.html", "guides/train.html", "reference/python.html"):
        text = (tmp_path / page).read_text(encoding="utf-8")
        assert not re.findall(r'<(?:script|link|img)[^>]*(?:src|href)="https?:', text)
