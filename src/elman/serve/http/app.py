"""The application: routes, error handlers and the studio's pages; and the server that runs it.

`create` makes the application from open models; `serve_models` opens models and serves them until a
signal comes.
"""

from __future__ import annotations

import gc
import logging
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import torch
from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.middleware.cors import CORSMiddleware
from fastapi.responses import FileResponse, PlainTextResponse
from fastapi.staticfiles import StaticFiles
from starlette.exceptions import HTTPException

import elman
from elman.base.errors import ElmanError
from elman.serve.http import (
    completion_routes,
    inside_routes,
    lab_routes,
    schema,
    scoring_routes,
    server,
    source_routes,
    tree_routes,
)
from elman.serve.http.context import ERRORS, Context, context_of
from elman.serve.http.errors import ApiError, wrong_body
from elman.serve.http.guard import Guard, Hosts
from elman.serve.http.open_requests import Waker
from elman.serve.http.served import Served, open_models
from elman.serve.http.task_routes import task_router
from elman.serve.limits import Limits
from elman.serve.serving import OnStart, Serving

log = logging.getLogger(__name__)

PAGES = Path(elman.__file__).parent / "studio"
"""The studio: static pages, a client of the public API."""

SWITCH_SECONDS = 0.0005
"""Switch interval of the interpreter. Engines release the GIL in every operation and need it back
soon; with Python's default of 5 ms a busy event loop makes each token ten times slower."""


def create(
    served: dict[str, Served],
    *,
    waker: Waker,
    limits: Limits | None = None,
    api_key: str | None = None,
    hosts: Hosts | None = None,
    cors: Sequence[str] = (),
    runs: Path | None = None,
    lab: bool = False,
) -> FastAPI:
    """Make the application for models whose engines notify `waker`."""
    limits = limits or Limits()
    context = Context(served, limits, waker, runs, lab=lab)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        waker.start()
        interval = sys.getswitchinterval()
        sys.setswitchinterval(SWITCH_SECONDS)
        yield
        sys.setswitchinterval(interval)
        context.close()

    app = FastAPI(
        title="Elman",
        version=elman.__version__,
        description="Recurrent, n-gram and mixed language models with the OpenAI API.",
        docs_url=None,
        redoc_url=None,
        lifespan=lifespan,
    )
    app.state.context = context
    for module in (
        *(completion_routes, scoring_routes, source_routes),
        *(tree_routes, inside_routes, lab_routes),
    ):
        app.include_router(module.routes)
    app.include_router(task_router(served.values()))
    app.include_router(routes)
    app.mount("/studio", StaticFiles(directory=PAGES), name="studio")
    ours = (ApiError, ElmanError, TimeoutError)
    for kind in (*ours, RequestValidationError, HTTPException, Exception):
        app.add_exception_handler(kind, _explain)
    app.add_middleware(
        Guard,
        limits=limits,
        api_key=api_key,
        metrics=context.metrics,
        memory=context.memory,
        hosts=hosts or Hosts(),
        cors=cors,
    )
    if cors:
        app.add_middleware(
            CORSMiddleware, allow_origins=list(cors), allow_methods=["*"], allow_headers=["*"]
        )
    return app


routes = APIRouter()


@routes.get("/", include_in_schema=False)
async def studio() -> FileResponse:
    return _page("index.html")


@routes.get("/docs", include_in_schema=False)
async def docs() -> FileResponse:
    return _page("docs.html")


@routes.get("/health", tags=["server"])
async def health(request: Request) -> schema.Health:
    """Report that the server runs, the names of its models, and whose files were changed."""
    served = context_of(request).served
    problems = [problem for one in served.values() for problem in one.problems()]
    return schema.Health(
        status="degraded" if problems else "ok", models=list(served), problems=problems
    )


@routes.get("/ready", responses={503: ERRORS[503]}, tags=["server"])
async def ready() -> schema.Ready:
    """Report that requests are answered: models are open, and the server is not shutting down."""
    return schema.Ready()


