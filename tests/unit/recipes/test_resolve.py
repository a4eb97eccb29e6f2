"""From what a user types to a configuration: layers, automatic choices, and their reasons."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from elman import recipes
from elman.base.config import parse_overrides
from elman.base.errors import ElmanError, UsageError
from elman.recipes.resolve import resolve, resolve_resumed
from elman.runs.machine import Machine
from elman.runs.run_folder import write_config
from elman.tasks.language_model import automatic
from elman.tokens.choose import choose_for
from elman.tokens.tokenizer_config import TokenizerConfig
from elman.tokens.train import train_tokenizer

PLAIN = "The quick brown fox jumps over the lazy dog. It was not amused, was it?\n"
TOKENISED = "the quick <unk> fox , it seems , jumps over N lazy dogs .\n"


@pytest.fixture
def plain(tmp_path: Path) -> str:
    path = tmp_path / "plain.txt"
    path.write_text(PLAIN * 500)
    return str(path)


@pytest.fixture
def tokenised(tmp_path: Path) -> str:
    path = tmp_path / "tokenised.txt"
    path.write_text(TOKENISED * 500)
    return str(path)


def resolved(data: str, **arguments: Any) -> Any:
    return resolve("lm", [data], device="cpu", **arguments).config


def test_a_plain_text_becomes_a_character_model_and_says_why(plain: str) -> None:
    found = resolve("lm", [plain], device="cpu")
    assert found.config.tokenizer.kind == "char"
    assert found.config.recipe == "automatic"
    assert found.config.data.train == (plain,)
    assert found.config.training.epochs is not None
    text = "\n".join(found.notes)
    assert "characters" in text
    assert f"of {found.config.model.hidden_size} LSTM units" in text
    assert f"{found.config.training.epochs} epochs" in text
    assert "the last 10% of the text is held out" in text


def test_a_tokenised_text_becomes_a_tied_word_model(tokenised: str) -> None:
    config = resolved(tokenised)
    assert config.tokenizer.kind == "pretokenized"
    assert config.model.tied


def test_the_notes_name_texts_that_are_given_twice(plain: str) -> None:
    found = resolve("ngram", [plain, plain], valid=[plain])
    assert found.notes[:2] == [
        f"named more than once, and read once: {plain}",
        f"the validation text {plain} is also a training text: its figures are too good",
    ]


def test_the_notes_follow_what_the_user_set(plain: str) -> None:
    found = resolve(
        "lm",
        [plain],
        minutes=5,
        settings=parse_overrides(["model.hidden_size=77", "tokenizer.kind=byte"]),
    )
    text = "\n".join(found.notes)
    assert found.config.tokenizer.kind == "byte"
    assert "byte: as you asked" in text
    assert "of 77 LSTM units" in text
    assert "over 5 minutes" in text


@pytest.mark.parametrize(
    ("arguments", "length"),
    [
        ({"minutes": 3}, (None, None, 3.0)),
        ({"epochs": 2}, (2, None, None)),
        ({"steps": 9}, (None, 9, None)),
        ({"settings": {"training.steps": 9}}, (None, 9, None)),
        ({"recipe": "char-lstm", "minutes": 3}, (None, None, 3.0)),
        ({"recipe": "char-lstm"}, (15, None, None)),
    ],
)
def test_there_is_one_length(plain: str, arguments: dict[str, Any], length: tuple[Any]) -> None:
    training = resolved(plain, **arguments).training
    assert (training.epochs, training.steps, training.minutes) == length


def test_two_lengths_are_refused(plain: str) -> None:
    with pytest.raises(UsageError, match="twice"):
        resolved(plain, minutes=1, epochs=2)
    with pytest.raises(UsageError, match="twice"):
        resolved(plain, minutes=1, settings=parse_overrides(["training.epochs=3"]))


def test_overrides_lie_over_the_recipe(plain: str) -> None:
    config = resolved(
        plain, recipe="char-lstm", settings=parse_overrides(["model.hidden_size=48"]), seed=7
    )
    assert config.model.hidden_size == 48
    assert config.model.dropout_output == 0.1
    assert config.training.seed == 7
    assert config.recipe == "char-lstm"


def test_a_recipe_without_a_tokenizer_gets_one_that_fits(plain: str, tokenised: str) -> None:
    for data, kind in ((plain, "char"), (tokenised, "pretokenized")):
        found = resolve("window", [data], device="cpu")
        assert found.config.model.kind == "window"
        assert found.config.tokenizer.kind == kind


def test_unknown_names_are_answered_with_the_nearest(plain: str) -> None:
    with pytest.raises(UsageError, match=r"model\.hiden_size") as caught:
        resolved(plain, settings=parse_overrides(["model.hiden_size=3"]))
    assert "hidden_size" in caught.value.hint
    with pytest.raises(UsageError) as caught:
        resolve("lmm", [plain])
    assert "lm" in caught.value.hint
    with pytest.raises(UsageError) as caught:
        resolved(plain, recipe="char-lsmt")
    assert "char-lstm" in caught.value.hint


def test_without_data_a_built_in_corpus_is_used() -> None:
    found = resolve("lm", [], device="cpu")
    assert found.config.data.train == ("python-docs",)
    assert "python-docs" in found.notes[0]


def test_missing_files_are_noticed_at_once(plain: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="does not exist"):
        resolve("lm", [plain], valid=[str(tmp_path / "none.txt")])


@pytest.mark.parametrize("num_bytes", [0, 50, 5_000, 10**6, 10**8, 10**11])
@pytest.mark.parametrize("text", [PLAIN, TOKENISED])
@pytest.mark.parametrize("machine", [Machine("cpu", "2 cores"), Machine("cuda", "a card")])
def test_every_size_of_text_has_settings(num_bytes: int, text: str, machine: Machine) -> None:
    choice = choose_for([text * 50], num_bytes)
    what = automatic.Text(choice, choice.kind)
    settings = automatic.settings(what, machine, False, {}, recipes.read)
    training, tokens = settings["training"], what.num_tokens
    assert training["epochs"] >= 1
    if tokens > 1000:
        assert tokens >= training["batch_size"] * training["chunk_length"] * 4
    assert settings["data"]["valid_fraction"] * tokens <= 1_000_001


def test_a_resumed_run_keeps_its_settings_and_may_get_longer(plain: str, tmp_path: Path) -> None:
    config = resolved(plain, settings=parse_overrides(["model.hidden_size=48"]), epochs=3)
    write_config(tmp_path, config)
    assert resolve_resumed(tmp_path).config == config
    longer = resolve_resumed(tmp_path, steps=500).config
    assert (longer.training.epochs, longer.training.steps) == (None, 500)
    assert longer.model == config.model


def test_the_texts_of_a_recipe_and_of_overrides_are_used(
    plain: str, tokenised: str, tmp_path: Path
) -> None:
    recipe = tmp_path / "mine.toml"
    recipe.write_text(
        f'[data]\ntrain = ["{plain}"]\nvalid = ["{tokenised}"]\n[model]\nkind = "recurrent"\n'
    )
    found = resolve("lm", [], recipe=str(recipe), device="cpu")
    assert (found.config.data.train, found.config.data.valid) == ((plain,), (tokenised,))
    assert not any("python-docs" in note for note in found.notes)
    given = resolve("lm", [tokenised], recipe=str(recipe), device="cpu").config
    assert (given.data.train, given.data.valid) == ((tokenised,), (tokenised,))

    found = resolve(
        "lm", [], settings=parse_overrides([f"data.train={plain}", f"data.valid={plain}"])
    )
    assert (found.config.data.train, found.config.data.valid) == ((plain,), (plain,))
    assert not any("held out" in note for note in found.notes)
    with pytest.raises(UsageError, match="does not exist"):
        resolved(plain, settings=parse_overrides(["data.valid=none.txt"]))


@pytest.mark.parametrize("override", ["training=3", "data=3", "tokenizer=bpe", "model=lstm"])
def test_a_group_of_settings_takes_no_value(plain: str, override: str, tmp_path: Path) -> None:
    name = override.partition("=")[0]
    with pytest.raises(UsageError, match=f"'{name}' is a group of settings") as caught:
        resolved(plain, settings=parse_overrides([override]))
    assert f"--set {name}.KEY=VALUE" in caught.value.hint
    recipe = tmp_path / "mine.toml"
    recipe.write_text(f"{name} = 3\n")
    with pytest.raises(UsageError, match=f"'{name}' is a group of settings"):
        resolved(plain, recipe=str(recipe))


@pytest.mark.parametrize("recipe", [None, "char-lstm", "window-bengio"])
def test_a_tokenizer_file_says_its_own_kind(plain: str, tmp_path: Path, recipe: str | None) -> None:
    file = tmp_path / "tokenizer.json"
    train_tokenizer([plain], TokenizerConfig(kind="word"))[0].save(file)
    found = resolve(
        "lm",
        [plain],
        recipe=recipe,
        settings=parse_overrides([f"tokenizer.file={file}"]),
        device="cpu",
    )
    assert (found.config.tokenizer.kind, found.config.tokenizer.file) == ("word", file)
    assert f"tokenizer word: read from {file}" in found.notes
    if recipe is None:
        assert found.config.model.tied  # a row for words, though the text is small


@pytest.mark.parametrize(
    "override",
    [
        "model.dropout_output=1",
        "model.dropout_input=-0.1",
        "model.weight_drop=1.5",
        "model.hidden_size=0",
        "model.embedding_size=-1",
        "model.num_layers=0",
        "model.character_cnn.character_size=0",
        "model.character_cnn.filters=[0]",
        "optimiser.learning_rate=0",
        "optimiser.learning_rate=nan",
        "optimiser.momentum=1",
        "optimiser.beta1=1",
        "optimiser.beta2=-1",
        "optimiser.weight_decay=-1",
        "training.clip_norm=-1",
        "training.batch_size=0",
        "training.checkpoint_seconds=-1",
        "training.patience=-1",
        "training.sample_length=-1",
        "training.validate_every=-1",
        "tokenizer.vocab_size=-1",
        "tokenizer.min_count=-1",
    ],
)
def test_values_out_of_range_are_refused_by_name(plain: str, override: str) -> None:
    name = override.partition("=")[0]
    with pytest.raises(UsageError, match=f"^{name} cannot be") as caught:
        resolved(plain, settings=parse_overrides([override]))
    assert caught.value.hint


def test_a_tied_embedding_follows_the_hidden_size_that_was_asked_for(tmp_path: Path) -> None:
    text = tmp_path / "words.txt"
    text.write_text("one two three four five six seven\n" * 200)
    overrides = ["tokenizer.kind=word", "model.hidden_size=64"]
    model = resolve(
        "lm", [str(text)], settings=parse_overrides(overrides), steps=1, device="cpu"
    ).config.model
    assert model.tied
    assert (model.hidden_size, model.embedding_size) == (64, 64)


def test_a_tokenizer_from_outside_gets_automatic_settings(plain: str) -> None:
    """It was a KeyError: the number of tokens is estimated by the kind of tokenizer."""
    kind = "elman.tokens.characters:Characters"
    config = resolved(plain, settings={"tokenizer.kind": kind})
    assert config.tokenizer.kind == kind
    assert config.training.epochs is not None


def test_a_recipe_has_no_unread_settings_but_may_lose_their_reader(
    plain: str, tmp_path: Path
) -> None:
    recipe = tmp_path / "mine.toml"
    recipe.write_text('[model]\nkind = "recurrent"\ncell = "gru"\nforget_bias = 0.0\n')
    with pytest.raises(UsageError, match=r"'model.forget_bias' is set, but nothing reads it"):
        resolved(plain, recipe=str(recipe))
    recipe.write_text('[model]\nkind = "recurrent"\nforget_bias = 0.0\n')
    found = resolve("lm", [plain], recipe=str(recipe), settings={"model.cell": "gru"}, device="cpu")
    assert found.config.model.forget_bias == 1.0
    assert "model.forget_bias of the recipe is not used" in found.notes
    with pytest.raises(UsageError, match=r"unknown setting 'training.bach'"):
        settings = {"model.cell": "gru", "training.bach": 3}
        resolve("lm", [plain], recipe=str(recipe), settings=settings, device="cpu")


@pytest.mark.parametrize(
    ("task", "settings", "unread"),
    [
        ("ngram", {"model.smoothing": "katz", "model.delta": 0.5}, "model.delta"),
        ("ngram", {"model.backoff_factor": 0.3}, "model.backoff_factor"),
        ("lm", {"tokenizer.kind": "bpe", "tokenizer.min_count": 3}, "tokenizer.min_count"),
        ("lm", {"tokenizer.kind": "byte", "tokenizer.vocab_size": 99}, "tokenizer.vocab_size"),
    ],
)
def test_settings_of_another_method_are_refused(
    plain: str, task: str, settings: dict[str, Any], unread: str
) -> None:
    with pytest.raises(UsageError, match=f"'{unread}' is set, but nothing reads it"):
        resolve(task, [plain], settings=settings, device="cpu")


def test_a_projected_decoder_is_not_tied_by_itself(tmp_path: Path) -> None:
    for name in ("a.en", "a.de"):
        (tmp_path / name).write_text("one two three\nfour five\n" * 20)
    pair = [str(tmp_path / "a.en"), str(tmp_path / "a.de")]
    narrow = {"model.decoder.attention": "none", "model.decoder.projection_size": 8}
    found = resolve("translator", pair, settings=narrow, device="cpu").config.model.decoder
    assert (found.tied, found.input_feeding) == (False, False)


@pytest.mark.parametrize("recipe", [None, "multi30k-attention"])
def test_the_attention_of_the_lecture_is_one_setting(tmp_path: Path, recipe: str | None) -> None:
    for name in ("a.en", "a.de"):
        (tmp_path / name).write_text("one two three\nfour five\n" * 20)
    pair = [str(tmp_path / "a.en"), str(tmp_path / "a.de")]
    before = {"model.decoder.attend": "before"}
    found = resolve("translator", pair, recipe=recipe, settings=before, device="cpu")
    decoder = found.config.model.decoder
    assert (decoder.attend, decoder.input_feeding, decoder.attention) == (
        *("before", False, "bilinear"),
    )
    found.config.model.build(50)


def test_the_path_of_word_vectors_is_absolute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.txt").write_text("the cat sat\n" * 200)
    (tmp_path / "words.vec").write_text("the 0.5 1\n")
    monkeypatch.chdir(tmp_path)
    settings = {"model.vectors": "words.vec"}
    found = resolve("lm", ["a.txt"], settings=settings, device="cpu").config.model
    assert found.vectors == str((tmp_path / "words.vec").resolve())
    assert found.embedding_size == 2


@pytest.mark.parametrize("name", ["model.vectors", "training.start"])
def test_a_number_is_no_path(tmp_path: Path, name: str) -> None:
    (tmp_path / "a.txt").write_text("the cat sat\n" * 200)
    with pytest.raises(ElmanError, match="5"):
        resolve("lm", [str(tmp_path / "a.txt")], settings={name: 5}, device="cpu")


def test_a_tiny_vocabulary_is_refused_in_new_runs_only(plain: str) -> None:
    with pytest.raises(UsageError, match="vocab_size cannot be 2"):
        resolve("lm", [plain], settings={"tokenizer": {"vocab_size": 2}})
    assert TokenizerConfig(vocab_size=2).vocab_size == 2  # as in the config of a saved run
