"""Architecture: imports point one way, the surface is what it says, numbers have sources."""

from __future__ import annotations

import ast
import importlib
import inspect
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import planner
from planner.describe.catalogue import folder

PACKAGE = Path(planner.__file__).parent

# describe, estimate, choose, show: a module imports only from layers above its own in this list
LAYERS = (
    ("errors", "block"),
    ("units", "description", "files"),
    ("scheduler",),
    ("model", "machine", "workload", "framework"),
    ("layout", "weights", "topology", "catalogue"),
    ("transformer", "collectives", "compute", "pipeline"),
    ("states", "activations", "question"),
    ("reduction",),
    ("memory", "host", "offload", "communication", "intervals"),
    ("step_time",),
    ("estimation", "traffic"),
    ("legality", "advice"),
    ("search",),
    ("strategies",),
    ("planning",),
    ("report", "emit"),
    ("cli_options", "cli_catalogue"),
    ("cli_emit",),
    ("cli",),
)
# a number of parameters is a question about blocks, and a catalogue reads what others describe
LAZY = {("model", "weights"), ("catalogue", "framework"), ("catalogue", "huggingface")}
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}
HEAVY = ("torch", "streamlit", "plotly", "pandas", "transformers", "networkx", "rich", "typer")


def files(name: str) -> list[Path]:
    """The file of a module, or all files of a package."""
    folder = PACKAGE / name
    return sorted(folder.glob("*.py")) if folder.is_dir() else [PACKAGE / f"{name}.py"]


def imports(path: Path) -> Iterator[tuple[str, bool]]:
    """Modules of the package that a file imports, and whether only inside a function."""

    def walk(node: ast.AST, inside: bool) -> Iterator[tuple[str, bool]]:
        for child in ast.iter_child_nodes(node):
            lazy = inside or isinstance(child, ast.FunctionDef)
            names = []
            if isinstance(child, ast.ImportFrom) and child.module:
                names = [child.module]
            elif isinstance(child, ast.Import):
                names = [alias.name for alias in child.names]
            for name in names:
                first, _, rest = name.partition(".")
                if first == "planner" and rest:
                    yield rest.split(".")[0], lazy
            yield from walk(child, lazy)

    return walk(ast.parse(path.read_text(encoding="utf-8")), False)


@pytest.mark.parametrize("name", sorted(set(LEVEL) - {"cli", "report"}))
def test_imports_point_one_way(name: str) -> None:
    for imported, lazy in [found for path in files(name) for found in imports(path)]:
        if lazy and (name, imported) in LAZY:
            continue
        if imported == name and (PACKAGE / name).is_dir():
            continue
        assert imported in LEVEL, f"{name} imports {imported}, which is outside the core"
        below = LEVEL[imported] < LEVEL[name]
        assert below, f"{name} imports {imported}, which is not left of it"


def modules() -> list[str]:
    """Dotted names of all modules of the core."""
    parts = [path.relative_to(PACKAGE).with_suffix("").parts for n in LEVEL for path in files(n)]
    return sorted(".".join(part for part in p if part != "__init__") for p in parts)


def source(name: str) -> str:
    path = PACKAGE.joinpath(*name.split("."))
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return path.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", modules())
def test_all_names_exist_and_are_documented(name: str) -> None:
    module = importlib.import_module(f"planner.{name}")
    assert module.__doc__
    for exported in module.__all__:
        value = getattr(module, exported)
        if inspect.isfunction(value) or inspect.isclass(value):
            assert value.__doc__, f"{name}.{exported}"


@pytest.mark.parametrize("name", modules())
def test_public_functions_have_docstrings(name: str) -> None:
    tree = ast.parse(source(name))
    exported = set(importlib.import_module(f"planner.{name}").__all__)
    for node in tree.body:
        if not isinstance(node, ast.FunctionDef | ast.ClassDef) or node.name not in exported:
            continue
        assert ast.get_docstring(node), f"{name}.{node.name}"
        for item in node.body if isinstance(node, ast.ClassDef) else []:
            if isinstance(item, ast.FunctionDef) and not item.name.startswith("_"):
                assert ast.get_docstring(item), f"{name}.{node.name}.{item.name}"


def test_exports_of_the_package() -> None:
    assert planner.__all__ == sorted(planner.__all__)
    assert all(hasattr(planner, name) for name in planner.__all__)
    tree = ast.parse((PACKAGE / "__init__.py").read_text(encoding="utf-8"))
    imported = {
        alias.asname or alias.name
        for node in tree.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert imported == set(planner.__all__)


@pytest.mark.parametrize("code", ["import planner", "import planner.cli"])
def test_the_core_is_light(code: str) -> None:
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-c", code],
        capture_output=True,
        text=True,
        check=True,
    )
    loaded = {line.rsplit("|", 1)[-1].strip() for line in done.stderr.splitlines()}
    assert "planner.describe.catalogue" in loaded
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
    [*sorted(folder("framework").glob("*.toml")), *sorted(folder("machine").glob("*.toml"))],
    ids=lambda path: path.stem,
)
def test_numbers_of_a_catalogue_have_kind_and_source(path: Path) -> None:
    data = tomllib.loads(path.read_text(encoding="utf-8"))
    found = list(numbers(data))
    assert found
    for name, number in found:
        assert number["kind"] in ("datasheet", "measured", "calibrated", "assumed"), name
        assert len(number["source"]) > 5, name
    if path.parent.name == "frameworks":
        assert len(data["source"]) > 10
        text = path.read_text(encoding="utf-8")
        assert text.startswith("#")
