"""Looking inside over HTTP."""

from __future__ import annotations

from fastapi import APIRouter

routes = APIRouter()
