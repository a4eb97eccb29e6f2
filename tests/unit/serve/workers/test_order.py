from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from elman.serve.limits import Limits
from elman.serve.serving import Serving
from elman.serve.workers.fleet import Order


def test_an_order_comes_back() -> None:
    serving = Serving(
        models=["a=b", "c"],
        limits=Limits(max_streams=3),
        api_key="secret",
        allow_hosts=[],
        cors=["*"],
        runs=Path("runs"),
        ways={"adapt": True, "cache": {"weight": 0.2}},
    )
    order = Order(serving, {"NAME": "\udcff"})
    assert Order.from_json(order.to_json()) == order
    assert Order.from_json(Order(Serving(models=[]), {}).to_json()).serving.runs is None
    assert "secret" not in repr(order)


sizes = st.integers(1, 10_000)


@given(st.integers(1, 64), sizes, sizes, sizes, sizes, sizes)
def test_divided_limits_allow_what_one_process_does(
    number: int, streams: int, waiting: int, choices: int, all_memory: int, memory: int
) -> None:
    limits = Limits(
        max_streams=streams,
        max_waiting=waiting,
        max_choices=choices,
        max_memory=all_memory,
        max_request_memory=memory,
    )
    each = limits.divided(number)
    assert streams <= number * each.max_streams < streams + number
    assert each.max_waiting >= min(waiting, choices)
    assert each.max_memory >= min(all_memory, memory)
    assert each.max_waiting <= waiting
    assert each.max_memory <= all_memory


def test_threads_are_divided() -> None:
    assert Serving(models=[], threads=3).of_each(4).threads == 3
    assert Serving(models=[]).of_each(1000).threads == 1
