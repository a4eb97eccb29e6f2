"""Configs read strictly, write back whole, and document themselves."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elman.base.config import LARGEST, describe, from_dict, merge, parse_overrides, to_dict
from elman.base.documents import read_toml
from elman.base.errors import ElmanError, UsageError

SHAPES = {"circle": f"{__name__}:Circle", "square": f"{__name__}:Square"}


@dataclass(frozen=True, kw_only=True)
class Circle:
    kind: str = "circle"
    """Always circle."""
    radius: float = 1.0
    """In centimetres,
    from the middle."""


@dataclass(frozen=True, kw_only=True)
class Square:
    kind: str = "square"
    side: float = 2.0


@dataclass(frozen=True, kw_only=True)
class Drawing:
    name: str
    colour: Literal["red", "blue"] = "red"
    files: tuple[str, ...] = ()
    limit: int | None = None
    bold: bool = False
    shape: Circle | Square = field(default_factory=Circle, metadata={"table": SHAPES})


def test_reads_and_writes_back() -> None:
    data = {"name": "x", "files": ["a", "b"], "shape": {"kind": "square", "side": 3}, "limit": 4.0}
    drawing = from_dict(Drawing, data)
    assert drawing.shape == Square(side=3.0)
    assert drawing.limit == 4
    assert from_dict(Drawing, to_dict(drawing)) == drawing


def test_kind_is_written_before_inherited_settings() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Base:
        size: int = 1

    @dataclass(frozen=True, kw_only=True)
    class Chosen(Base):
        colour: str = "red"
        kind: str = "chosen"

    assert list(to_dict(Chosen())) == [s.name for s in describe(Chosen)]
    assert list(to_dict(Chosen())) == ["kind", "size", "colour"]


def test_a_choice_without_a_kind_keeps_the_default_one() -> None:
    assert from_dict(Drawing, {"name": "x", "shape": {"radius": 4}}).shape == Circle(radius=4.0)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        ({"name": "x", "colur": "red"}, "did you mean 'colour'"),
        ({"name": "x", "colour": "rad"}, "did you mean 'red'"),
        ({"name": 3}, "'name' should be a text"),
        ({"name": "x", "bold": 1}, "'bold' should be true or false"),
        ({"name": "x", "limit": True}, "'limit' should be a whole number"),
        ({"name": "x", "limit": 1.5}, "'limit' should be a whole number"),
        ({}, "'name' is missing"),
        ({"name": "x", "shape": {"kind": "cirle"}}, "did you mean 'circle'"),
        ({"name": "x", "shape": {"kind": "circle", "side": 1}}, "unknown setting 'shape.side'"),
        ({"name": "x", "shape": 3}, "'shape' needs a kind"),
    ],
)
def test_bad_settings_are_named(data: dict[str, object], says: str) -> None:
    with pytest.raises(UsageError) as caught:
        from_dict(Drawing, data)
    assert says in f"{caught.value.message} {caught.value.hint}"


def test_merge_starts_afresh_when_the_kind_changes() -> None:
    base = {"shape": {"kind": "circle", "radius": 2}, "name": "x"}
    assert merge(base, {"shape": {"radius": 3}})["shape"] == {"kind": "circle", "radius": 3}
    assert merge(base, {"shape": {"kind": "square"}})["shape"] == {"kind": "square"}
    assert base["shape"] == {"kind": "circle", "radius": 2}


def test_overrides_are_toml_or_text() -> None:
    assert parse_overrides(["a.b=1", "a.c=1e-3", "d=true", "e=lstm", 'f=["x"]', "g=a=b"]) == {
        "a": {"b": 1, "c": 1e-3}, "d": True, "e": "lstm", "f": ["x"], "g": "a=b",
    }  # fmt: skip
    for text in ("2020-01-01", "2020-01-01T07:00:00", "07:00:00"):
        assert parse_overrides([f"a={text}"]) == {"a": text}
    for bad in ("nonsense", "=1"):
        with pytest.raises(UsageError):
            parse_overrides([bad])


def test_an_override_through_a_value_is_an_error() -> None:
    with pytest.raises(UsageError):
        parse_overrides(["a=1", "a.b=2"])


def test_prose_under_a_field_is_its_documentation() -> None:
    kind, radius = describe(Circle)
    assert kind.prose == "Always circle."
    assert radius.prose == "In centimetres,\nfrom the middle."
    assert (radius.type, radius.default) == ("float", 1.0)


def test_toml_errors_name_the_file(tmp_path: Path) -> None:
    path = tmp_path / "bad.toml"
    with pytest.raises(ElmanError, match="does not exist"):
        read_toml(path)
    path.write_text("a = = 1")
    with pytest.raises(UsageError, match=r"bad\.toml is not TOML"):
        read_toml(path)


@given(
    st.builds(
        Drawing,
        name=st.text(),
        colour=st.sampled_from(["red", "blue"]),
        files=st.lists(st.text()).map(tuple),
        limit=st.none() | st.integers(-LARGEST, LARGEST),
        bold=st.booleans(),
        shape=st.builds(Circle, radius=st.floats(allow_nan=False, allow_infinity=False))
        | st.builds(Square, side=st.floats(allow_nan=False, allow_infinity=False)),
    )
)
def test_any_config_survives_a_round_trip(drawing: Drawing) -> None:
    assert from_dict(Drawing, to_dict(drawing)) == drawing


@dataclass(frozen=True, kw_only=True)
class _Part:
    num_layers: int = 1
    dropout_input: float = 0.0
    dropout_output: float = 0.0


@dataclass(frozen=True, kw_only=True)
class _Rate:
    learning_rate: float = 0.1


@dataclass(frozen=True, kw_only=True)
class _Whole:
    part: _Part = field(default_factory=_Part)
    rate: _Rate = field(default_factory=_Rate)


@pytest.mark.parametrize(
    ("data", "hint"),
    [
        ({"learning_rate": 1}, "did you mean 'rate.learning_rate'?"),
        ({"part": {"learning_rate": 1}}, "did you mean 'rate.learning_rate'?"),
        ({"lr": 1}, "did you mean 'rate.learning_rate'?"),
        ({"part": {"layers": 1}}, "did you mean 'part.num_layers'?"),
        ({"part": {"num_layer": 1}}, "did you mean 'part.num_layers'?"),
        ({"part": {"dropout": 1}}, "did you mean 'part.dropout_input' or 'part.dropout_output'?"),
        ({"parts": {}}, "did you mean 'part'?"),
        ({"rate": {"minutes": 1}}, "choose one of: rate.learning_rate"),
    ],
)
def test_an_unknown_setting_is_found_where_it_belongs(data: dict[str, Any], hint: str) -> None:
    with pytest.raises(UsageError, match="unknown setting") as caught:
        from_dict(_Whole, data)
    assert caught.value.hint == hint


@pytest.mark.parametrize("value", ["9" * 5_000, f"0x{'f' * 5_000}", "[" * 100_000, "1" * 30])
def test_values_that_fit_nothing_are_one_sentence(value: str) -> None:
    with pytest.raises(UsageError) as caught:
        from_dict(Part, parse_overrides([f"size={value}"]))
    assert len(caught.value.message) < 300


@dataclass(frozen=True, kw_only=True)
class Part:
    size: int = 1


@pytest.mark.parametrize("kind", [5, None, ["a"], {"a": 1}])
def test_a_kind_that_is_no_name_is_one_sentence(kind: Any) -> None:
    @dataclass(frozen=True, kw_only=True)
    class Whole:
        part: Any = field(default_factory=Part, metadata={"table": {"part": Part}})

    with pytest.raises(UsageError, match="'part' needs a kind"):
        from_dict(Whole, {"part": {"kind": kind}})
