from __future__ import annotations

import subprocess
import sys
import threading
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

from elman.base.errors import ElmanError
from elman.base.threads import in_order, in_threads
from elman.ngrams import compiled


def test_without_numba_the_first_call_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def missing(name: str) -> ModuleType:
        if name == "numba":
            raise ImportError(name)
        return import_module(name)

    monkeypatch.setattr(compiled, "import_module", missing)
    decorated = [decorate(lambda x: x) for decorate in (compiled.compiled, compiled.inlined)]
    for function in (*decorated, *compiled._intrinsics()):
        with pytest.raises(ElmanError, match="numba") as refused:
            function(1)
        assert "elman[ngram]" in refused.value.hint


def test_loops_that_numba_is_told_not_to_compile_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(import_module("numba").config, "DISABLE_JIT", 1)
    assert compiled.compiled(lambda x: x + 1)(1) == 2


def test_threads_keep_the_order_of_the_items() -> None:
    items = list(range(100))
    assert in_threads(lambda x: x * x, items, 3) == [x * x for x in items]
    assert list(in_order(lambda x: x * x, iter(items), 3)) == [x * x for x in items]
    assert in_threads(lambda x: x, [], 3) == []
    assert list(in_order(lambda x: x, [], 3)) == []


def test_work_is_handed_out_no_faster_than_its_results_are_taken() -> None:
    begun = []
    lock = threading.Lock()

    def work(x: int) -> int:
        with lock:
            begun.append(x)
        return x

    results = in_order(work, range(1000), 2)
    next(results)
    assert len(begun) <= 6
    results.close()  # type: ignore[attr-defined]


def test_what_goes_wrong_in_a_thread_is_raised() -> None:
    def work(x: int) -> int:
        raise ElmanError("wrong")

    with pytest.raises(ElmanError):
        in_threads(work, [1, 2], 2)
    with pytest.raises(ElmanError):
        list(in_order(work, [1, 2], 2))


def test_loops_from_the_cache_load_nothing_that_compiles(tmp_path: Path) -> None:
    text, program = tmp_path / "text.txt", tmp_path / "program.py"
    text.write_text("a b\nb a a\n" * 5)
    program.write_text(
        "import sys\n"
        "from pathlib import Path\n"
        "from elman.ngrams.counting import count\n"
        "from elman.ngrams.reading import read_stretches, word_tokenizer\n"
        "from elman.ngrams.smoothing import KneserNey, build\n"
        f"stretches = read_stretches([Path({str(text)!r})])\n"
        "tokenizer = word_tokenizer(stretches, 'pretokenized')\n"
        "ids = stretches.ids(tokenizer)\n"
        "build(count(ids, 3, vocab_size=4, boundary_id=tokenizer.boundary_id), KneserNey())\n"
        "print('numba.np.arrayobj' in sys.modules)\n"
    )
    for _ in range(2):  # the first may compile
        ran = subprocess.run([sys.executable, program], capture_output=True, text=True, check=True)
    assert ran.stdout == "False\n"
