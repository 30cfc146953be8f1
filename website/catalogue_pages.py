"""Reference of the catalogue: machines, models and frameworks from their TOML files."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from planner.describe.catalogue import load_framework, load_machine, load_model, names

_ROOT = Path(__file__).parents[1]
_FRAMEWORKS = _ROOT / "planner" / "describe" / "catalogues" / "frameworks"
_BUNDLES = _FRAMEWORKS.with_name("bundles")
_NUMBER = {"value", "kind", "source"}
_SIZES = ("num_layers", "hidden_size", "num_heads", "num_kv_heads", "ffn_size", "vocab_size")


def pages() -> Iterator[tuple[str, str]]:
    """Yield a page for every machine and framework, one of all models, and the lists."""
    yield "reference/machines/index.md", _machines()
    for name in names("machine"):
        yield f"reference/machines/{name}.md", _machine(name)
    yield "reference/models.md", _models()
    yield "reference/frameworks/index.md", _frameworks()
    for name in names("framework"):
        yield f"reference/frameworks/{name}.md", _description(_FRAMEWORKS / f"{name}.toml")
    for path in sorted(_BUNDLES.glob("*.toml")):
        yield f"reference/frameworks/bundle-{path.stem}.md", _description(path)


# --- lists ----------------------------------------------------------------------------------------


def _machines() -> str:
    rows = [
        (f"[{name}]({name}.md)", machine.title, *_kinds(_machine_file(name)))
        for name in names("machine")
        for machine in [load_machine(name)]
    ]
    return (
        "# Machines\n\nEvery machine of the catalogue, and how its numbers are known. "
        "Its page has each number with value, kind and source.\n\n"
        + _table(("machine", "what it is", "datasheet", "measured", "calibrated", "assumed"), rows)
        + "\nA number is `datasheet` (stated by the maker or the site), `measured`, `calibrated` "
        "(fitted) or `assumed`. `planner show NAME` prints the same.\n"
    )


def _models() -> str:
    rows = []
    for name in names("model"):
        model = load_model(name)
        text = tomllib.loads((_ROOT / "models" / f"{name}.toml").read_text(encoding="utf-8"))
        sizes = (_value(text.get(size, "")) for size in _SIZES)
        rows.append((name, f"{model.num_params:,}", *sizes, _plain(text.get("source", ""))))
    heads = ("model", "parameters", "layers", "hidden", "heads", "kv heads", "ffn", "vocabulary")
    return (
        "# Models\n\nEvery model of the catalogue, from `models/NAME.toml`. A cell is empty where "
        "the file does not state the size. `planner show NAME` prints all of it.\n\n"
        + _table((*heads, "source of the sizes"), rows)
    )


def _frameworks() -> str:
    rows = []
    for name in names("framework"):
        framework = load_framework(name)
        stages = ", ".join(str(stage) for stage in framework.zero_stages)
        axes = ", ".join(framework.axes)
        switches = ", ".join(f"`{switch}`" for switch in sorted(framework.switches))
        rows.append((f"[{name}]({name}.md)", framework.title, axes, stages, switches))
    bundles = ", ".join(f"[{p.stem}](bundle-{p.stem}.md)" for p in sorted(_BUNDLES.glob("*.toml")))
    return (
        "# Frameworks\n\nEvery framework of the catalogue. Its page has all traits of its file.\n\n"
        + _table(("framework", "what it is", "axes", "ZeRO stages", "switches"), rows)
        + f"\nBundles are traits of libraries that several frameworks share: {bundles}.\n"
    )


# --- one entry ------------------------------------------------------------------------------------


def _machine_file(name: str) -> dict[str, Any]:
    path = _ROOT / "hardware_profiles" / f"{name}.toml"
    return tomllib.loads(path.read_text(encoding="utf-8"))


def _machine(name: str) -> str:
    path = _ROOT / "hardware_profiles" / f"{name}.toml"
    return _description(path)


def _description(path: Path) -> str:
    text = tomllib.loads(path.read_text(encoding="utf-8"))
    parts = [f"# {path.stem}\n\n{_plain(text.get('title', ''))}\n\n"]
    parts.append(f"From `{path.relative_to(_ROOT)}`.\n\n")
    if "evidence" in text:
        parts.append(f"Measured runs behind it: {_plain(text['evidence'])}\n\n")
    entries = list(_entries(text))
    numbers = [row for row in entries if len(row) == 4]
    others = [row for row in entries if len(row) == 2]
    if numbers:
        parts.append("## Numbers\n\n" + _table(("quantity", "value", "kind", "source"), numbers))
    if others:
        parts.append("\n## Other fields\n\n" + _table(("field", "value"), others))
    for heading in ("notes",):
        if notes := text.get(heading):
            parts.append("\n## Notes\n\n" + "".join(f"- {_plain(note)}\n" for note in notes))
    if sources := text.get("sources"):
        rows = [(f"`{key}`", _plain(value)) for key, value in sources.items()]
        parts.append("\n## Sources\n\n" + _table(("name", "source"), rows))
    return "".join(parts)


def _entries(table: dict[str, Any], path: str = "") -> Iterator[tuple[str, ...]]:
    """Yield every number with kind and source, and every other field."""
    for key, value in table.items():
        name = f"{path}.{key}" if path else key
        if not path and key in ("title", "evidence", "notes", "sources"):
            continue
        yield from _entry(name, value)


def _entry(name: str, value: Any) -> Iterator[tuple[str, ...]]:
    if isinstance(value, dict) and set(value) >= _NUMBER:
        yield f"`{name}`", _value(value["value"]), value["kind"], _plain(str(value["source"]))
    elif isinstance(value, dict):
        yield from _entries(value, name)
    elif isinstance(value, list) and value and all(isinstance(part, dict) for part in value):
        for number, part in enumerate(value):
            yield from _entry(f"{name}[{number}]", part)
    else:
        yield f"`{name}`", _value(value)


def _kinds(text: dict[str, Any]) -> tuple[str, ...]:
    kinds = [row[2] for row in _entries(text) if len(row) == 4]
    return tuple(str(kinds.count(k)) for k in ("datasheet", "measured", "calibrated", "assumed"))


# --- cells ----------------------------------------------------------------------------------------


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, list):
        return ", ".join(_value(part) for part in value) or "none"
    return _plain(str(value))


def _plain(text: str) -> str:
    """Escape what Markdown or HTML would read as markup; long paths may break at a slash."""
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace("|", "&#124;")
    for mark in ("*", "_", "`", "$", "[", "]"):
        text = text.replace(mark, f"&#{ord(mark)};")
    return " ".join(text.replace("/", "/<wbr>").split())


def _table(heads: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    lines = [heads, ("---",) * len(heads), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)
