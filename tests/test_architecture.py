"""Architecture: one import direction, documented modules and exports, sources of numbers."""

from __future__ import annotations

import ast
import functools
import importlib
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import networkx
import pytest

import planner
from planner.describe.catalogue import folder

PACKAGE = Path(planner.__file__).parent

ORDER = (
    ("errors",),
    ("units", "tables"),
    ("describe",),
    ("cost",),
    ("training",),
    ("choose", "validate"),
    ("emitters", "evidence"),
    ("ask", "sweeps"),
    ("show", "job"),
    ("cli", "app", "figures"),
    ("__main__",),
)
"""Packages by layer, lowest first: each imports only from lower layers."""

FLOOR = {name: floor for floor, names in enumerate(ORDER) for name in names}
MOST_ENTRIES = 12
HEAVY = (
    "torch",
    "streamlit",
    "plotly",
    "pandas",
    "transformers",
    "networkx",
    "rich",
    "typer",
    "scipy",
    "joblib",
    "distributed",
    "pyarrow",
    "huggingface_hub",
)


def dotted(path: Path) -> str:
    """Return the dotted module name of a file; an `__init__` gives its package."""
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


FILES = {dotted(path): path for path in sorted(PACKAGE.rglob("*.py"))}
"""Every module of the package, listed from disk, so that new files are checked, too."""


def imported(path: Path) -> Iterator[str]:
    """Yield the modules that a file imports, at its top or inside functions."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield inner if inner in FILES else node.module
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


@functools.cache
def import_graph() -> networkx.DiGraph[str]:
    """Return the graph of imports between the package's modules."""
    graph = networkx.DiGraph()
    graph.add_nodes_from(FILES)
    for name, path in FILES.items():
        graph.add_edges_from((name, other) for other in imported(path) if other in FILES)
    return graph


def room(name: str) -> str:
    """Return the top-level entry that contains a module; empty for the package itself."""
    return name.split(".")[1] if "." in name else ""


def test_every_line_stands_in_a_room() -> None:
    assert {room(name) for name in FILES} - {""} == set(FLOOR)


@pytest.mark.parametrize("name", FLOOR)
def test_imports_point_one_way(name: str) -> None:
    for module, other in import_graph().edges:
        if room(module) != name or room(other) in ("", name):
            continue
        assert FLOOR[room(other)] < FLOOR[name], f"{module} imports {other}, which is not below it"


def test_nothing_imports_the_front_door() -> None:
    inside = {(a, b) for a, b in import_graph().edges if b == "planner" and a != "planner"}
    assert not inside, "the package hands on names, it does not give them to its own rooms"


def test_no_module_is_in_a_circle() -> None:
    assert networkx.is_directed_acyclic_graph(import_graph()), networkx.find_cycle(import_graph())


@pytest.mark.parametrize(
    "name", [name for name, path in FILES.items() if path.name == "__init__.py"]
)
def test_entries_of_a_folder_stand_on_floors(name: str) -> None:
    depth = name.count(".") + 1
    inside = networkx.DiGraph()
    for a, b in import_graph().edges:
        if f"{a}.".startswith(f"{name}.") and f"{b}.".startswith(f"{name}."):
            ends = [".".join(end.split(".")[: depth + 1]) for end in (a, b)]
            # imports through the folder's own `__init__` do not count
            if ends[0] != ends[1] and name not in ends:
                inside.add_edge(*ends)
    assert networkx.is_directed_acyclic_graph(inside), networkx.find_cycle(inside)


# entries of the package itself are listed in ORDER
_FOLDERS = [path.parent for path in FILES.values() if path.name == "__init__.py"]


@pytest.mark.parametrize("path", [path for path in _FOLDERS if path != PACKAGE], ids=str)
def test_a_folder_can_be_taken_in_at_a_glance(path: Path) -> None:
    # files that readers do not open are not counted
    unread = ("__init__.py", "__pycache__", "py.typed")
    entries = [p for p in path.iterdir() if p.name not in unread]
    assert len(entries) <= MOST_ENTRIES, sorted(p.name for p in entries)


def is_overload(node: ast.FunctionDef | ast.ClassDef) -> bool:
    """True for a typing overload: only its implementation needs a docstring."""
    return any(isinstance(d, ast.Name) and d.id == "overload" for d in node.decorator_list)


@pytest.mark.parametrize("name", FILES)
def test_every_module_says_what_it_is(name: str) -> None:
    assert ast.get_docstring(ast.parse(FILES[name].read_text(encoding="utf-8")))


@pytest.mark.parametrize("name", [name for name in FILES if FILES[name].name == "__init__.py"])
def test_exported_names_exist(name: str) -> None:
    module = importlib.import_module(name)
    assert [each for each in getattr(module, "__all__", ()) if not hasattr(module, each)] == []


@pytest.mark.parametrize("name", FILES)
def test_public_functions_have_docstrings(name: str) -> None:
    """Names without an underscore are public; modules have no `__all__`."""
    tree = ast.parse(FILES[name].read_text(encoding="utf-8"))
    for node in tree.body:
        if not isinstance(node, ast.FunctionDef | ast.ClassDef) or node.name.startswith("_"):
            continue
        if is_overload(node):
            continue
        assert ast.get_docstring(node), f"{name}.{node.name}"
        for item in node.body if isinstance(node, ast.ClassDef) else []:
            if not isinstance(item, ast.FunctionDef) or is_overload(item):
                continue
            if not item.name.startswith("_"):
                assert ast.get_docstring(item), f"{name}.{node.name}.{item.name}"


def test_exports_of_the_package() -> None:
    assert planner.__all__ == sorted(planner.__all__)
    assert all(hasattr(planner, name) for name in planner.__all__)
    assert {*planner.__all__, "figures"} <= set(dir(planner))


@pytest.mark.parametrize(
    "code", ["import planner", "import planner.cli", "import planner; planner.load_model('gpt2')"]
)
def test_the_core_is_light(code: str) -> None:
    listing = "import sys; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", f"{code}; {listing}"], capture_output=True, text=True, check=True
    )
    loaded = set(done.stdout.split())
    assert ("planner.describe.catalogue" in loaded) == ("load_model" in code)
    allowed = {"typer", "rich"} if code.endswith("cli") else set()
    for name in set(HEAVY) - allowed:
        assert not any(module == name or module.startswith(f"{name}.") for module in loaded), name


def numbers(table: dict[str, Any], where: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    for key, value in table.items():
        if isinstance(value, dict):
            if "kind" in value and ("value" in value or "fraction" in value):
                yield f"{where}{key}", value
            yield from numbers(value, f"{where}{key}.")
        elif isinstance(value, list):
            for item in value:
                if isinstance(item, dict):
                    yield from numbers(item, f"{where}{key}.")


@pytest.mark.parametrize(
    "path",
    [
        *sorted(folder("framework").glob("*.toml")),
        *sorted(folder("machine").glob("*.toml")),
        *sorted(PACKAGE.rglob("*constants.toml")),
    ],
    ids=lambda path: f"{path.parent.name}/{path.stem}",
)
def test_numbers_of_a_catalogue_have_kind_and_source(path: Path) -> None:
    data = tomllib.loads(path.read_text(encoding="utf-8"))
    found = list(numbers(data))
    assert found or "like" in data or "bundles" in data
    for name, number in found:
        assert number["kind"] in ("datasheet", "measured", "calibrated", "assumed"), name
        assert len(number["source"]) > 5, name
    if path.parent.name == "frameworks":
        assert len(data["source"]) > 10
        text = path.read_text(encoding="utf-8")
        assert text.startswith("#")
