"""Defaults and limits of every field that descriptions have, and of what files can state."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from planner import Layout, Workload
from planner.describe.framework.framework import Framework
from planner.describe.machine import Machine
from planner.describe.model.model import Model
from planner.describe.training.training_run import Dataset, Loader, Training
from planner.emitters.limits import ExpressibleLayouts
from planner.sweeps.definition import SweepPart

_KINDS = (
    *(Model, Machine, Framework, Layout, Workload, Training),
    *(Dataset, Loader, SweepPart),
)
_KEPT = (
    *("default", "enum", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"),
    *("minLength", "maxLength", "minItems", "maxItems", "pattern"),
)


def fields() -> dict[str, Any]:
    """Return the kept words of every field's schema, by the path of the field."""
    found: dict[str, Any] = {"ExpressibleLayouts": asdict(ExpressibleLayouts())}
    for kind in _KINDS:
        for path, schema in _parts(kind.model_json_schema(), kind.__name__):
            kept = {name: _number(schema[name]) for name in _KEPT if name in schema}
            if kept:
                found[path] = kept
    return found


def _number(value: Any) -> Any:
    """Return a limit as a float: releases of pydantic differ."""
    return float(value) if type(value) is int else value


def _parts(schema: Any, path: str) -> Any:
    """Yield every part of a schema with its path; the kinds that it refers to stand in `$defs`."""
    if isinstance(schema, dict):
        yield path, schema
        for name, part in schema.items():
            # the oldest pydantic has no names of properties
            if name not in ("default", "examples", "propertyNames"):
                yield from _parts(part, f"{path}.{name}".replace(".properties.", "."))
    elif isinstance(schema, list):
        for number, part in enumerate(schema):
            yield from _parts(part, f"{path}[{number}]")
