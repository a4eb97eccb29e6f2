"""Bad input: each time one sentence that says what happened, one hint that says what to try."""

from __future__ import annotations

import errno
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from elman.base.documents import read_json

Elman = Callable[..., Any]
Small = tuple[str, ...]


def sentence_of(result: Any, code: int) -> str:
    assert result.code == code, (result.out, result.err)
    sentence, hint = result.error
    assert "\n" not in sentence
    assert sentence
    assert hint
    assert result.out == ""
    return f"{sentence} | {hint}"


# Text


def test_missing_path(elman: Elman, tmp_path: Path, model: Path) -> None:
    (tmp_path / "corpus.txt").write_text("some text\n")
    for command in (("train", "lm"), ("data", "check"), ("evaluate", model)):
        said = sentence_of(elman(*command, tmp_path / "corpsu.txt"), 2)
        assert "corpsu.txt does not exist" in said
        assert "did you mean 'corpus.txt'?" in said
    said = sentence_of(elman("train", "lm", "python-dosc"), 2)
    assert "did you mean 'python-docs'?" in said
    sentence_of(elman("score", model, tmp_path / "missing.txt"), 2)


def test_empty_file(elman: Elman, tmp_path: Path, model: Path) -> None:
    empty = tmp_path / "empty.txt"
    empty.write_text("")
    for command in (("train", "lm"), ("data", "check"), ("evaluate", model)):
        assert "empty.txt is empty" in sentence_of(elman(*command, empty), 1)


def test_binary_file(elman: Elman, tmp_path: Path, model: Path) -> None:
    binary = tmp_path / "picture.png"
    binary.write_bytes(b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR" + bytes(range(256)) * 20)
    for command in (("train", "lm"), ("evaluate", model)):
        said = sentence_of(elman(*command, binary), 1)
        assert "picture.png" in said
    assert elman("data", "check", binary).code == 1


def test_text_in_another_encoding(elman: Elman, tmp_path: Path) -> None:
    latin = tmp_path / "latin1.txt"
    latin.write_bytes("some café\n".encode("latin1") * 200)
    said = sentence_of(elman("train", "lm", latin), 1)
    assert "line 1" in said
    assert "UTF-8" in said


def test_stdin_in_another_encoding(elman: Elman, model: Path) -> None:
    result = elman("score", model, stdin=b"fine\ncaf\xe9\n")
    assert result.code == 1
    assert "stdin is not UTF-8: line 2, byte 4" in result.error[0]


def test_file_of_one_word(elman: Elman, tmp_path: Path) -> None:
    word = tmp_path / "word.txt"
    word.write_text("hello\n")
    assert "too little text" in sentence_of(
        elman("train", "lm", word, "--out", tmp_path / "run"), 2
    )


def test_empty_folder(elman: Elman, tmp_path: Path) -> None:
    sentence_of(elman("train", "lm", tmp_path), 2)


# Settings


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--set", "model.hiden_size=3"), "did you mean 'model.hidden_size'?"),
        (("--set", "modle.hidden_size=3"), "did you mean 'model'?"),
        (("--set", "model.hidden_size=big"), "'model.hidden_size' should be a whole number"),
        (("--set", "model.cell=lstn"), "did you mean 'lstm'?"),
        (("--set", "hidden_size"), "is not of the form key=value"),
        (("--recipe", "char-lstn"), "did you mean 'char-lstm'?"),
        (("--recipe", "missing.toml"), "missing.toml does not exist"),
        (("--minutes", "1", "--steps", "3"), "given twice"),
        (("--set", "data.train=x"), "the text of data.train was given twice"),
        (("--vocab-size", "2"), "tokenizer.vocab_size cannot be 2 | use 3 or more"),
        (("--minutes", "soon"), "--minutes"),
        (("--steps", "0"), "training.steps cannot be 0 | use 1 or more"),
        (("--minutes", "0"), "use more than 0"),
        (("--minutes", "inf"), "training.minutes cannot be inf"),
        (("--device", "tpu"), "there is no device called 'tpu'"),
        (("--resume",), "--resume needs the run folder"),
        (("--setp", "3"), "there is no option --setp | did you mean '--set'?"),
        (("--lr", "1"), "did you mean '--learning-rate'?"),
        (("--rate", "1"), "did you mean '--learning-rate'?"),
        (("--vocab", "3"), "did you mean '--vocab-size'?"),
        (("--model", "gru"), "choose one of: --batch-size"),
        (("--units", "1"), "did you mean '--hidden-size'?"),
        (("--bptt", "1"), "write --set training.chunk_length=VALUE"),
        (("--dropout", "1"), "model.dropout_output: write --set NAME=VALUE"),
        (("--patience", "1"), "one of the settings schedule.patience, training.patience"),
        (("-o", "x"), "write --out"),
        (("--gpu",), "write --device cuda"),
        (("--recipe", "elmo-tiny"), "write elman train elmo"),
        (("--set", "model.kind=tagger"), "write elman train tagger"),
        (("--steps", "many"), "--steps should be a whole number"),
        (("--set", "training.learning_rate=1"), "did you mean 'optimiser.learning_rate'?"),
        (("--set", "batch_size=1"), "did you mean 'training.batch_size'?"),
    ],
)
def test_wrong_settings(
    elman: Elman, toy: Path, tmp_path: Path, arguments: tuple[str, ...], said: str
) -> None:
    result = elman("train", "lm", toy, *arguments)
    assert said in sentence_of(result, 1 if "missing.toml" in arguments else 2)


