"""Check every request before its route: where it comes from, the API key, and the body's size,
type, time and nesting.

A request is passed on only after its whole body has arrived. Errors have the API's format.

Two checks protect a server without a key from pages of other sites in a browser of this machine.
A site can point a name of its own at 127.0.0.1 (DNS rebinding), and its pages are then of the
server's origin; but their requests carry that name as `Host`, which is refused. With a key any
name will do, since such a page has no key. A page can also send simple requests to other origins;
those carry its `Origin`, and change nothing here.
"""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import re
import socket
import time
from collections.abc import Collection, Mapping, Sequence

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from elman.base.errors import ElmanError
from elman.serve.http.errors import ApiError, too_large
from elman.serve.http.metrics import Metrics
from elman.serve.limits import Limits
from elman.serve.memory import BODY_FACTOR, BRACKET_BYTES, Memory, Share

OPEN = re.compile(r"/|/health|/ready|/docs|/openapi\.json|/studio/.*")
"""Paths without a key: they reveal no more than the models' names and state."""

SHARE = "elman.share"
"""The key of a request's memory in its scope."""

_BRACKETS = re.compile(rb'"(?:[^"\\]|\\.)*"|[\[\]{}]', re.S)


_HOST = re.compile(r"(\[[\dA-Fa-f:.]+\]|[\w.-]+)(:\d{0,5})?", re.ASCII)
_ORIGIN = re.compile(r"https?://(.+)")


class Hosts:
    """Names and addresses under which a server that listens on `bound` may be asked.

    A name can be rebound and an IP address cannot: addresses are allowed if the server can have
    them, names if they are `localhost` or below it, this machine's (unless the server listens on a
    loopback address), or in `allowed`, in which `*.example.org` stands for all names below
    example.org, and `*` for all names and addresses.
    """

    def __init__(self, bound: str = "127.0.0.1", allowed: Collection[str] = ()) -> None:
        address = _address(bound)
        self.is_loopback = address.is_loopback if address else _is_below(bound, "localhost")
        own = () if self.is_loopback else (bound, socket.gethostname())
        self.trusted = {_plain(name) for name in allowed}
        self.names = self.trusted | {_plain(name) for name in own}

    def allow(self, host: str) -> bool:
        """Whether `host`, without a port, can only be meant for this server."""
        address, name = _address(host), _plain(host)
        if address is None:
            is_own = _is_below(name, "localhost")
        else:
            is_own = not self.is_loopback or address.is_loopback
        return is_own or _matches(name, self.names)

    def check(self, values: Sequence[str], *, version: str = "1.1", any_name: bool = False) -> str:
        """Return the one `Host` of a request, empty where HTTP/1.0 has none; raise an `ApiError` if
        it is another's, unless any name will do."""
        if not values and version == "1.0":  # from health checks; every browser sends one
            return ""
        if len(values) != 1:
            number = "no" if not values else "more than one"
            raise ApiError(400, f"the request has {number} Host header", code="invalid_host")
        host = _host_of(values[0])
        if host is None:
            raise ApiError(400, "the Host header is malformed", code="invalid_host")
        if not any_name and not self.allow(host):
            hint = f"start it with --allow-host {host[:100]} if the name is yours"
            message = f"this server is not '{host[:100]}'; {hint}"
            raise ApiError(421, message, code="unknown_host")
        return values[0]

    def check_origin(self, headers: Mapping[bytes, bytes], host: str, cors: Sequence[str]) -> None:
        """Raise an `ApiError` if a page of another origin sent a request that may have effects.

        Browsers tell where a request comes from in `Sec-Fetch-Site`, older ones in `Origin` alone;
        other clients send neither.
        """
        site = headers.get(b"sec-fetch-site")
        origin = headers.get(b"origin", b"").decode("latin-1")
        if site in (b"same-origin", b"none") or (site is None and not origin):
            return
        if "*" in cors or origin in cors:
            return
        found = _ORIGIN.fullmatch(origin)
        place = found[1].lower() if found else ""
        if site is None and place == host.lower():
            return
        name = _plain(_host_of(place) or "")
        if _matches(name, self.trusted - {"*"}):  # a proxy changed the Host
            return
        hint = "start the server with --cors ORIGIN to allow it"
        message = f"a page of another origin sent this: {origin[:100] or 'unknown'}; {hint}"
        raise ApiError(403, message, code="foreign_origin")


def _host_of(value: str) -> str | None:
    """The host of `host:port`, without the brackets of IPv6; None if it is malformed."""
    found = _HOST.fullmatch(value)
    if found is None:
        return None
    host = found[1].strip("[]")
    return None if found[1][0] == "[" and _address(host) is None else host


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return None


