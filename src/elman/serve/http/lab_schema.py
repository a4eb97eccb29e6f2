"""The wire format of the lab's routes."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from elman.serve.http.schema import Answer, Number, Request, Text


class LabRequest(Request):
    """How to run an experiment."""

    knob: Number | Text | None = Field(None, description="Another value of the knob.")
    seeds: int = Field(5, ge=1, le=100, strict=True)
    size: Literal["tiny", "small"] = "small"
    stream: Literal[True] = Field(True, description="The answer is always a stream.")


class LabQuestion(Answer):
    name: str
    unit: str
    prediction: float
    rule: str


class LabKnob(Answer):
    name: str
    meaning: str
    values: list[float | str]
    default: float | str
    broken: float | str


class LabCode(Answer):
    name: str
    file: str
    line: int
    text: str = Field(description="The lines that compute it.")


class Claim(Answer):
    id: str
    title: str
    claim: str
    sources: list[str]
    design: str
    breaks: str
    limits: str
    questions: list[LabQuestion]
    knob: LabKnob
    code: list[LabCode]
    reading: list[str]
    seconds: float
    verdict: str | None = Field(description="Of the last run on this machine.")


class Claims(Answer):
    """The claims of `elman lab`."""

    object: Literal["list"] = "list"
    data: list[Claim]
