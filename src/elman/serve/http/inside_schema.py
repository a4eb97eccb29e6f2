"""The wire format of questions about single units, and about places that units treat alike."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from elman.serve.http.schema import Answer, Number, Request, Text


class UnitRequest(Request):
    text: Text
    layer: int = Field(0, ge=0, description="The layer, from 0 at the bottom.")
    unit: int = Field(0, ge=0)


class Unit(Answer):
    """Everything that one unit of a layer computes over a text."""

    object: Literal["unit"] = "unit"
    model: str
    tokens: list[str] = Field(description="The first is the boundary token.")
    layer: int
    unit: int
    num_units: int
    cell: str = Field(description="The kind of cell: lstm, gru, rnn or another.")
    steps: dict[str, list[float]] = Field(
        description="By letter of the cell's equations, the value after each token. Of a simple "
        "recurrent cell also the two sums: `x` of the input and `s` of the state before."
    )


class AlikeRequest(Request):
    text: Text
    layer: int = Field(0, ge=0, description="The layer, from 0 at the bottom.")
    part: str = Field("h", description="A letter of the cell's equations.")
    first: int = Field(ge=1, description="The first token of the span; 0 is the boundary token.")
    last: int = Field(ge=1, description="The last token of the span.")
    threshold: Number = Field(0.3, ge=0, le=1, description="From here on a unit counts as on.")


class AlikeUnit(Answer):
    unit: int
    sign: int = Field(description="1 if it is on above the threshold, -1 if below its negative.")
    contrast: float = Field(description="Its mean in the span minus that outside, times `sign`.")
    values: list[float] = Field(description="After each token.")


class AlikePlace(Answer):
    first: int
    last: int
    share: float = Field(description="The share of the units that are on, on average.")


class Alike(Answer):
    """Units that are on all along a span, and the other places where they are on together."""

    object: Literal["alike"] = "alike"
    model: str
    tokens: list[str]
    units: list[AlikeUnit]
    places: list[AlikePlace]
