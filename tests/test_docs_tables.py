"""Documented tables: hand-written tables agree with the program."""

from __future__ import annotations

import ast
import functools
import re
from typing import Any, get_args

import numpy as np
import pytest

import planner
from planner.cost.constants import StepConstants
from planner.cost.memory.phases import MOMENTS
from planner.describe.base import Kind
from planner.describe.catalogue import load_framework, load_machine, load_model, names
from planner.describe.framework.framework import Framework
from planner.describe.layout import OFFLOAD, RECOMPUTE, SCHEDULES
from planner.units import GIB
from tests import ROOT
from tests.evidence import test_published_runs as published
from tests.markdown import method, read, table

# --- states ----------------------------------------------------------------------------------

COLUMNS = {
    "weights": "weight_bytes",
    "sharded": "sharded_weight_bytes",
    "gradients": "gradient_bytes",
    "flat": "unsharded_gradient_bytes",
    "buckets": "bucket_bytes",
    "fp32 copy": "master_bytes",
    "cache": "cached_weight_bytes",
    "wire": "reduce_bytes",
}
STATES = {
    (row["framework"], row["precision"]): row for row in table("states.md", "States per framework")
}


@pytest.mark.parametrize("framework", names("framework"))
@pytest.mark.parametrize("precision", ["fp16", "bf16", "fp32"])
def test_bytes_per_parameter(framework: str, precision: str) -> None:
    # bf16 uses the fp16 row if there is no bf16 row
    row = STATES.get((framework, precision)) or STATES[framework, "fp16"]
    states = load_framework(framework).states(precision)
    assert {column: float(row[column]) for column in COLUMNS} == {
        column: getattr(states, field) for column, field in COLUMNS.items()
    }


def test_bytes_per_parameter_of_no_other_framework() -> None:
    assert {framework for framework, _ in STATES} == set(names("framework"))


@pytest.mark.parametrize(
    ("title", "optimizer"),
    [
        ("Adam, AdamW", "adamw"),
        ("SGD", "sgd"),
        ("Lion", "lion"),
        ("SGD with momentum", "sgd-momentum"),
    ],
)
def test_optimizer_states_per_parameter(title: str, optimizer: str) -> None:
    rows = {row["optimizer"]: row for row in table("states.md", "States per framework", 2)}
    [size] = re.findall(r"^\d+", rows[title]["bytes per parameter"])
    workload = planner.Workload(global_batch=1, precision="fp32", optimizer=optimizer)
    model = load_model("llama-3.2-1b")
    found = planner.estimate(model, "selene", planner.Layout(), workload=workload, framework="ddp")
    assert found.memory_bytes["optimizer_states"] == float(size) * model.num_params


@pytest.mark.parametrize("row", ["paper [GB]", "here [GB]"])
def test_figure_1_of_the_zero_paper(row: str) -> None:
    [cells] = [cells for cells in table("published.md", "ZeRO, figure 1") if cells[""] == row]
    for column, sharded in {"baseline": 0, "ZeRO-1": 12, "ZeRO-2": 14, "ZeRO-3": 16}.items():
        digits = len(cells[column].partition(".")[2])
        size = 7.5 * (16 - sharded + sharded / 64)
        assert round(size, digits) == float(cells[column])


# --- activations -----------------------------------------------------------------------------

_LARGE = load_machine("selene", ("device.memory_bytes=100TB",))
_SPLIT: dict[str, object] = {"tp": 8, "sequence_parallel": True}
KEPT: dict[str, dict[str, object]] = {
    "none": {},
    "tp 8": {"tp": 8},
    "tp 8, sp": _SPLIT,
    "selective": {"recompute": "selective"},
    "selective, tp 8, sp": {**_SPLIT, "recompute": "selective"},
}
_BATCH = 64
# large enough that activations dominate the peak