def test_a_model_beside_is_missed_first(elman: Elman, model: Path, toy: Path) -> None:
    missed = elman("evaluate", model, toy, "--beside", "runs/nix")
    assert "there is no run folder runs/nix" in sentence_of(missed, 2)
    assert missed.out == ""


def test_a_text_in_place_of_a_file(elman: Elman, model: Path) -> None:
    for text in ("the cat sat", "The cat sat. It sat."):
        said = sentence_of(elman("score", model, text), 2)
        assert said.startswith(
            f"there is no file called '{text}' | a text itself is given on stdin"
        )


def test_unknown_words_of_the_command_line(elman: Elman, model: Path) -> None:
    said = sentence_of(elman("evalute", model), 2)
    assert said == "there is no command 'elman evalute' | did you mean 'evaluate'?"
    assert "did you mean 'score'?" in sentence_of(elman("surprisal", model), 2)
    said = sentence_of(elman("score", model, "--foo"), 2)
    assert "choose one of: --adapt, --as-is, --base, --boundary" in said
    assert "model" not in said  # an argument is no option
    assert "did you mean 'window'?" in sentence_of(elman("train", "windwo"), 2)
    assert "did you mean '--unit'?" in sentence_of(elman("score", model, "--unti", "word"), 2)
    said = sentence_of(elman("generate", "--model", model), 2)
    assert said.endswith("write it without an option: elman generate [MODEL] [PROMPT|-]")
    said = sentence_of(elman("next", model, "the", "cat"), 2)
    assert said.endswith("put a text of several words in quotes")
    said = sentence_of(elman("train", "some.txt"), 2)
    assert said.endswith("name the task before the data, as in elman train lm some.txt")
    assert "did you mean 'models'" in sentence_of(elman("list"), 2)
    assert "choose one of: check" in sentence_of(elman("lab", "list"), 2)
    assert "MODEL" in sentence_of(elman("info"), 2)
    assert "unexpected argument: b c" in sentence_of(elman("info", model, "b", "c"), 2)
    assert "did you mean 'word'?" in sentence_of(
        elman("score", model, "--unit", "wrod", stdin="a"), 2
    )


def test_no_words_at_all_print_the_help(elman: Elman) -> None:
    result = elman()
    assert result.code == 2
    assert result.err.startswith("Usage: elman ")
    assert "Commands:" in result.err
    assert elman("train").err.startswith("Usage: elman train ")


