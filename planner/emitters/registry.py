"""Registry: the recipes by name, one module of the folder `recipes` each."""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from planner.describe.framework.framework import Framework
from planner.emitters import recipes as folder
from planner.emitters.batch_job import BatchJob
from planner.emitters.limits import ExpressibleLayouts, check_job
from planner.emitters.recipe import Recipe, switched_on
from planner.errors import EmitError, shorten


@dataclass(frozen=True, slots=True)
class Writer:
    """The `recipe` and `EXPRESSIBLE` of a recipe module."""

    recipe: Callable[[BatchJob], Recipe]
    expressible: ExpressibleLayouts

    def __call__(self, job: BatchJob) -> Recipe:
        check_job(job, self.expressible)
        return switched_on(self.recipe(job), job.framework)


NO_FILES = "none"
"""The `configuration` of a framework that is described for comparison only."""


@functools.cache
def recipes() -> Mapping[str, Writer]:
    """Load all recipes by name."""
    modules = {
        module.name: importlib.import_module(f"{folder.__name__}.{module.name}")
        for module in pkgutil.iter_modules(folder.__path__)
    }
    return {name: Writer(module.recipe, module.EXPRESSIBLE) for name, module in modules.items()}


def writer_of(framework: Framework) -> Writer:
    """Get the writer of a framework's files; raises EmitError if it names no recipe."""
    name = framework.configuration
    if name == NO_FILES:
        raise EmitError(
            f"no files are written for {shorten(framework.name)}, which is described for "
            "comparison with published runs; use a current framework, such as deepspeed or "
            "megatron-lm"
        )
    if name not in recipes():
        raise EmitError(
            f"configuration = {shorten(name)!r} of {shorten(framework.name)} names no recipe; "
            f"use one of {', '.join(recipes())}, or {NO_FILES}"
        )
    return recipes()[name]
