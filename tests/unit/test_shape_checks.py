"""The checks of shape annotations that all tests run under."""

from __future__ import annotations

from typing import Literal

import pytest
import torch
from torch import Tensor

from elman.nn.heads.head import Head
from elman.nn.shapes import Float

pytest.importorskip("beartype")
jaxtyping = pytest.importorskip("jaxtyping")


@jaxtyping.jaxtyped(typechecker=pytest.importorskip("beartype").beartype)
def cut(
    x_BT: Float[Tensor, "B T"], y_B: Float[Tensor, "B"], how: Literal["a", "b"] = "a", most: int = 9
) -> Float[Tensor, "B T"]:
    return x_BT[:, :most]


def test_a_call_is_checked_again_where_a_shape_or_a_type_differs() -> None:
    x_BT, y_B = torch.zeros(2, 3), torch.zeros(2)
    for _ in range(2):
        assert cut(x_BT, y_B).shape == (2, 3)
    for wrong in (
        lambda: cut(x_BT, torch.zeros(3)),
        lambda: cut(x_BT, y_B.long()),
        lambda: cut(x_BT, y_B=y_B[None]),
        lambda: cut(x_BT, y_B, "c"),  # type: ignore[arg-type]
        lambda: cut(x_BT, y_B, most=2),  # the arguments look as before, the result does not
    ):
        for _ in range(2):
            with pytest.raises(jaxtyping.TypeCheckError):
                wrong()


def test_the_packages_are_checked() -> None:
    assert "shape_checks" in Head.losses.__code__.co_filename
