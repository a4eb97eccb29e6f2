"""Run in an environment without extras: every module imports, or says which extra is missing."""

from __future__ import annotations

import importlib
import pkgutil
import sys

import elman

failures = []
modules = [m.name for m in pkgutil.walk_packages(elman.__path__, "elman.")]
for name in modules:
    try:
        importlib.import_module(name)
    except Exception as error:
        failures.append(f"{name}: {type(error).__name__}: {error}")
print(f"{len(modules) - len(failures)} passed, {len(failures)} failed")
print("\n".join(failures), file=sys.stderr)
sys.exit(bool(failures))
