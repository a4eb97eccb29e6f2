"""The page in examples/browser generates from ONNX files in Chromium, as Elman does."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from elman import load

pytest.importorskip("onnx", reason="onnx is not installed")
pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")

Elman = Callable[..., Any]
FOLDER = Path(__file__).parents[2] / "examples" / "browser"
TIMEOUT_MS = 60_000
PROMPTS = ("", "the student", "The “student” didn't, x: 12345", "a\nnew line é 学")
ENCODE = """async ([url, texts]) => {
    const { openModel } = await import("./elman.js");
    const bytes = new Uint8Array(await (await fetch(url)).arrayBuffer());
    const { tokenizer } = await openModel(bytes);
    return texts.map((text) => tokenizer.encode(text));
}"""


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """The address of a server of the page, and its folder."""
    if not (FOLDER / "node_modules" / "onnxruntime-web").is_dir():
        pytest.skip("onnxruntime-web is not installed (make browser)")
    folder = tmp_path_factory.mktemp("browser") / "site"
    folder.mkdir()
    for name in ("index.html", "elman.js"):
        shutil.copy(FOLDER / name, folder / name)
    (folder / "node_modules").symlink_to(FOLDER / "node_modules")
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=folder)) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", folder
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def page(site: tuple[str, Path]) -> Iterator[Any]:
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("Chromium is not on this machine (Debian: chromium)")
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page()
        page.set_default_timeout(TIMEOUT_MS)
        complaints: list[str] = []
        page.on("pageerror", lambda error: complaints.append(str(error)))
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        yield page
        browser.close()
    assert not complaints
    assert all(url.startswith((site[0], "data:", "blob:")) for url in asked)


def check(name: str, run: Path, elman: Elman, site: tuple[str, Path], page: Any) -> None:
    """Prompts become the same ids, and the page goes on as `elman generate` does."""
    address, folder = site
    elman("convert", run, folder / f"{name}.onnx").ok()
    lm = load(run)
    page.goto(f"{address}/index.html?model={name}.onnx")
    page.wait_for_selector("button:not([disabled])")
    prompts = [prompt for prompt in PROMPTS if lm.tokenizer.unknown_id is not None or prompt]
    expected = [lm.tokenizer.encode(prompt).tolist() for prompt in prompts]
    assert page.evaluate(ENCODE, [f"{name}.onnx", prompts]) == expected
    page.fill("#prompt", "the student")
    page.fill("#tokens", "24")
    page.fill("#temperature", "0")
    page.click("button")
    page.wait_for_function("document.getElementById('status').textContent.startsWith('Done')")
    found = page.eval_on_selector("#text", "element => element.textContent")
    written = elman("generate", run, "the student", "--max-tokens", 24, "--temperature", 0).ok().out
    assert found.rstrip() == ("the student" + written).rstrip()
    page.fill("#temperature", "1")
    page.click("button")
    page.wait_for_selector("button:not([disabled])")
    assert page.eval_on_selector("#text", "element => element.textContent.length") > 11


def test_characters(elman: Elman, model: Path, site: tuple[str, Path], page: Any) -> None:
    check("chars", model, elman, site, page)


def test_words(elman: Elman, words: Path, site: tuple[str, Path], page: Any) -> None:
    check("words", words, elman, site, page)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["bpe", "byte", "pretokenized"])
def test_other_tokens(
    kind: str, elman: Elman, toy: Path, small: Any, site: tuple[str, Path], page: Any
) -> None:
    run = site[1].parent / kind
    size = ("--set", "tokenizer.vocab_size=300") if kind == "bpe" else ()
    kinds = ("--set", f"tokenizer.kind={kind}", *size)
    elman("train", "lm", toy, "--out", run, "--steps", 20, *small, *kinds).ok()
    check(kind, run, elman, site, page)


def test_one_byte_a_weight(elman: Elman, model: Path, site: tuple[str, Path], page: Any) -> None:
    elman("convert", model, site[1].parent / "int8", "--quantise", "int8").ok()
    check("int8", site[1].parent / "int8", elman, site, page)


def test_other_files_are_explained(
    elman: Elman, model: Path, site: tuple[str, Path], page: Any
) -> None:
    address, folder = site
    elman("convert", model, folder / "other.onnx").ok()
    page.goto(f"{address}/index.html?model=other.sequence.onnx")
    page.wait_for_function("document.getElementById('status').textContent.includes('step graph')")
