"""N-gram models through the same commands as every other model."""

from __future__ import annotations

import gzip
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import elman as library
from elman.testing import TOY_TEXT

Elman = Callable[..., Any]


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "toy.txt"
    path.write_text(TOY_TEXT)
    return path


@pytest.fixture
def trigrams(elman: Elman, text: Path, tmp_path: Path) -> Path:
    out = tmp_path / "trigrams"
    assert elman("train", "ngram", text, "--order", 3, "--valid", text, "--out", out).code == 0
    return out


def test_trains_and_measures(elman: Elman, text: Path, trigrams: Path) -> None:
    told = elman("info", trigrams, "--json").json
    assert told["kind"] == "ngram"
    assert [row["order"] for row in told["ngrams"]] == [1, 2, 3]
    assert told["unseen"][2]["unseen_ngrams"] == 0  # the validation text is the training text
    measured = elman("evaluate", trigrams, text, "--json").json
    assert measured["perplexity"] == pytest.approx(told["summary"]["perplexity"], rel=1e-4)
    assert "3-grams" in elman("info", trigrams).out


def test_next_score_and_generate(elman: Elman, trigrams: Path) -> None:
    words = elman("next", trigrams, "the", "-k", 1000, "--json").json
    assert sum(word["probability"] for word in words) == pytest.approx(1, abs=1e-4)
    scored = elman("score", trigrams, "--unit", "word", stdin="the cat sat\n")
    assert scored.code == 0
    once, again = (
        elman("generate", trigrams, "the", "--seed", 1, "--max-tokens", 9) for _ in range(2)
    )
    assert once.out == again.out != ""


def test_mixes_with_a_network(elman: Elman, model: Path, text: Path, tmp_path: Path) -> None:
    counted = tmp_path / "counted"
    tokens = f"tokenizer.file={model / 'tokenizer.json'}"
    assert elman("train", "ngram", text, "--set", tokens, "--out", counted).code == 0
    mixed = elman("evaluate", f"0.5*{model}+0.5*{counted}", text, "--json").json["perplexity"]
    alone = [elman("evaluate", m, text, "--json").json["perplexity"] for m in (model, counted)]
    assert min(alone) * 0.9 < mixed < max(alone)


def test_an_arpa_file_is_a_model(elman: Elman, shared_data: Path) -> None:
    arpa = shared_data / "kenlm" / "test.arpa"
    assert elman("info", arpa, "--json").json["kind"] == "ngram"
    assert elman("next", arpa, "looking on", "-k", 1, "--json").json[0]["token"] == "a"


ODD_ARPA = """\\data\\
ngram 1=3

\\1-grams:
-1\t<s>
-0.5\t</s>
0.5\tword

\\end\\
"""


def test_what_is_odd_in_an_arpa_file_is_told(elman: Elman, text: Path, tmp_path: Path) -> None:
    odd = tmp_path / "odd.arpa"
    odd.write_text(ODD_ARPA)
    says = ("no <unk> in the file", "above 0 are taken as 0")
    told = elman("info", odd)
    assert all(sentence in told.out for sentence in says)
    assert len(elman("info", odd, "--json").json["notes"]) == 2
    assert elman("convert", odd, tmp_path / "run").code == 0
    for model in (odd, tmp_path / "run", f"0.5*{odd}+0.5*{tmp_path / 'run'}"):
        for command in (("evaluate", model, text), ("next", model, "word"), ("score", model, text)):
            told = elman(*command)
            assert told.code == 0, told.err
            assert all(sentence in told.err for sentence in says)
    told = elman("mix", odd, tmp_path / "run", "--tune", text)
    assert told.code == 0, told.err
    assert all(f"odd.arpa: {sentence}" in told.err for sentence in says[:1])
    assert all(sentence in told.err for sentence in says)


