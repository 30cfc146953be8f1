"""Megatron-Bridge recipes: expert exchanges and CUDA graphs behind its performance page."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from pydantic import Field

from planner.describe.base import Description
from planner.describe.files import read_toml
from planner.describe.framework.framework import Framework
from planner.evidence.runs.labels import normalised
from planner.evidence.runs.run import RefusedRun, Run


class Recipes(Description):
    """Recipes of a range of releases, by device, model and precision."""

    source: str = Field(min_length=6)
    """Where the recipes are published."""
    since: float = Field(ge=0)
    """First release, for example 26.06."""
    until: float = Field(default=99.99, ge=0)
    """Last release."""
    devices: tuple[str, ...]
    """Names to match: one of them is a word of the column `gpu`."""
    models: tuple[str, ...]
    """Parts of model names to match: one of them is in the model's name."""
    precision: str = ""
    """Text that the column `precision` must contain."""

    def match(self, release: float, device: str, model: str, precision: str) -> bool:
        """True if a run used one of these recipes."""
        named = any(word in device.split() for word in self.devices)
        named = named and any(word in model for word in self.models)
        return named and self.since <= release <= self.until and self.precision in precision


class Exchange(Recipes):
    """Expert exchange of recipes: how tokens are sent to experts."""

    experts_once_per_node: bool = False
    """Same meaning as in a framework's description."""
    overlap_experts: bool = False
    """Same meaning as in a framework's description."""


class Graphs(Recipes):
    """CUDA graphs of recipes."""

    graphed: float = Field(ge=0, le=1)
    """Fraction of a layer's kernels that run in CUDA graphs."""


class ReleaseRecipes(Description):
    """Contents of `megatron_bridge.toml`."""

    exchanges: tuple[Exchange, ...]
    graphs: tuple[Graphs, ...]


@functools.cache
def release_recipes() -> ReleaseRecipes:
    """Read the recipes of all releases."""
    path = Path(__file__).with_name("megatron_bridge.toml")
    return ReleaseRecipes.described(read_toml(path), where=path.name)


def release_of(label: str) -> float | None:
    """Parse the NVIDIA container release from a label, for example 26.04 from 26.04.01."""
    number = re.match(r"\d\d\.\d\d\b", label.strip())
    return float(number[0]) if number else None


def with_recipes(run: Run | RefusedRun, row: Mapping[str, str]) -> Run | RefusedRun:
    """Set a Megatron-Bridge run's framework to the one that its release configures."""
    if isinstance(run, RefusedRun) or "megatron bridge" not in normalised(row["framework"]):
        return run
    return replace(run, framework=framework_of_recipe(run.framework, row, run.model.name))


def framework_of_recipe(framework: Framework, row: Mapping[str, str], model: str) -> Framework:
    """Return the framework with the expert exchange and CUDA graphs of a row's release."""
    release = release_of(row["year"])
    if release is None:
        return framework
    device, precision = normalised(row["gpu"]), normalised(row["precision"])
    recipes = release_recipes()
    for graphs in recipes.graphs:
        if graphs.match(release, device, model, precision):
            part = {"value": graphs.graphed, "kind": "assumed", "source": graphs.source}
            framework = framework.replaced(
                host=framework.host.replaced(graphed=part).model_dump(),
                name=f"{framework.name} ({100 * graphs.graphed:.0f} % in graphs)",
            )
            break
    for exchange in recipes.exchanges:
        if exchange.match(release, device, model, precision):
            changes = exchange.model_dump(include={"experts_once_per_node", "overlap_experts"})
            communication = framework.communication.replaced(**changes).model_dump()
            how = " and ".join(name.replace("_", " ") for name, done in changes.items() if done)
            return framework.replaced(name=f"{framework.name} ({how})", communication=communication)
    return framework
