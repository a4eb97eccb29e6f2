"""`elman caption`: describe pictures."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from elman.decode.options import CONDITIONAL, DecodeOptions
from elman.terminal.console import result, result_json_list
from elman.terminal.options import Json, Shown, argument, check_conditional, with_options

if TYPE_CHECKING:
    from elman.tasks.captioning.handle import Captioner

with_decoding = with_options(
    DecodeOptions,
    "beam_size",
    "num_samples",
    "temperature",
    "seed",
    "unk",
    defaults=CONDITIONAL,
    num_samples=Shown(flag="--n-best", help="Print this many sentences about each picture."),
    temperature=Shown(help="Sample sentences at this temperature instead.", default=""),
)


@with_decoding
def caption(
    handle: Captioner,
    images: Annotated[list[str], argument("IMAGE...", "Picture files.")],
    *,
    options: dict[str, Any],
    json: Json = False,
) -> None:
    """Print a caption for each picture.

    Each line has the file, a tab and the caption.
    """
    found = handle.captions(images, **options)
    if json:
        result_json_list(
            {"image": image, "captions": [vars(each) for each in captions]}
            for image, captions in zip(images, found, strict=True)
        )
        return
    for image, captions in zip(images, found, strict=True):
        for each in captions:
            result(f"{image}\t{each.text}")


check_caption = with_decoding(check_conditional)