def _plain(name: str) -> str:
    """A name or an address in its usual spelling."""
    return str(_address(name) or name.lower().rstrip("."))


def _is_below(name: str, domain: str) -> bool:
    return name == domain or name.endswith(f".{domain}")


def _matches(name: str, patterns: Collection[str]) -> bool:
    return bool(name) and any(
        pattern in (name, "*") or (pattern[:2] == "*." and name.endswith(pattern[1:]))
        for pattern in patterns
    )


class Guard:
    """ASGI middleware that passes only valid requests on, and counts all of them."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        limits: Limits,
        api_key: str | None,
        metrics: Metrics,
        memory: Memory,
        hosts: Hosts,
        cors: Sequence[str] = (),
    ) -> None:
        self.app = app
        self.limits = limits
        self.metrics = metrics
        self.memory = memory
        self.hosts = hosts
        self.cors = cors
        self._expected = None if api_key is None else f"Bearer {api_key}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started = time.monotonic()
        status = 499  # nginx's code for clients that disconnect before the answer

        async def counted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        share = scope[SHARE] = self.memory.open()
        try:
            body = await self._read(scope, receive, share)
        except (ApiError, ElmanError) as found:
            error = found if isinstance(found, ApiError) else ApiError.of(found)
            response = error.response()
            if error.status in (408, 413, 503):  # the rest of the body is not read
                response.headers["Connection"] = "close"
            await response(scope, receive, counted)
        except Disconnected:
            pass
        else:
            await self.app(scope, _replay(body, receive), counted)
        finally:
            share.close()
        path = getattr(scope.get("route"), "path", "other")
        self.metrics.request(path, status, time.monotonic() - started)

    async def _read(self, scope: Scope, receive: Receive, share: Share) -> bytes:
        headers = {name.lower(): value for name, value in scope["headers"]}
        hosts = [value for name, value in scope["headers"] if name.lower() == b"host"]
        host = self.hosts.check(
            [value.decode("latin-1") for value in hosts],
            version=scope.get("http_version", "1.1"),
            any_name=self._expected is not None,
        )
        if scope["method"] not in ("GET", "HEAD", "OPTIONS"):
            self.hosts.check_origin(headers, host, self.cors)
        if self._expected is not None and not OPEN.fullmatch(scope["path"]):
            key = headers.get(b"authorization", b"")
            if not hmac.compare_digest(key, self._expected):
                raise ApiError(401, "the API key is missing or wrong", code="invalid_api_key")
        if scope["method"] not in ("POST", "PUT", "PATCH"):
            return b""
        length = headers.get(b"content-length", b"0")
        if not length.isdigit() or int(length) > self.limits.max_body_bytes:
            raise too_large(self.limits)
        kind = headers.get(b"content-type", b"").split(b";")[0].strip().lower()
        if kind != b"application/json":
            # This also blocks pages of other sites: browsers ask before they send JSON.
            raise ApiError(415, "the body must be sent as Content-Type: application/json")
        try:
            async with asyncio.timeout(self.limits.max_body_seconds):
                body = await self._body(receive, share)
        except TimeoutError:
            raise ApiError(408, "the body did not arrive in time", code="timeout") from None
        # Counting brackets is quick, and few cannot be deep; texts have many, but in strings.
        num_brackets = body.count(b"[") + body.count(b"{")
        share.take(BODY_FACTOR * len(body))
        if num_brackets > self.limits.max_depth:
            depth, num_brackets = await asyncio.to_thread(_depth, body)
            if depth > self.limits.max_depth:
                limit = f"(limit {self.limits.max_depth})"
                raise ApiError(400, f"the body is nested too deeply: {depth} levels {limit}")
            share.take(BRACKET_BYTES * num_brackets, "send fewer lists")
        return body

    async def _body(self, receive: Receive, share: Share) -> bytes:
        parts: list[bytes] = []
        size = 0
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise Disconnected
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            if size > self.limits.max_body_bytes:
                raise too_large(self.limits)
            share.take(2 * len(parts[-1]))
            if not message.get("more_body"):
                return b"".join(parts)


class Disconnected(Exception):
    """The client disconnected while sending."""


def _replay(body: bytes, receive: Receive) -> Receive:
    """Receive the body that was read already, then what follows on the connection."""
    done = False

    async def replayed() -> Message:
        nonlocal done
        if done:
            return await receive()
        done = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replayed


def _depth(body: bytes) -> tuple[int, int]:
    """The largest nesting depth of lists and objects, and their number."""
    depth = most = number = 0
    for match in _BRACKETS.finditer(body):
        if match[0] in b"[{":
            depth += 1
            number += 1
            most = max(most, depth)
        elif match[0] in b"]}":
            depth -= 1
    return most, number