def test_short_help(elman: Elman) -> None:
    assert "Train a recurrent language model" in elman("train", "lm", "-h").out
    assert elman("generate", "-h").out.startswith(
        "Usage: elman generate [OPTIONS] [MODEL] [PROMPT|-]\n"
    )


def test_a_run_folder_is_not_overwritten(elman: Elman, toy: Path, model: Path) -> None:
    said = sentence_of(elman("train", "lm", toy, "--out", model), 2)
    assert "already holds a run" in said
    assert "--resume" in said


def test_a_resumed_run_keeps_its_settings(
    elman: Elman, small: Small, toy: Path, tmp_path: Path
) -> None:
    elman("train", "lm", toy, "--out", tmp_path / "run", "--steps", 2, *small)
    resume = ("train", "lm", "--out", tmp_path / "run", "--resume", "--steps", 3)
    said = sentence_of(elman(*resume, "--set", "model.hidden_size=48"), 2)
    assert "model.hidden_size" in said
    other = tmp_path / "other.txt"
    other.write_text("another text entirely\n" * 20)
    assert "data.train" in sentence_of(elman(*resume[:2], other, *resume[2:]), 2)


# Models


@pytest.fixture
def copy(model: Path, tmp_path: Path) -> Path:
    """A run folder to damage."""
    return Path(shutil.copytree(model, tmp_path / "copy"))


def test_run_folders_nearby_are_named(elman: Elman, model: Path) -> None:
    said = sentence_of(elman("info", model.parent / "charz"), 2)
    assert f"did you mean '{model}'?" in said
    assert f"it holds runs: name one of them, as {model}" in sentence_of(
        elman("info", model.parent), 2
    )


def test_packaged_models_nearby_are_named(elman: Elman) -> None:
    assert "did you mean 'word-lstm'?" in sentence_of(elman("info", "word-lst"), 2)