@pytest.mark.parametrize("content", ["", "{}\n", "[1]\n", "rubbish\n", "{\n"])
def test_a_damaged_report_is_a_sentence(elman: Elman, trigrams: Path, content: str) -> None:
    (trigrams / "metrics.jsonl").write_text(content)
    found = elman("info", trigrams)
    assert found.code == 1
    assert "metrics.jsonl is damaged" in found.error[0]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--order", "0"), "model.order cannot be 0 use 1 or more; 5 is usual"),
        (("--smoothing", "kneser"), "kneser-ney"),
        (("--set", "modle.order=3"), "model"),
        (("--memory", "lots"), "amount of memory"),
        (("--memory", "100"), "256M"),
        (("--prune", "1,0"), "0,0,1"),
        (("--prune", "many"), "should be a whole number"),
        (("--pruning", "0,1"), "did you mean '--prune'"),
    ],
)
def test_bad_settings_are_sentences(
    elman: Elman, text: Path, tmp_path: Path, arguments: tuple[str, ...], says: str
) -> None:
    found = elman("train", "ngram", text, "--out", tmp_path / "x", *arguments)
    assert found.code == 2
    assert says in " ".join(found.error)


def test_a_folder_is_not_overwritten(elman: Elman, text: Path, trigrams: Path) -> None:
    found = elman("train", "ngram", text, "--out", trigrams)
    assert found.code == 2
    assert "already holds a run" in found.error[0]


