"""Planned: a layout of the planner's own, `layout.json` or what `--json` printed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from planner.describe.configurations.configuration import Configuration
from planner.describe.configurations.document import Document
from planner.describe.layout import Layout
from planner.describe.workload import Workload
from planner.errors import CatalogueError

__all__ = ["KIND", "read", "recognises"]

KIND = "layout of the planner"
_DEGREES = ("dp", "tp", "pp", "cp", "ep", "zero_stage")


def recognises(document: Document) -> bool:
    """Whether a layout stands there, bare or with its question."""
    content = document.tables
    best = content.get("best")
    inner = best if isinstance(best, Mapping) else content
    return "layout" in inner or ("dp" in content and set(content) <= set(Layout.model_fields))


def read(document: Document) -> Configuration:
    """What it says, field by field."""
    data: Mapping[str, Any] = document.tables
    best = data.get("best")
    if isinstance(best, Mapping):
        data = {**best, "model": data.get("model"), "workload": data.get("workload")}
    layout = data.get("layout") if "layout" in data else data
    workload = data.get("workload") or {}
    if not isinstance(layout, Mapping) or not isinstance(workload, Mapping):
        raise CatalogueError(
            f'{document.name}: "layout" and "workload" must be objects, such as {{"dp": 4}}'
        )
    fields = {key: value for key, value in layout.items() if key != "world"}
    stated_layout = Layout.described(fields, where=document.name)
    return Configuration(
        (document.name,),
        (KIND,),
        framework=str(data.get("framework") or ""),
        layout={key: getattr(stated_layout, key) for key in fields},
        workload=dict(Workload.described(dict(workload), where=document.name)) if workload else {},
        model=str(data.get("model") or ""),
    )
