"""Which hosts and origins are a server's own."""

from __future__ import annotations

import socket

import pytest

from elman.serve.http.errors import ApiError
from elman.serve.http.guard import Hosts


def status(hosts: Hosts, *values: str) -> int:
    try:
        hosts.check(values)
    except ApiError as error:
        return error.status
    return 200


OWN = ("localhost", "LocalHost:1", "a.b.localhost", "localhost.", "127.0.0.1:80", "127.9.9.9")


@pytest.mark.parametrize("value", [*OWN, "[::1]", "[::1]:8000", "localhost:"])
@pytest.mark.parametrize("bound", ["127.0.0.1", "::1", "localhost", "0.0.0.0", "10.1.2.3", "::"])
def test_loopback_names_are_always_allowed(bound: str, value: str) -> None:
    assert status(Hosts(bound), value) == 200


@pytest.mark.parametrize(
    "value", ["evil.example", "localhost.evil.example", "evillocalhost", "10.0.0.1", "0.0.0.0"]
)
def test_other_names_do_not_reach_a_loopback_server(value: str) -> None:
    assert status(Hosts(), value) == 421


ODD = ("", "a b", "user@localhost", "localhost:80:80", "localhost/", "[::1", "[1::2::3]", "::1")


@pytest.mark.parametrize(
    "value",
    [*ODD, "localhost:x", "localhost:999999", "b\u00fccher", "a,b", "[localhost]", "localhost\t"],
)
def test_malformed_hosts(value: str) -> None:
    assert status(Hosts(), value) == status(Hosts("0.0.0.0", ["*"]), value) == 400


def test_none_and_two() -> None:
    assert status(Hosts()) == 400
    assert status(Hosts(), "localhost", "localhost") == 400


def test_a_server_of_the_network_is_asked_by_address_or_by_a_name_of_its_own() -> None:
    for bound in ("0.0.0.0", "10.1.2.3", "::"):
        hosts = Hosts(bound, ["Mine.Example", "*.lab.example"])
        for value in ("10.1.2.3:8000", "[fe80::1]", socket.gethostname(), "mine.example:1"):
            assert status(hosts, value) == 200
        assert status(hosts, "a.lab.example") == 200
        assert status(hosts, "lab.example") == 421
        assert status(hosts, "evil.example") == 421
    assert status(Hosts("named.example"), "named.example") == 200
    assert status(Hosts(allowed=["*"]), "any.example") == 200


def test_allowed_addresses_and_all_names() -> None:
    for bound in ("127.0.0.1", "0.0.0.0"):
        everything = Hosts(bound, ["*"])
        for value in ("192.168.1.10", "192.168.1.10:80", "[fd00::1]:80", "any.example"):
            assert status(everything, value) == 200
    for given in ("fd00::a", "FD00:0:0::A", "[fd00:0::000a]"):
        for value in ("[fd00::a]", "[FD00::000A]:8000"):
            assert status(Hosts(allowed=[given]), value) == 200
        assert status(Hosts(allowed=[given]), "[fd00::b]") == 421
        assert origin(Hosts(allowed=[given]), origin="http://[fd00:0::a]:80") == 200
    assert status(Hosts(allowed=["192.168.1.10"]), "192.168.1.10:80") == 200
    assert status(Hosts(allowed=["192.168.1.10"]), "192.168.1.11") == 421


def test_old_clients_may_leave_the_host_out() -> None:
    assert Hosts().check([], version="1.0") == ""
    with pytest.raises(ApiError):
        Hosts().check(["evil.example"], version="1.0")


def origin(hosts: Hosts, cors: tuple[str, ...] = (), **headers: str) -> int:
    given = {name.replace("_", "-").encode(): value.encode() for name, value in headers.items()}
    try:
        hosts.check_origin(given, "localhost:8000", cors)
    except ApiError as error:
        return error.status
    return 200


def test_pages_of_other_origins_need_cors() -> None:
    hosts = Hosts()
    assert origin(hosts) == 200
    assert origin(hosts, origin="http://localhost:8000") == 200
    assert origin(hosts, sec_fetch_site="same-origin", origin="https://proxy.example") == 200
    assert origin(hosts, sec_fetch_site="none") == 200
    for foreign in ("http://evil.example", "null", "http://localhost:3000", "file://", "x"):
        assert origin(hosts, origin=foreign) == 403
        assert origin(hosts, sec_fetch_site="cross-site", origin=foreign) == 403
        assert origin(hosts, (foreign,), sec_fetch_site="cross-site", origin=foreign) == 200
        assert origin(hosts, ("*",), origin=foreign) == 200
    assert origin(hosts, sec_fetch_site="same-site", origin="http://localhost:8000") == 403
    assert origin(hosts, sec_fetch_site="cross-site") == 403
    behind_a_proxy = Hosts(allowed=["mine.example"])
    assert origin(behind_a_proxy, origin="https://mine.example") == 200
    assert origin(Hosts(allowed=["*"]), origin="https://mine.example") == 403
