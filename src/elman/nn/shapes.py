"""Letters for tensor dimensions, and the annotations that the tests check.

    B batch   T time steps   S source steps   V vocabulary   E embedding   H hidden
    L layers  D directions   K beam           C characters   N labels or flattened tokens

A variable has its dimensions as a suffix (`logits_BTV`), a public signature has them as an
annotation (`Float[Tensor, "B T V"]`). The tests check the annotations with jaxtyping and beartype.
Without jaxtyping they do nothing and cost nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jaxtyping import Bool as Bool
    from jaxtyping import Float as Float
    from jaxtyping import Int as Int
else:
    try:
        from jaxtyping import Bool, Float, Int
    except ImportError:

        class _Unchecked:
            def __class_getitem__(cls, item: Any) -> Any:
                return item[0]

        Bool = Float = Int = _Unchecked
