"""Data moves one way: a folder of `src/elman` imports only from folders on its left."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2] / "src" / "elman"

ORDER = [
    "base", "text", "tokens", "batches", "ngrams", "nn", "models", "objectives", "decode", "train",
    "evaluate", "terminal", "runs", "tasks", "recipes", "api", "hf", "harness", "testing",
    "lab", "serve", "bench", "cli", "studio",
]  # fmt: skip

# Folders that lie beneath the flow read less than everything on their left.
ONLY = {"base": set(), "text": {"base"}, "nn": {"base"}}


def part_of(module: str) -> str:
    """`elman.nn.cells` -> `nn`; the package's own front door counts as the api."""
    pieces = module.split(".")
    return pieces[1] if len(pieces) > 1 else "api"


def arrows() -> set[tuple[str, str, str]]:
    """(file, folder it lies in, folder it imports from), imports inside functions included."""
    found = set()
    for path in sorted(ROOT.rglob("*.py")):
        relative = path.relative_to(ROOT)
        if str(relative) in ("__init__.py", "__main__.py"):
            continue
        here = relative.parts[0].removesuffix(".py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            modules: list[str] = []
            if isinstance(node, ast.Import):
                modules = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                modules = [node.module]
                if node.module == "elman":
                    modules = [f"elman.{a.name}" for a in node.names if a.name != "__version__"]
            for module in modules:
                if module.split(".")[0] == "elman":
                    found.add((str(relative), here, part_of(module)))
    return found


def draw(edges: set[tuple[str, str]]) -> str:
    """The graph as text, one line a folder, in the order of the flow."""
    lines = []
    for name in ORDER:
        sources = [s for s in ORDER if (name, s) in edges]
        if sources:
            lines.append(f"{name:>10} <- {', '.join(sources)}")
    return "\n".join(lines)


def test_no_arrow_points_back() -> None:
    edges = arrows()
    graph = draw({(here, there) for _, here, there in edges if here != there})
    back = [
        f"{file} imports elman.{there}"
        for file, here, there in sorted(edges)
        if here != there
        and (ORDER.index(there) > ORDER.index(here) or there not in ONLY.get(here, {there}))
    ]
    assert not back, "arrows that point back:\n" + "\n".join(back) + "\n\nthe graph:\n" + graph


def test_rooms_do_not_import_one_another() -> None:
    rooms = {path.name for path in (ROOT / "tasks").iterdir() if path.is_dir()}
    found = []
    for room in sorted(rooms - {"__pycache__"}):
        for path in (ROOT / "tasks" / room).rglob("*.py"):
            text = path.read_text(encoding="utf-8")
            found += [
                f"{path.relative_to(ROOT)} imports {other}"
                for other in sorted(rooms - {room})
                if f"elman.tasks.{other}." in text or f"elman.tasks.{other} import" in text
            ]
    assert not found


def test_the_order_lists_every_folder() -> None:
    names = {path.name.removesuffix(".py") for path in ROOT.iterdir()}
    no_code = {"py.typed", "pretrained"}
    assert {name for name in names - no_code if not name.startswith("__")} == set(ORDER)


def test_the_graph_is_not_empty() -> None:
    assert ("models", "nn") in {(here, there) for _, here, there in arrows()}


def test_nothing_is_unpickled() -> None:
    """Reading a pickle executes it."""
    modules = r"^\s*(import|from) (pickle|marshal|shelve|dill|joblib)\b"
    unsafe = re.compile(rf"{modules}|torch\.load\(", re.MULTILINE)
    found = [path.name for path in ROOT.rglob("*.py") if unsafe.search(path.read_text("utf-8"))]
    assert not found
