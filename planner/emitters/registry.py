"""Registry: the recipes by name, one module of the folder `recipes` each."""

import functools
import importlib
import pkgutil
from collections.abc import Mapping
from types import ModuleType

from planner.emitters import recipes as folder
from planner.emitters.batch_job import BatchJob
from planner.emitters.limits import check_job
from planner.emitters.recipe import Recipe, switched_on
from planner.errors import EmitError, shorten

NO_FILES = "none"
"""The `configuration` of a framework that is described for comparison only."""


@functools.cache
def recipes() -> Mapping[str, ModuleType]:
    """Load all recipes by name: modules with a function `recipe` and `EXPRESSIBLE`."""
    return {
        module.name: importlib.import_module(f"{folder.__name__}.{module.name}")
        for module in pkgutil.iter_modules(folder.__path__)
    }


def recipe_of(job: BatchJob) -> Recipe:
    """Get the recipe of a job's framework; raises EmitError if there is none for the job."""
    framework, name = job.framework, job.framework.configuration
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
    check_job(job, recipes()[name].EXPRESSIBLE)
    return switched_on(recipes()[name].recipe(job), framework)