def test_missing_and_wrong_run_folders(elman: Elman, tmp_path: Path) -> None:
    assert "nowhere" in sentence_of(elman("info", tmp_path / "nowhere"), 2)
    assert "is not a run folder" in sentence_of(elman("info", tmp_path), 2)
    file = tmp_path / "file.txt"
    file.write_text("text")
    assert "file.txt" in sentence_of(elman("info", file), 2)


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json"])
def test_a_missing_part(elman: Elman, copy: Path, name: str) -> None:
    (copy / name).unlink()
    assert f"has no {name}" in sentence_of(elman("next", copy, "the"), 1)


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json", "config.json"])
def test_a_truncated_part(elman: Elman, copy: Path, name: str) -> None:
    data = (copy / name).read_bytes()
    (copy / name).write_bytes(data[: len(data) // 2])
    assert name in sentence_of(elman("next", copy, "the"), 1)


def test_a_truncated_train_state(elman: Elman, copy: Path) -> None:
    state = copy / "train" / "state.safetensors"
    state.write_bytes(state.read_bytes()[:1000])
    said = sentence_of_last(elman("train", "lm", "--out", copy, "--resume", "--steps", 70), 1)
    assert "state.safetensors is damaged or cut short" in said


def test_a_tokenizer_of_another_model(elman: Elman, copy: Path, words: Path) -> None:
    shutil.copy(words / "tokenizer.json", copy / "tokenizer.json")
    said = sentence_of(elman("next", copy, "the"), 1)
    assert "is not the tokenizer of" in said


def test_a_configuration_of_another_model(elman: Elman, copy: Path) -> None:
    config = read_json(copy / "config.json")
    config["model"]["hidden_size"] = 48
    (copy / "config.json").write_text(json.dumps(config))
    assert "does not fit the model" in sentence_of(elman("next", copy, "the"), 1)


def test_mixtures_need_one_vocabulary_and_weights(elman: Elman, model: Path, words: Path) -> None:
    said = sentence_of(elman("next", f"0.5*{model}+0.5*{words}", "the"), 2)
    assert "different tokenizers" in said
    assert "tokenizer.file" in said
    assert "weight" in sentence_of(elman("next", f"half*{model}+0.5*{words}", "the"), 2)
    assert "weight" in sentence_of(elman("next", f"0*{words}+1*{words}", "the"), 2)


def test_a_word_that_is_not_there(elman: Elman, words: Path) -> None:
    said = sentence_of(elman("embed", words, "studnet"), 2)
    assert "'studnet' is not a token" in said
    assert "did you mean 'student'?" in said
    said = sentence_of(elman("embed", words, "xyzzyx"), 2)
    assert "choose one of" not in said  # a vocabulary may have a million words


def test_options_that_contradict_each_other(elman: Elman, model: Path, tmp_path: Path) -> None:
    said = sentence_of(elman("generate", model, "--greedy", "--top-k", 3), 2)
    assert said == "greedy decoding does not sample | drop greedy or top_k"
    for command in ("translate", "caption"):
        contradictions = [("--beam", 3, "--temperature", 0.5), ("--seed", 1)]
        contradictions += [("--greedy", "--beam", 3), ("--greedy", "--length-penalty", 1)][
            : 2 * (command == "translate")
        ]
        for given in contradictions:
            assert "beam search" in sentence_of(elman(command, model, "a.png", *given), 2)
    for label in "ab":
        (tmp_path / f"{label}.txt").write_text("some text\n" * 20)
    said = sentence_of(elman("train", "classifier", tmp_path, "--column", "label"), 2)
    assert "without columns" in said


@pytest.mark.parametrize(
    ("measure", "option"),
    [
        (("--suite", "blimp"), ("--batch-size", 4)),
        (("--suite", "blimp"), ("--beside", "char-lstm")),
        (("--suite", "blimp"), ("--column", "text")),
        (("--suite", "blimp"), ("--agreement", "a.svg")),
        (("--novelty",), ("--suite", "blimp")),
        (("--novelty",), ("--context", 3)),
    ],
)
def test_other_measures_refuse_options_that_they_do_not_read(
    elman: Elman, model: Path, toy: Path, measure: tuple[str, ...], option: tuple[Any, ...]
) -> None:
    said = sentence_of(elman("evaluate", model, toy, *measure, *option), 2)
    assert said == f"{option[0]} has no effect with {measure[0]} | drop {option[0]}"


def test_words_that_cannot_be_looked_up(
    elman: Elman, words: Path, toy: Path, tmp_path: Path
) -> None:
    said = sentence_of(elman("neighbours", words, toy, " "), 2)
    assert said == "there is no word to look for | write one after FILE"
    said = sentence_of(elman("embed", words, "the", "--neighbours", 0), 2)
    assert said.startswith("--neighbours should be")
    write = tmp_path / "labelled.tsv"
    write.write_text("good\tfine film\nbad\tdull film\n" * 9, encoding="utf-8")
    small = ("--steps", 1, "--set", "model.hidden_size=4", "--set", "model.embedding_size=4")
    elman("train", "classifier", write, "--out", tmp_path / "run", *small).ok()
    for options in ((), ("--layers", "top", "--json")):  # `embed` has no way for these
        said = sentence_of(elman("embed", tmp_path / "run", "film", *options), 2)
        assert "gives no vectors of words | use a language model, recurrent" in said


def test_a_column_of_no_table_is_refused(elman: Elman, model: Path, toy: Path) -> None:
    for command in (("evaluate", model), ("data", "check"), ("train", "lm")):
        said = sentence_of(elman(*command, toy, "--column", "text"), 2)
        assert said.startswith("--column text has no effect: none of the files is a table")


def test_what_a_run_folder_is_needed_for(elman: Elman, model: Path, tmp_path: Path) -> None:
    arpa = tmp_path / "m.arpa"
    arpa.write_text("\\data\\\nngram 1=1\n\n\\1-grams:\n-1 <unk>\n\n\\end\\\n", "utf-8")
    for command in (("info", arpa, "--verify"), ("compare", arpa), ("track", arpa, "tensorboard")):
        assert sentence_of(elman(*command), 2).startswith(f"{arpa} is an ARPA file, not a run")
    said = sentence_of(elman("info", model, "--verify", "--held-out", arpa), 2)
    assert said == "--held-out has no effect with --verify | drop --held-out"


def test_embed_must_know_where_to_write(elman: Elman, words: Path, toy: Path) -> None:
    assert "--out" in sentence_of(elman("embed", words, toy, "--kind", "sequence"), 2)
    said = sentence_of(elman("embed", words, toy, "--out", "vectors.txt"), 2)
    assert ".hdf5 or .safetensors" in said
    assert "one file" in sentence_of(elman("embed", words, toy, toy, "--out", "v.npz"), 2)


# The machine


def test_a_full_disk(
    elman: Elman, small: Small, toy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("elman.base.tensor_files._encoded", full)
    result = elman("train", "lm", toy, "--out", tmp_path / "run", "--steps", 2, *small)
    assert "the disk is full while writing" in sentence_of_last(result, 1)


def test_a_full_disk_while_writing_vectors(
    elman: Elman, words: Path, toy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("numpy.lib.format.write_array", full)
    out = tmp_path / "vectors.npz"
    result = elman("embed", words, toy, "--out", out)
    assert "the disk is full while writing" in sentence_of(result, 1)
    assert not list(tmp_path.iterdir())


def test_an_unwritable_place(elman: Elman, small: Small, toy: Path, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("in the way")
    said = sentence_of_last(elman("train", "lm", toy, "--out", file / "run", *small), 1)
    assert "file" in said
    assert "is a file" in sentence_of_last(elman("train", "lm", toy, "--out", file, *small), 2)


def test_memory(elman: Elman, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def exhausted(*_: object, **__: object) -> None:
        raise MemoryError

    monkeypatch.setattr("elman.api.load", exhausted)
    assert "memory" in sentence_of(elman("info", model), 1)


def sentence_of_last(result: Any, code: int) -> str:
    """As `sentence_of`, for commands that had said something else before."""
    assert result.code == code, (result.out, result.err)
    return " | ".join(result.error)


@pytest.mark.parametrize(
    ("out", "options", "says"),
    [
        ("words.vec", ("--quantise", "int8"), "--quantise has no effect on a .vec file"),
        ("model.py", ("--quantise", "int8"), "--quantise has no effect on a .py file"),
        ("model.onnx", ("--layout", "compact"), "a layout is that of a run folder"),
        ("folder", ("--to", "hf", "--layout", "compact"), "--to hf writes a folder"),
        ("folder", ("--quantise", "int8", "--side", "target"), "only word vectors have a side"),
        ("tokenizer.json", ("--quantise", "int8"), "--quantise has no effect on a tokenizer"),
    ],
)
def test_conversions_refuse_options_that_they_do_not_read(
    elman: Elman, words: Path, tmp_path: Path, out: str, options: tuple[str, ...], says: str
) -> None:
    refused = elman("convert", words, tmp_path / out, *options)
    assert refused.code == 2
    assert says in refused.error[0]
    assert not list(tmp_path.iterdir())


def test_a_folder_for_transformers_converts_back_as_a_whole(
    elman: Elman, words: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "folder"
    elman("convert", words, folder, "--to", "hf").ok()
    refused = elman("convert", folder, tmp_path / "run", "--quantise", "int8")
    assert "--quantise has no effect on a folder for transformers" in refused.error[0]
    assert not (tmp_path / "run").exists()


def test_a_part_has_a_size(elman: Elman, model: Path, tmp_path: Path) -> None:
    said = sentence_of(elman("pack", model, tmp_path / "parts", "--part-mib", "inf"), 2)
    assert said == "--part-mib cannot be inf | use a finite number"
