"""Run in an environment without extras: every module imports, or says which extra is missing."""

from __future__ import annotations

import importlib
import pkgutil
import sys

import elman
from elman.base.errors import ElmanError

failures = []
missing: dict[str, str] = {}


def onerror(name: str) -> None:
    """A package that does not import is tried like any other module below."""


modules = [m.name for m in pkgutil.walk_packages(elman.__path__, "elman.", onerror)]
for name in modules:
    try:
        importlib.import_module(name)
    except ElmanError as error:
        if not error.hint.startswith("pip install 'elman["):
            failures.append(f"{name}: {error.message}")
        missing[name] = error.hint
    except Exception as error:
        failures.append(f"{name}: {type(error).__name__}: {error}")
print(
    f"{len(modules) - len(failures)} passed, {len(failures)} failed, {len(missing)} need an extra"
)
print("\n".join(failures), file=sys.stderr)
sys.exit(bool(failures))