def kept(row: dict[str, str], degrees: dict[str, object], dense: int) -> float:
    """Bytes that one more layer keeps per token and unit of hidden size [B]."""
    name = row["model"].split(",")[0].lower().replace("gpt-3", "gpt3").replace(" ", "-")
    sequence = int(re.findall(r" s (\d+)", row["model"])[0])
    model, layout = load_model(name), planner.Layout.described({"micro_batch": _BATCH, **degrees})
    workload = planner.Workload(
        sequence_length=sequence,
        global_batch=_BATCH,
        attention="eager" if "eager" in row["model"] else "flash",
    )
    found = []
    for more in (0, 1):
        taller = model.replaced(num_layers=8 + more)
        if model.experts and model.experts.num_dense_layers:
            experts = model.experts.replaced(num_dense_layers=3 + dense * more)
            taller = taller.replaced(experts=experts.model_dump())
        answer = planner.estimate(
            taller, _LARGE, layout, workload=workload, framework=row["framework"]
        )
        found.append(answer.memory_bytes["activations"])
    return (found[1] - found[0]) / (_BATCH * sequence * model.hidden_size)


@pytest.mark.slow
@pytest.mark.parametrize(
    "row",
    table("activations.md", "Activations", 2),
    ids=lambda row: f"{row['model']} {row['framework']}",
)
def test_activations_of_a_layer(row: dict[str, str]) -> None:
    # "mixed" rows: dense layer / expert layer
    kinds = (1, 0) if "mixed" in row["model"] else (0,)
    for column, degrees in KEPT.items():
        if row[column] != "-":
            here = [f"{kept(row, degrees, dense):.4g}" for dense in kinds]
            assert row[column] == " / ".join(here), column


# --- names -----------------------------------------------------------------------------------


def _first(rows: list[dict[str, str]]) -> list[str]:
    """Return the code-formatted names in a table's first column."""
    return [name for row in rows for name in re.findall(r"`([\w-]+)`", next(iter(row.values())))]


def test_parts_are_those_of_an_estimate() -> None:
    found = planner.estimate("llama-3-8b", "polaris", planner.Layout(dp=4))
    here = {
        "Parts of memory per device": found.memory_bytes,
        "Parts of host memory per node": found.host_memory_bytes,
        "Parts of the step time": found.step_time_parts_s,
    }
    for heading, parts in here.items():
        assert _first(table("nomenclature.md", heading)) == [p for p in parts if p != "total"]


@pytest.mark.slow
def test_words_are_those_of_the_code() -> None:
    known = _known()
    rows = [*table("nomenclature.md", "Symbols"), *table("nomenclature.md", "The field's words")]
    for row in rows:
        assert set(re.findall(r"`(\w+)`", row["in the code"])) <= known, row


@functools.cache
def _known() -> set[str]:
    files = [*(ROOT / "planner").rglob("*.py"), *(ROOT / "benchmarks").glob("*.py")]
    trees = [ast.walk(ast.parse(path.read_text(encoding="utf-8"))) for path in files]
    return {name for tree in trees for node in tree for name in _names(node)}


