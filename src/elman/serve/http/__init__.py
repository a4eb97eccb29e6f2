"""The HTTP layer: an API for unmodified clients of the OpenAI API, and Elman's own routes.

schema.py           the wire format: every request and every answer
served.py           what is served: models by name, their abilities, limits
open_requests.py    connects the engines' threads and the event loop
prompts.py          texts and ids on the wire to ids
choice_text.py      ids to text and log probabilities
completions.py      a completion request to streams, and back
errors.py, header_limits.py, guard.py, metrics.py   error bodies; keys and limits; Prometheus
completion_routes.py, scoring_routes.py, task_routes.py, inside_routes.py   the routes
app.py, server.py   the application, and the server that runs it
"""

from __future__ import annotations

from importlib.util import find_spec

from elman.base.errors import ElmanError

if any(find_spec(name) is None for name in ("fastapi", "httptools", "uvicorn")):
    raise ElmanError("serving needs fastapi, httptools and uvicorn", "pip install 'elman[serve]'")