@pytest.fixture(scope="module")
def pair(elman: Elman, text: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A unigram and a trigram model with one tokenizer."""
    folder = tmp_path_factory.mktemp("pair")
    short, long = folder / "short", folder / "long"
    assert elman("train", "ngram", text, "--order", 1, "--out", short).code == 0
    tokens = f"tokenizer.file={short / 'tokenizer.json'}"
    assert elman("train", "ngram", text, "--order", 3, "--set", tokens, "--out", long).code == 0
    return short, long


def test_mix_prints_a_model(elman: Elman, pair: tuple[Path, Path], tmp_path: Path) -> None:
    held_out = tmp_path / "held-out.txt"
    # Half of it in the order of the training text, half in the opposite order: both models help.
    backwards = [" ".join(reversed(line.split())) for line in TOY_TEXT.splitlines()]
    held_out.write_text(TOY_TEXT + "\n".join(backwards) + "\n")
    found = elman("mix", *pair, "--tune", held_out, "--json").json
    assert [part["model"] for part in found["parts"]] == [str(path) for path in pair]
    weights = [part["weight"] for part in found["parts"]]
    assert sum(weights) == pytest.approx(1)
    assert min(weights) > 0.01
    perplexity, tokens = (
        elman("evaluate", found["model"], held_out, "--json").json[k]
        for k in ("perplexity", "tokens")
    )
    assert found["perplexity"] == pytest.approx(perplexity, rel=1e-5)
    assert found["tokens"] == tokens
    for part in found["parts"]:
        alone = elman("evaluate", part["model"], held_out, "--json").json["perplexity"]
        assert part["perplexity"] == pytest.approx(alone, rel=1e-5)
        assert found["perplexity"] < alone
    told = elman("mix", *pair, "--tune", held_out)
    assert told.out.splitlines()[-1] == found["model"]
    assert elman("info", found["model"]).code == 0


def test_mix_needs_models_of_one_tokenizer(
    elman: Elman, pair: tuple[Path, Path], model: Path, text: Path, tmp_path: Path
) -> None:
    found = elman("mix", pair[0], model, "--tune", text)
    assert found.code == 2
    assert "different tokenizers" in found.error[0]
    assert f"tokenizer.file={pair[0] / 'tokenizer.json'}" in found.error[1]
    found = elman("mix", pair[0], "--tune", text)
    assert (found.code, found.error[0]) == (2, "a mixture needs two models or more")
    found = elman("mix", pair[0], f"0.5*{pair[0]}+0.5*{pair[1]}", "--tune", text)
    assert found.code == 2
    assert "cannot be part" in found.error[0]


def test_an_arpa_file_mixes_by_the_same_rule(
    elman: Elman, pair: tuple[Path, Path], model: Path, text: Path, tmp_path: Path
) -> None:
    arpa = tmp_path / "long.arpa.gz"
    assert elman("convert", pair[1], arpa).code == 0
    spec = f"0.4*{pair[0]}+0.6*{arpa}"
    mixed = elman("evaluate", spec, text, "--json").json["perplexity"]
    runs = elman("evaluate", f"0.4*{pair[0]}+0.6*{pair[1]}", text, "--json").json["perplexity"]
    assert mixed == pytest.approx(runs, rel=1e-5)
    assert [part["kind"] for part in elman("info", spec, "--json").json["parts"]] == ["ngram"] * 2
    assert str(arpa) in elman("info", spec).out
    assert elman("mix", pair[0], arpa, "--tune", text).code == 0
    for command in (("evaluate", f"{model}+{arpa}", text), ("mix", model, arpa, "--tune", text)):
        found = elman(*command)
        assert found.code == 2
        assert "different tokenizers" in found.error[0]
        assert f"elman convert {arpa}" in found.error[1]


def test_a_run_becomes_arpa_and_arpa_a_run(elman: Elman, trigrams: Path, text: Path) -> None:
    arpa, run = trigrams.parent / "m.arpa", trigrams.parent / "again"
    assert elman("convert", trigrams, arpa, "--json").json["ngrams"]
    assert "3-grams" in elman("convert", arpa, run).out
    measured = [
        elman("evaluate", m, text, "--json").json["perplexity"] for m in (trigrams, arpa, run)
    ]
    assert measured == pytest.approx([measured[0]] * 3, rel=1e-5)
    told = elman("info", run, "--json").json
    assert told["model"] == {"kind": "ngram", "order": 3}
    assert told["summary"]["source"] == "m.arpa"
    assert "converted from" in elman("info", run).out
    again = run.parent / "again.arpa.gz"
    assert elman("convert", run, again).code == 0
    assert gzip.decompress(again.read_bytes()).startswith(b"\\data\\\nngram 1=")
    assert elman("evaluate", again, text, "--json").json["perplexity"] == pytest.approx(measured[0])
    assert sorted(path.name for path in run.parent.iterdir()) == [
        "again",
        "again.arpa.gz",
        "m.arpa",
        "trigrams",
    ]


def test_layouts(elman: Elman, trigrams: Path, text: Path, tmp_path: Path) -> None:
    compact, few, back = (tmp_path / name for name in ("compact", "few", "back"))
    arpa = tmp_path / "m.arpa"
    elman("convert", trigrams, compact, "--layout", "compact").ok()
    told = elman("convert", compact, few, "--quantise", "2,2")
    assert "log probabilities of 2 bits, back-off weights of 2" in told.out
    assert "do not quite sum to one" in told.out
    elman("convert", compact, back, "--layout", "plain").ok()
    elman("convert", few, arpa).ok()
    plain, exact, rounded, again, written = (
        elman("evaluate", m, text, "--json").json["perplexity"]
        for m in (trigrams, compact, few, back, arpa)
    )
    assert plain == exact == again != rounded
    assert written == pytest.approx(rounded, rel=1e-5)
    same = "ngram.safetensors"
    assert (back / same).read_bytes() == (trigrams / same).read_bytes()
    sizes = [elman("info", m, "--json").json["bytes"] for m in (trigrams, compact, few)]
    assert sizes == sorted(sizes, reverse=True)
    shown = elman("info", few, "--held-out", text).out
    assert "compact, log probabilities of 2 bits" in shown
    assert "do not quite sum to one" in shown
    words = elman("next", compact, "the", "-k", 1000, "--json").json
    assert words == elman("next", trigrams, "the", "-k", 1000, "--json").json
    drawn = [elman("generate", m, "the", "--seed", 1).ok().out for m in (trigrams, compact)]
    assert drawn[0] == drawn[1]
    assert elman("evaluate", f"0.5*{compact}+0.5*{few}", text, "--json").json["perplexity"] > 1


def test_an_arpa_file_becomes_a_compact_run(elman: Elman, trigrams: Path, tmp_path: Path) -> None:
    arpa, run = tmp_path / "m.arpa", tmp_path / "run"
    elman("convert", trigrams, arpa).ok()
    assert library.convert(arpa, run, quantise=8)["layout"].startswith("compact, log prob")
    assert "converted from" in elman("info", run).out


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--layout", "compct"), "no layout 'compct'"),
        (("--layout", "plain", "--quantise", "8"), "contradicts"),
        (("--quantise", "1"), "quantised to 1 bits"),
        (("--quantise", "int8"), "an n-gram model, without weights"),
        (("--quantise", "8,8,8"), "quantised to '8,8,8'"),
        (("--layout", "compact", "--side", "source"), "a layout is that of a run folder"),
    ],
)
def test_layouts_that_cannot_be(
    elman: Elman, trigrams: Path, tmp_path: Path, options: tuple[str, ...], says: str
) -> None:
    refused = elman("convert", trigrams, tmp_path / "out", *options)
    assert refused.code == 2
    assert says in refused.error[0]
    assert not (tmp_path / "out").exists()


def test_a_network_has_no_layout(elman: Elman, model: Path, tmp_path: Path) -> None:
    for options, says in (
        (("--layout", "compact"), "is not an n-gram model"),
        (("--quantise", "8"), "weights cannot be quantised to '8'"),
    ):
        refused = elman("convert", model, tmp_path / "out", *options)
        assert (refused.code, says in refused.error[0]) == (2, True)


@pytest.mark.parametrize("kind", ["word", "bpe"])
def test_an_arpa_file_has_its_tokenizer_beside_it(elman: Elman, tmp_path: Path, kind: str) -> None:
    text, run, arpa = tmp_path / "text.txt", tmp_path / "run", tmp_path / "m.arpa"
    text.write_text("The cat's hat, a hat!\nThe dog sat; so did <s> I.\n" * 5)
    made = elman(
        "train", "ngram", text, "--order", 3, "--out", run, "--arpa", arpa,
        "--set", f"tokenizer.kind={kind}", "--set", "tokenizer.lowercase=true",
    )  # fmt: skip
    assert "holds no tokenizer" in made.err
    moved = arpa.rename(tmp_path / "m.lm")
    assert elman("convert", moved, tmp_path / "v1.2").code == 0
    measured = [
        elman("evaluate", m, text, "--json").json["perplexity"]
        for m in (run, moved, tmp_path / "v1.2")
    ]
    assert measured == pytest.approx([measured[0]] * 3, rel=1e-4)
    refused = elman("evaluate", text, text)
    assert (refused.code, "neither a run folder nor an ARPA" in refused.error[0]) == (2, True)
    refused = elman("train", "ngram", text, "--out", tmp_path / "x", "--arpa", "x.arpa.zst")
    assert refused.code == 2


def test_a_run_with_the_tokenizer_of_another_is_not_converted(
    elman: Elman, trigrams: Path, text: Path, tmp_path: Path
) -> None:
    run, other = tmp_path / "run", tmp_path / "other.txt"
    shutil.copytree(trigrams, run)
    other.write_text(text.read_text().replace("t", "q"))
    elman("train", "ngram", other, "--out", tmp_path / "other").ok()
    shutil.copy(tmp_path / "other" / "tokenizer.json", run)
    refused = elman("convert", run, tmp_path / "m.arpa")
    assert f"is not the tokenizer of the model in {run}" in refused.error[0]
    assert not (tmp_path / "m.arpa").exists()


def test_what_cannot_be_converted_is_said(elman: Elman, trigrams: Path, model: Path) -> None:
    place = trigrams.parent
    there = place / "there.arpa"
    there.write_text("precious")
    for arguments, says in (
        ((trigrams, there), "already exists"),
        ((trigrams, place / "m.onnx"), "cannot be converted to ONNX"),
        ((f"0.5*{trigrams}+0.5*{model}", place / "m.arpa"), "mixture"),
        ((place / "nothing", place / "m.arpa"), "no run folder"),
    ):
        found = elman("convert", *arguments)
        assert found.code == 2
        assert says in found.error[0]
    ngram = "an n-gram language model converts to: OUT.arpa, OUT.arpa.gz, --layout compact OUT, "
    network = "a language model converts to: OUT.py, OUT.vec (word vectors), OUT.onnx, --to hf OUT "
    for arguments, says, hint in (
        ((trigrams, "folder"), "cannot be converted to the folder folder", ngram),
        ((trigrams, "m.pt"), "no model converts to '.pt'", ngram),
        ((model, "m.arpa"), "cannot be converted to '.arpa'", network),
        ((there, "m.pt"), "no model converts to '.pt'", "OUT ends in one of .py, .arpa, .arpa.gz,"),
    ):
        refused = elman("convert", *arguments).error
        assert says in refused[0]
        assert refused[1].startswith(hint)
    assert there.read_text() == "precious"
    assert elman("convert", there, place / "made").code == 1
    assert not (place / "made").exists()


def test_another_tokenizer_beside_an_arpa_file_is_found_before_counting(
    elman: Elman, toy: Path, text: Path, tmp_path: Path
) -> None:
    elman("train", "ngram", toy, "--arpa", tmp_path / "x.arpa", "--out", tmp_path / "a").ok()
    (tmp_path / "x.arpa").unlink()
    other = tmp_path / "other.txt"
    other.write_text(toy.read_text().replace("student", "Student,"))
    refused = elman("train", "ngram", other, "--arpa", tmp_path / "x.arpa", "--out", tmp_path / "b")
    assert "x.tokenizer.json already exists and is another tokenizer" in refused.error[0]
    assert "n-grams up to length" not in refused.err


def test_an_arpa_file_does_not_become_a_program(elman: Elman, trigrams: Path) -> None:
    """It was copied into a file whose name says that it is one."""
    arpa, program = trigrams.parent / "program.arpa", trigrams.parent / "program.py"
    elman("convert", trigrams, arpa).ok()
    message, hint = elman("convert", arpa, program).error
    assert "cannot be converted to '.py'" in message
    assert hint.startswith("a recurrent language model becomes a .py file")
    assert not program.exists()


def test_a_sparse_matrix_through_the_same_commands(
    elman: Elman, text: Path, trigrams: Path, tmp_path: Path
) -> None:
    out = tmp_path / "snm"
    tokenizer = f"tokenizer.file={trigrams / 'tokenizer.json'}"
    made = elman(
        "train", "snm", text, "--order", 3, "--skip", 2, "--valid", text, "--out", out,
        "--set", tokenizer, "--json",
    )  # fmt: skip
    assert made.code == 0, made.err
    told = elman("info", out, "--json").json
    assert told["kind"] == "snm"
    assert told["summary"]["perplexity"] == made.json["perplexity"]
    assert "w _ _ w ?" in elman("info", out).out
    measured = elman("evaluate", out, text, "--json").json
    assert measured["perplexity"] == pytest.approx(made.json["perplexity"], rel=1e-4)
    mixed = elman("evaluate", f"0.5*{out}+0.5*{trigrams}", text, "--json").json
    assert 1 < mixed["perplexity"] < 10
    found = elman("next", out, "the student", "-k", 2, "--json").json
    assert found[0]["token"] in ("opened", "closed", "lost", "found")
    refused = elman("train", "snm", text, "--set", "model.orders=3", "--out", tmp_path / "other")
    assert refused.code == 2
    assert "order" in refused.err
    refused = elman("convert", out, tmp_path / "snm.arpa")
    assert refused.code == 2, refused.err


def test_pruning_is_an_option_and_a_setting(elman: Elman, text: Path, tmp_path: Path) -> None:
    told = {}
    for name, arguments in {
        "option": ("--prune", "0,0,20"),
        "setting": ("--set", "model.prune=0,0,20"),
        "list": ("--set", "model.prune=[0,0,20]"),
        "whole": (),
    }.items():
        out = tmp_path / name
        assert elman("train", "ngram", text, "--order", 3, *arguments, "--out", out).code == 0
        told[name] = elman("info", out, "--json").json["ngrams"]
    assert told["option"] == told["setting"] == told["list"] != told["whole"]
    assert "prune" in elman("info", tmp_path / "option").out
    plain = elman("info", tmp_path / "whole").out
    assert "prune" not in plain
    assert "fallback_discounts" not in plain


def test_info_measures_what_a_model_lists(elman: Elman, trigrams: Path, tmp_path: Path) -> None:
    new = tmp_path / "new.txt"
    new.write_text("the zebra opened\n")
    arpa = tmp_path / "m.arpa"
    assert elman("convert", trigrams, arpa).code == 0
    for model in (trigrams, arpa):
        rows = elman("info", model, "--held-out", new, "--json").json["held_out"]
        assert [row["order"] for row in rows] == [1, 2, 3]
        assert rows[0]["ngrams"] == 4
        assert rows[0]["unseen_ngrams"] == pytest.approx(1 / 4)
        told = elman("info", model, "--held-out", new).out
        assert "not listed in the model" in told
        assert "25.0% of 4" in told
    assert "of 4 tokens" in told
    refused = elman("info", f"0.5*{trigrams}+0.5*{trigrams}", "--held-out", new)
    assert refused.code == 2
    assert "lists no n-grams" in refused.error[0]


def test_scores_that_are_no_probabilities_say_so(elman: Elman, text: Path, tmp_path: Path) -> None:
    out = tmp_path / "stupid"
    made = elman("train", "ngram", text, "--smoothing", "stupid-backoff", "--out", out)
    for told in (made, elman("evaluate", out, text), elman("next", out, "the")):
        assert told.code == 0
        assert "do not sum to one" in told.err
    assert "do not sum to one" in elman("info", out).out
    written = elman("convert", out, tmp_path / "stupid.arpa")
    assert "will treat them as probabilities" in written.out
    for command in (("mix", out, out, "--tune", text), ("evaluate", f"{out}+{out}", text)):
        refused = elman(*command)
        assert refused.code == 2
        assert "do not sum to one" in refused.error[0]


def test_an_infinite_perplexity_is_explained(elman: Elman, text: Path, tmp_path: Path) -> None:
    new, out = tmp_path / "new.txt", tmp_path / "closed"
    new.write_text("the zebra opened\n")
    closed = ("--set", "model.vocabulary=closed", "--order", 2, "--out", out)
    made = elman("train", "ngram", text, "--valid", new, *closed)
    assert "tokens have probability zero" in made.err
    measured = elman("evaluate", out, new)
    assert "tokens have probability zero" in measured.err
    assert elman("evaluate", out, new, "--json").json["impossible"] >= 1


def test_the_library_counts_and_converts(text: Path, tmp_path: Path) -> None:
    heard: list[str] = []
    lm = library.train_ngram(
        text, order=3, prune="0,0,20", out=tmp_path / "run", arpa=tmp_path / "one.arpa",
        memory="4G", settings={"tokenizer.kind": "pretokenized"}, on_note=heard.append,
    )  # fmt: skip
    assert heard
    assert lm.info()["model"]["prune"] == [0, 0, 20]
    assert lm.next("the", k=1)[0][1] > 0
    assert lm.unseen(text)[2]["unseen_ngrams"] > 0  # pruned
    written = library.convert(tmp_path / "run", tmp_path / "two.arpa")
    assert written["order"] == 3
    assert (tmp_path / "two.arpa").read_bytes() == (tmp_path / "one.arpa").read_bytes()
    with pytest.raises(library.UsageError, match=r"model\.ordr"):
        library.train_ngram(text, ordr=3, out=tmp_path / "other")


def test_maximum_likelihood_says_where_it_is_undefined(elman: Elman, tmp_path: Path) -> None:
    text, tested = tmp_path / "text.txt", tmp_path / "tested.txt"
    text.write_text("the dog saw the cat\nthe cat saw a bird\n" * 3, encoding="utf-8")
    tested.write_text("the cat saw the bird\n", encoding="utf-8")
    how = ("--order", 3, "--smoothing", "maximum-likelihood")
    made = elman("train", "ngram", text, *how, "--out", tmp_path / "ml").ok()
    assert "undefined (0/0)" in made.err
    assert "undefined (0/0)" in elman("info", tmp_path / "ml").ok().out
    after = elman("next", tmp_path / "ml", "saw a cat").ok()
    assert "undefined (0/0): the training text has nothing after 'a cat'" in after.err
    assert "the estimates after 'cat' are used" in after.err
    assert "undefined" not in elman("next", tmp_path / "ml", "the cat").ok().err
    nothing = elman("next", tmp_path / "ml", "zebra zebra").ok()
    assert "without a context" in nothing.err
    scored = elman("score", tmp_path / "ml", tested).ok()
    header, *rows = [line.split("\t") for line in scored.out.splitlines()]
    assert header[-1] == "undefined"
    assert [row[-1] for row in rows] == ["0", "0", "0", "0", "0", "1"]  # after "the bird"
    assert "1 row with undefined estimates" in scored.err
    evaluated = elman("evaluate", tmp_path / "ml", tested, "--json").ok()
    assert evaluated.json["undefined"] == 1
    assert "1 of 6 tokens have undefined estimates" in evaluated.err
    elman("train", "ngram", text, "--order", 3, "--out", tmp_path / "kn").ok()
    assert "undefined" not in elman("score", tmp_path / "kn", tested).ok().out
