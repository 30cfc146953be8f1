"""Registry: every framework names a recipe that exists, and a new recipe is found by itself."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import get_type_hints

import networkx
import pytest

import planner
from planner.describe.catalogue import load_framework, load_machine, load_model, names
from planner.describe.layout import Layout
from planner.emitters import emit
from planner.emitters import recipes as folder
from planner.emitters.batch_job import BatchJob
from planner.emitters.recipe import Recipe
from planner.emitters.registry import NO_FILES, recipes
from planner.errors import EmitError
from tests.emitters.emitted import Files, plan_of
from tests.test_architecture import import_graph

NAMED = {load_framework(name).configuration for name in names("framework")}


def test_frameworks_name_recipes_that_exist() -> None:
    assert NAMED - {NO_FILES} <= set(recipes())


def test_every_recipe_is_used() -> None:
    inside = {f"{folder.__name__}.{name}" for name in recipes()}
    shared = {b.rpartition(".")[2] for a, b in import_graph().edges if a in inside and b in inside}
    assert set(recipes()) - NAMED <= shared


@pytest.mark.parametrize("name", recipes())
def test_a_recipe_turns_a_job_into_files(name: str) -> None:
    assert get_type_hints(recipes()[name].recipe) == {"job": BatchJob, "return": Recipe}


def test_what_the_registry_loads_is_in_no_circle() -> None:
    """It loads recipes by their folder, which no import statement says."""
    loaded = [("planner.emitters.registry", f"{folder.__name__}.{name}") for name in recipes()]
    graph = networkx.DiGraph([*import_graph().edges, *loaded])
    assert networkx.is_directed_acyclic_graph(graph)


def files_with(configuration: str) -> Files:
    """Files of a plain job with a framework whose files another recipe writes."""
    model, machine = load_model("gpt2"), load_machine("polaris")
    framework = load_framework("ddp").replaced(name="mine", configuration=configuration)
    layout = Layout(dp=4)
    workload = planner.Workload(sequence_length=1024, global_batch=4)
    found = planner.estimate(model, machine, layout, workload=workload, framework="ddp")
    plan = plan_of("gpt2", "polaris", 1, workload)
    return emit(plan, found, framework=framework)


def test_a_recipe_that_does_not_exist_is_refused() -> None:
    with pytest.raises(EmitError, match=r"'\.\./x' of mine names no recipe; use one of acc") as no:
        files_with("../x")
    assert "\n" not in str(no.value)


NEW = """
from planner.emitters.limits import ExpressibleLayouts
from planner.emitters.recipe import File, Recipe

EXPRESSIBLE = ExpressibleLayouts()


def recipe(job):
    text = f"ranks={job.layout.world}\\n"
    return Recipe(files=(File("new.ini", "the new one's settings", text),))
"""


@pytest.fixture
def new_recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A recipe more in the folder."""
    (tmp_path / "brand_new.py").write_text(NEW)
    monkeypatch.setattr(folder, "__path__", [*folder.__path__, str(tmp_path)])
    recipes.cache_clear()
    yield "brand_new"
    recipes.cache_clear()
    del sys.modules[f"{folder.__name__}.brand_new"]


def test_a_new_recipe_is_one_file(new_recipe: str) -> None:
    files = files_with(new_recipe)
    assert files["new.ini"] == "ranks=4\n"
    assert "- `new.ini`: the new one's settings\n" in files["README.md"]
