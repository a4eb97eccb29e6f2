"""Call a function of a Python file: run_answer.py FILE FUNCTION RESULTS, arguments on stdin.

Run as a script in a process of its own (`answers.calls`); it imports nothing of Elman.
"""

from __future__ import annotations

import json
import runpy
import sys
from typing import Any


def plain(value: Any) -> Any:
    """Turn arrays and tensors into lists."""
    return value.tolist() if hasattr(value, "tolist") else float(value)


def main(file: str, function: str, results: str) -> None:
    arguments = json.load(sys.stdin)
    try:
        names = runpy.run_path(file)
        if function not in names:
            raise NameError(f"there is no function {function}")
        found: dict[str, Any] = {"results": [names[function](*values) for values in arguments]}
        written = json.dumps(found, default=plain)
    except (Exception, SystemExit) as error:
        written = json.dumps({"error": f"{type(error).__name__}: {error}"[:200]})
    with open(results, "w", encoding="utf-8") as target:
        target.write(written)


if __name__ == "__main__":
    main(*sys.argv[1:])
