"""Take the pictures of the studio in docs/images, from a server that is running.

elman train lm king-james --minutes 12 --seed 1 --out runs/lstm --set tokenizer.kind=word \\
    --set training.validate_every=120
T=runs/lstm/tokenizer.json
elman train lm king-james --minutes 5 --seed 1 --out runs/rnn --set tokenizer.file=$T \\
    --set model.cell=rnn --set training.validate_every=120
elman train window king-james --minutes 5 --seed 1 --out runs/window --set tokenizer.file=$T
elman train ngram king-james --out runs/5-gram --set tokenizer.file=$T
elman train translator train.en train.de --minutes 8 --out tasks/en-de     (Multi30k)
elman train tagger en_ewt-ud-train.conllu.gz --out tasks/parts-of-speech     (English Web Treebank)
elman train classifier names --out tasks/surnames
elman serve runs/* tasks/* --runs runs
python docs/screenshots.py http://127.0.0.1:8000
"""

from __future__ import annotations

import io
import shutil
import sys
from pathlib import Path
from urllib.parse import urlencode

from PIL import Image
from playwright.sync_api import Page, sync_playwright

IMAGES = Path(__file__).parent / "images"
BEGINNING = "And the LORD said unto"
TEXT = "In the beginning God created the heaven and the earth.\nAnd the earth created the heaven."
LONG = "And the servants that the king sent unto Moses said unto him"
TAGGED = "Jeff Elman trained a small network on made-up sentences, and it found nouns and verbs."

VIEWS: dict[str, tuple[dict[str, object], str]] = {
    "playground": (
        {"model": "lstm", "prompt": BEGINNING, "seed": 4, "max_tokens": 70, "temperature": 0.7},
        "#again:enabled",
    ),
    "surprisal": ({"model": "lstm", "other": "5-gram", "text": TEXT}, ".result >> nth=2"),
    "next": ({"prefix": BEGINNING, "models": "lstm,rnn,window,5-gram"}, ".result >> nth=3"),
    "inside": ({"model": "lstm", "text": LONG, "part": "f"}, "button.token"),
    "training": ({"runs": "lstm,rnn"}, ".sample"),
    "translate": ({"text": "A man in a red shirt is riding a bicycle down the street."}, "canvas"),
    "tag": ({"text": TAGGED}, ".tag-word"),
    "classify": ({"text": "Sala"}, ".bars .word"),
}
"""What each picture shows, and what is there when it can be taken."""

LOOKS = [
    ("", {"width": 1200, "height": 800}, "light", list(VIEWS)),
    ("-dark", {"width": 1200, "height": 800}, "dark", ["surprisal", "inside"]),
    ("-phone", {"width": 390, "height": 800}, "light", list(VIEWS)),
]


def take(page: Page, address: str, name: str) -> bytes:
    """One view as PNG."""
    params, ready = VIEWS[name]
    page.goto("about:blank")
    page.goto(f"{address}/#/{name}?{urlencode(params)}")
    if name == "playground":
        page.click("#go")
    page.wait_for_selector(ready, timeout=120_000)
    if name == "playground":
        page.hover("#output .token >> nth=4")
    return page.screenshot(full_page=True)


def main() -> None:
    """Every picture, with few enough colours to be small."""
    IMAGES.mkdir(exist_ok=True)
    with sync_playwright() as started:
        browser = started.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        for suffix, viewport, scheme, names in LOOKS:
            context = browser.new_context(viewport=viewport, color_scheme=scheme)
            page = context.new_page()
            for name in names:
                picture = Image.open(io.BytesIO(take(page, sys.argv[1], name)))
                path = IMAGES / f"studio-{name}{suffix}.png"
                few = picture.convert("RGB").quantize(256, Image.Quantize.MAXCOVERAGE)
                few.save(path, optimize=True)
            context.close()
        browser.close()


if __name__ == "__main__":
    main()
