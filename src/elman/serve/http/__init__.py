"""The HTTP edge: an API that clients of the OpenAI API drive unmodified, and Elman's own routes.

schema.py       the wire format: every request and every answer
served.py       what is served: models by name, what each can do, limits
jobs.py         where the engine's threads and the event loop meet
prompts.py      from texts and ids on the wire to ids
speaking.py     from ids to text and details
completions.py  from a request to streams, and back
errors.py, heads.py, guard.py, metrics.py     error shapes; keys and limits; figures
completing.py, measuring.py, tasks.py, inside.py     the routes
app.py          all of it as one application, and the server that runs it
"""

from __future__ import annotations

from importlib.util import find_spec

from elman.base.errors import ElmanError

if any(find_spec(name) is None for name in ("fastapi", "httptools", "uvicorn")):
    raise ElmanError("serving needs fastapi, httptools and uvicorn", "pip install 'elman[serve]'")