def _names(node: ast.AST) -> list[str]:
    """Return the names that a node defines: functions, classes, fields, variables, arguments."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return [node.name]
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        return [node.id]
    return [node.arg] if isinstance(node, ast.arg) else []


def test_as_many_moments_are_said_as_there_are() -> None:
    names = ["seven", "eight", "nine", "ten", "eleven", "twelve", "thirteen"]
    said = re.findall(rf"\b({'|'.join(names)}) \[?moments", method(), re.IGNORECASE)
    assert len(said) >= 3
    assert {word.lower() for word in said} == {names[len(MOMENTS) - 7]}


def test_moments_are_those_of_the_method() -> None:
    rows = table("memory.md", "Memory per device")
    [said] = re.findall(r"Moments:\n(.*?)\.\n", read("nomenclature.md"), re.DOTALL)
    assert re.findall(r"`([^`]+)`", said) == [row["moment"] for row in rows]


@pytest.mark.parametrize(
    ("name", "values"),
    [("recompute", RECOMPUTE), ("schedule", SCHEDULES), ("offload", OFFLOAD)],
)
def test_choices_of_a_layout(name: str, values: tuple[str, ...]) -> None:
    rows = {row["name"]: row["meaning"] for row in table("nomenclature.md", "Axes and degrees")}
    assert tuple(re.findall(r"`([\w-]+)`", rows[f"`{name}`"])) == values


def test_kinds_of_numbers() -> None:
    assert _first(table("nomenclature.md", "Kinds of numbers")) == list(get_args(Kind))
    kinds = re.findall(r"^- `(\w+)`: ", read("CONTRIBUTING.md"), re.MULTILINE)
    assert kinds == list(get_args(Kind))


def test_policies_of_selective_recompute() -> None:
    policies = get_args(Framework.model_fields["selective_policy"].annotation)
    assert _first(table("host.md", "Recompute")) == list(policies)


def test_the_method_names_every_constant_of_the_step() -> None:
    said = method()
    for field in StepConstants.model_fields.values():
        section: Any = field.annotation
        assert [name for name in section.model_fields if name not in said] == []


# --- published numbers -----------------------------------------------------------------------


def test_wordplay() -> None:
    rows = {row[""]: row for row in table("published.md", "wordplay on one Polaris node")}
    workload = planner.Workload(sequence_length=1024, global_batch=256, precision="fp16")
    layout = planner.Layout(dp=4, micro_batch=64)
    found = planner.estimate(
        "wordplay-85m-char", "polaris", layout, workload=workload, framework="ddp"
    )
    per_device = found.tokens_per_s / 4
    assert rows["estimated"] == {
        "": "estimated",
        "step": f"{found.step_time_s:.4f} s",
        "MFU": f"{found.mfu:.1%}".replace("%", " %"),
        "tokens/s per GPU": f"{per_device:,.0f}",
    }
    assert rows["difference"]["step"] == f"{found.step_time_s / 0.2850 - 1:+.1%}".replace("%", " %")


def auroragpt(nodes: int, recompute: str, micro_batch: int) -> planner.Estimate:
    layout = planner.Layout.described(
        {"dp": 4 * nodes, "zero_stage": 1, "micro_batch": micro_batch, "recompute": recompute}
        | {"grad_accumulation": 2}
    )
    workload = planner.Workload(
        sequence_length=4096, global_batch=layout.global_batch, precision="fp16"
    )
    return planner.estimate(
        "auroragpt-7b", "polaris", layout, workload=workload, framework="megatron-deepspeed"
    )


@pytest.mark.parametrize(
    "row",
    table("published.md", "AuroraGPT-7B on Polaris"),
    ids=lambda row: f"{row['nodes']} {row['recompute']}",
)
def test_auroragpt(row: dict[str, str]) -> None:
    column = "largest micro-batch here"
    largest = 0 if row[column] == "none" else int(row[column])
    asked = int(row["nodes"]), row["recompute"]
    above = auroragpt(*asked, largest + 1)
    assert not above.fits
    assert f"{above.memory_bytes['total'] / GIB:.1f}" == row["next one's total [GiB]"]
    states = ("weights", "gradients", "optimizer_states")
    held = sum(above.memory_bytes[part] for part in states) / GIB
    assert f"{held:.1f}" == row["weights, gradients, states [GiB]"]
    if largest:
        found = auroragpt(*asked, largest)
        assert found.fits
        assert f"{found.memory_bytes['total'] / GIB:.1f}" == row["its total [GiB]"]


ZERO_3 = published.NARAYANAN_TABLE_2_ZERO_3
ROWS = [
    published.NARAYANAN_TABLE_1,
    ZERO_3[:3],
    ZERO_3[3:],
    published.NARAYANAN_TABLE_2_PTD,
    published.KORTHIKANTI,
    [
        *published.NARAYANAN_TABLE_1,
        *ZERO_3[3:],
        *published.NARAYANAN_TABLE_2_PTD,
        *published.KORTHIKANTI,
    ],
    published.ALL,
]


@pytest.mark.slow
def test_published_step_times() -> None:
    said = table("published.md", "Narayanan et al. 2021 and Korthikanti et al. 2022")
    for row, runs in zip(said, ROWS, strict=True):
        errors = published.errors(runs)
        worst = errors[np.argmax(np.abs(errors))]
        assert (row["number"], row["MAPE"], row["worst"]) == (
            str(len(runs)),
            f"{np.mean(np.abs(errors)):.1%}".replace("%", " %"),
            f"{worst:+.1%}".replace("%", " %"),
        ), row["rows"]
