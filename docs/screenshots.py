"""Take the pictures of the studio in docs/images: a tour of every tab by a real browser.

In a folder with the texts and models of docs/tour/README.md:

elman train lm school.txt --valid school-test.txt --recipe small.toml --set model.cell=rnn \\
    --set tokenizer.file=runs/school/tokenizer.json --steps 400 --seed 1 --out runs/rnn
elman train tagger school.conllu --set model.hidden_size=32 --set model.num_layers=1 \\
    --steps 150 --seed 1 --out runs/tags
elman train classifier spam.tsv --valid spam-test.tsv --steps 300 --seed 1 --out runs/spam
elman train translator reverse.src reverse.tgt --minutes 4 --seed 1 --out runs/reverse
elman train infinigram python-docs --tokenizer word --out runs/manual
elman serve runs/school runs/rnn runs/window runs/kn3 runs/docs runs/names runs/tags \\
    runs/spam runs/reverse runs/manual --runs runs --lab
python docs/screenshots.py http://127.0.0.1:8000
"""

from __future__ import annotations

import io
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlencode

from PIL import Image
from playwright.sync_api import Page, sync_playwright

IMAGES = Path(__file__).parent / "images"
TIMEOUT_MS = 120_000
OPENED = "students opened their"
SCHOOL = "students opened their books .\ncooks opened their books .\nzebras opened their hats ."
LONG = "students opened their books . cooks closed their ovens . students lost their exams ."


def nothing(page: Page) -> None:
    """Take the picture as the tab is."""


@dataclass(frozen=True)
class View:
    """A picture: a tab, what is to be seen in it, and what is done there first."""

    tab: str
    params: dict[str, object] = field(default_factory=dict)
    ready: str = "h1"
    act: Callable[[Page], None] = nothing


def _continue(page: Page) -> None:
    page.click("#go")
    page.wait_for_selector("#again:enabled")
    page.hover("#output .token >> nth=0")
    page.wait_for_selector("#tip th >> text=drawn from")


def _explain(page: Page) -> None:
    page.click("#go")
    page.wait_for_selector("#again:enabled")
    page.click("#sources summary")
    page.wait_for_selector("#longest")


def _select(page: Page) -> None:
    tokens = page.locator(".unit-text .token")
    tokens.nth(3).click()
    tokens.nth(4).click(modifiers=["Shift"])
    page.wait_for_selector(".alike h3")


def _stop_half_way(page: Page) -> None:
    page.locator("#step").fill("3")


def _show_code(page: Page) -> None:
    page.click("#code summary")
    page.click("#code >> text=Python")


def _predict(page: Page) -> None:
    page.check('input[value="holds"]')


VIEWS = {
    "models": View("models", ready=".model-card"),
    "playground": View(
        "playground",
        {"model": "school", "text": OPENED, "seed": 4, "max_tokens": 40, "temperature": 0.7},
        "#go",
        _continue,
    ),
    "sources": View(
        "playground",
        {"model": "manual", "text": "The return", "seed": 5, "max_tokens": 40, "temperature": 0.5},
        "#go",
        _explain,
    ),
    "next": View(
        "next",
        {"text": OPENED, "models": "kn3,window,rnn,school", "k": 8, "top_p": 0.9},
        ".result >> nth=3",
    ),
    "surprisal": View(
        "surprisal",
        {"model": "school", "other": "kn3", "text": SCHOOL, "numbers": 1},
        ".bar-chart",
    ),
    "decoding": View(
        "decoding", {"model": "school", "text": "students", "beam_size": 4}, ".node", _stop_half_way
    ),
    "decoding-translator": View(
        "decoding", {"model": "reverse", "text": "a b c d", "max_tokens": 10}, ".node"
    ),
    "inside": View(
        "inside", {"model": "school", "text": LONG, "units": 16}, ".gauge:visible", _select
    ),
    "inside-characters": View(
        "inside",
        {"model": "docs", "text": "The if statement is used.", "units": 16},
        ".gauge:visible",
    ),
    "translate": View("translate", {"model": "reverse", "text": "a b c d"}, "canvas"),
    "tag": View("tag", {"text": "students opened their books ."}, ".sure"),
    "classify": View("classify", {"text": "cheap pills for you , click here"}, "#reasons"),
    "labels": View(
        "playground",
        {"model": "names", "label": "Italian", "text": "Ro", "seed": 3, "max_tokens": 12},
        "#control-label",
        _continue,
    ),
    "training": View("training", {"runs": "school,rnn,kn3", "smoothing": 0.6}, ".chart path"),
    "code": View("next", {"text": OPENED, "models": "school"}, ".result", _show_code),
    "lab": View("lab", {"claim": "C3"}, "#run", _predict),
}
"""What each picture shows, and what is there when it can be taken."""


@dataclass(frozen=True)
class Look:
    """A window in which pictures are taken."""

    suffix: str
    width: int
    height: int
    scheme: str
    views: tuple[str, ...] = tuple(VIEWS)
    presents: bool = False


LOOKS = [
    Look("", 1200, 800, "light"),
    Look("-dark", 1200, 800, "dark"),
    Look("-phone", 390, 800, "light", tuple(name for name in VIEWS if "-" not in name)),
    Look("-phone-dark", 390, 800, "dark", ("surprisal", "next")),
    Look("-projector", 1920, 1080, "light", ("next", "inside", "decoding"), presents=True),
    Look("-projector-dark", 1920, 1080, "dark", ("playground", "surprisal"), presents=True),
]


def take(page: Page, address: str, view: View) -> bytes:
    """One view as PNG."""
    page.goto("about:blank")
    page.goto(f"{address}/#/{view.tab}?{urlencode(view.params)}")
    page.wait_for_selector(view.ready)
    view.act(page)
    page.wait_for_timeout(300)
    if view.act is not _continue:  # its tip is to be seen
        page.mouse.move(2, 2)
    page.evaluate("scrollTo(0, 0)")  # or the bar would be in the middle
    page.wait_for_timeout(100)
    return page.screenshot(full_page=True)


def main() -> None:
    """Every picture, with few enough colours to be small."""
    IMAGES.mkdir(exist_ok=True)
    address, wanted = sys.argv[1], set(sys.argv[2:])
    with sync_playwright() as started:
        browser = started.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        for look in LOOKS:
            size = {"width": look.width, "height": look.height}
            context = browser.new_context(viewport=size, color_scheme=look.scheme)
            page = context.new_page()
            page.set_default_timeout(TIMEOUT_MS)
            if look.presents:
                page.add_init_script("sessionStorage.setItem('elman-present', '1')")
            for name in look.views:
                if wanted and name not in wanted:
                    continue
                picture = Image.open(io.BytesIO(take(page, address, VIEWS[name])))
                path = IMAGES / f"studio-{name}{look.suffix}.png"
                few = picture.convert("RGB").quantize(
                    256, Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE
                )
                few.save(path, optimize=True)
            context.close()
        browser.close()


if __name__ == "__main__":
    main()