@routes.get("/metrics", response_class=PlainTextResponse, tags=["server"])
async def metrics(request: Request) -> str:
    """Metrics for Prometheus."""
    context = context_of(request)
    return context.metrics.text(context.served.values())


@routes.get("/v1/models", tags=["models"])
async def models(request: Request) -> schema.ServedModels:
    """List the models."""
    return schema.ServedModels(data=[_about(one) for one in context_of(request).served.values()])


@routes.get("/v1/models/{name:path}", responses={404: ERRORS[404]}, tags=["models"])
async def model(request: Request, name: str) -> schema.ServedModel:
    """Describe a model by its served name."""
    return _about(context_of(request).named(name))


def _page(name: str) -> FileResponse:
    """A page that may load only files of this server."""
    policy = "default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:"
    return FileResponse(PAGES / name, headers={"Content-Security-Policy": policy})


def _about(served: Served) -> schema.ServedModel:
    tokenizer = getattr(served.handle, "tokenizer", None)
    return schema.ServedModel(
        id=served.name,
        created=served.created,
        kind=served.kind,
        vocab_size=getattr(tokenizer, "vocab_size", None),
        tokenizer=getattr(tokenizer, "kind", None),
        abilities=served.abilities,
        labels=served.labels,
        card=served.card,
    )


async def _explain(request: Request, error: Exception) -> Response:
    """Answer an error in the API's format."""
    response = _api_error(request, error).response()
    if isinstance(error, HTTPException):
        response.headers.update(error.headers or {})
    return response


def _api_error(request: Request, error: Exception) -> ApiError:
    match error:
        case ApiError():
            return error
        case ElmanError():
            return ApiError.of(error)
        case TimeoutError():
            return ApiError(408, "the request took too long", code="timeout")
        case RequestValidationError():
            return wrong_body(error.errors())
        case HTTPException():
            return _wrong_route(request, error)
    log.error("a request failed", exc_info=error)
    return ApiError(500, "internal server error")


def _wrong_route(request: Request, error: HTTPException) -> ApiError:
    here = f"{request.method} {request.url.path[:100]}"
    if error.status_code == 405:
        message = f"there is no {here}; the path has other methods"
        return ApiError(405, message, code="method_not_supported")
    if error.status_code == 404:
        hint = "GET /docs lists every route"
        if request.url.path.startswith("/v1/chat/"):
            hint = "models here continue texts and do not chat: POST /v1/completions"
        return ApiError(404, f"there is no {here}; {hint}", code="unknown_url")
    return ApiError(error.status_code, str(error.detail))


class Server(server.Server):
    """Serves an application made by `create`. Streams that outlast the grace get an error event."""

    def __init__(self, app: FastAPI, **options: Any) -> None:
        self._context: Context = app.state.context
        super().__init__(app, self._context.limits, **options)
        self._context.memory.on_full = self.make_room

    def on_grace_end(self) -> None:
        self._context.close()


def notes_of(served: Mapping[str, Served]) -> list[str]:
    """Warnings about the models, usually none."""
    return [note for one in served.values() for note in one.notes]


def application(serving: Serving, served: dict[str, Served], waker: Waker) -> FastAPI:
    """Make the application for open models."""
    return create(
        served,
        waker=waker,
        limits=serving.limits,
        api_key=serving.api_key,
        hosts=Hosts(serving.host, serving.allow_hosts),
        cors=serving.cors,
        runs=serving.runs,
        lab=serving.lab,
    )


def serve_models(serving: Serving, on_start: OnStart) -> None:
    """Open models and serve them until a signal comes."""
    torch.set_num_threads(serving.num_threads)
    waker = Waker()
    served = open_models(serving, notify=waker)
    app = application(serving, served, waker)
    # Exclude the models from garbage collection, which would pause every stream for 0.1 s.
    gc.freeze()
    try:
        Server(
            app,
            host=serving.host,
            port=serving.port,
            on_start=lambda address: on_start(address, served, notes_of(served)),
        ).run()
    finally:
        for one in served.values():
            one.close()
