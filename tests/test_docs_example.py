"""Worked example of estimate.md: each line follows from earlier lines and equals the program's."""

from __future__ import annotations

import json
import math
import re
import shlex
from dataclasses import replace
from typing import Any

import pytest

from planner.cli import main
from planner.cost.constants import step_constants
from planner.cost.estimate import Estimate, estimate_layouts
from planner.cost.memory.phases import PeakInputs
from planner.cost.network.collectives import all_reduce_s
from planner.cost.network.groups import Groups
from planner.cost.operators.operations import model_flop
from planner.cost.shards.layouts import Layouts
from planner.cost.shards.stages import Stages
from planner.cost.step.communication.data_parallel import data_traffic
from planner.cost.step.compute.block_time import block_time
from planner.cost.step.compute.gemm import attention_efficiency, gemm_s
from planner.describe.layout import Layout
from planner.describe.model.block import Block
from tests.descriptions import scenario
from tests.markdown import read

TEXT = read("estimate.md").split("\n## A worked example\n")[1].split("\n## ")[0]
ROWS = re.findall(r"^\| `(\w+)` \|.*?\| (?:`([^`]+)` \| )?([\d.,]+) ?(\S*) \|$", TEXT, re.MULTILINE)
"""Name, equation, figure and unit of every line."""

UNITS = {"": 1, "%": 1e-2, "ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1}
UNITS |= {"MiB": 2**20, "GiB": 2**30, "GB/s": 1e9, "GFLOP": 1e9, "TFLOP/s": 1e12}

QUESTION = scenario()
LAYOUT = Layout(dp=4, tp=4, zero_stage=1, grad_accumulation=16)
LAYOUTS = Layouts.of(LAYOUT)
STAGES = Stages.of(QUESTION, LAYOUTS, 0)
_, LAYER, _ = STAGES.blocks
DEVICE = QUESTION.machine.device

FLOP_PER_S = QUESTION.machine.peak("bf16") * DEVICE.gemm_efficiency.value
FLOP_PER_S *= DEVICE.sustained_fraction.value
BYTES_PER_S = DEVICE.memory_bytes_per_s.value * DEVICE.memory_efficiency.value


def gemm(m: float, n: float, k: float, output_bytes: float = 2) -> float:
    """Time of a matrix product on the device [s]."""
    rates = {"flop_per_s": FLOP_PER_S, "bytes_per_s": BYTES_PER_S}
    units = DEVICE.num_units.value
    return float(gemm_s(m, n, k, **rates, num_units=units, output_bytes=output_bytes))


FUNCTIONS = {"ceil": math.ceil, "hypot": math.hypot, "max": max, "min": min, "gemm": gemm}


def worked_out() -> dict[str, float]:
    """Compute the figure of every name of the section from the lines above it."""
    found: dict[str, float] = {}
    for name, equation, figure, unit in ROWS:
        plain = float(figure.replace(",", "")) * UNITS[unit]
        found[name] = eval(equation, {**FUNCTIONS}, found) if equation else plain
    return found


WORKED_OUT = worked_out()


def alone(**operators: object) -> Any:
    """Return the times of a subset of a layer's operators."""
    nothing = {"gemms": (), "attentions": (), "pointwise": ()}
    few: Any = {**nothing, **operators}
    return block_time(QUESTION, replace(LAYER, **few), LAYOUTS)


def elements(block: Block, *parts: str) -> int:
    """Count the parameters of given parts of a block."""
    return sum(weight.num_params for weight in block.weights if weight.part in parts)


def of_the_model() -> dict[str, float]:
    model, workload = QUESTION.model, QUESTION.workload
    return {
        "L": model.num_layers,
        "h": model.hidden_size,
        "f": model.ffn_size,
        "a": model.num_heads,
        "k": model.num_kv_heads,
        "d": model.head_dim,
        "V": model.vocab_size,
        "s": workload.sequence_length,
        "m": LAYOUT.grad_accumulation,
        "tp": LAYOUT.tp,
        "dp": LAYOUT.dp,
        "peak": QUESTION.machine.peak("bf16"),
        "attention": elements(LAYER, "attention"),
        "mlp": elements(LAYER, "feed_forward"),
        "layer": LAYER.num_params,
        "N": model.num_params,
        "layer_rank": STAGES.params.largest_layer,
        "ends_rank": STAGES.params.embedding + STAGES.params.head,
        "P": STAGES.params.trainable,
        "O": STAGES.updated,
        "flop": model_flop(STAGES.blocks, workload) / workload.tokens_per_step,
    }


def of_memory(estimate: Estimate) -> dict[str, float]:
    parts, sheet = estimate.memory_bytes, PeakInputs.of(STAGES)
    return {
        "weights": parts["weights"],
        "gradients": parts["gradients"],
        "states": parts["optimizer_states"],
        "kept": sheet.activations.layer.saved,
        "activations": parts["activations"],
        "logits": parts["logits_and_loss"],
        "working": sheet.activations.layer.working,
        "context": parts["runtime_context"],
        "reserve": parts["allocator_reserve"],
        "memory": parts["total"],
    }


def of_computation() -> dict[str, float]:
    tile = step_constants().gemm.tiles[0]
    of_layer, products = block_time(QUESTION, LAYER, LAYOUTS), alone(gemms=LAYER.gemms)
    passes = [(b.count, block_time(QUESTION, b, LAYOUTS)) for b in STAGES.blocks]
    kernels = alone(pointwise=LAYER.pointwise)
    each = zip(("qkv", "out", "up", "down"), LAYER.gemms, strict=True)
    return {
        "F": FLOP_PER_S,
        "A": QUESTION.machine.peak("bf16") * attention_efficiency(QUESTION.framework, DEVICE),
        "B": BYTES_PER_S,
        "wave": 2 * tile.rows * tile.columns * DEVICE.num_units.value / FLOP_PER_S,
        **{name: alone(gemms=(product,)).forward_s for name, product in each},
        "flash": alone(attentions=LAYER.attentions).forward_s,
        "kernels": kernels.forward_s,
        "layer_forward": of_layer.forward_s,
        "input_gradients": products.backward_s - products.weight_gradient_s,
        "weight_gradients": products.weight_gradient_s,
        "kernels_back": kernels.backward_s,
        "layer_backward": of_layer.backward_s,
        "forward": sum(count * work.forward_s for count, work in passes),
        "backward": sum(count * work.backward_s for count, work in passes),
    }


def of_traffic(estimate: Estimate) -> dict[str, float]:
    groups, workload = Groups.of(LAYOUTS, QUESTION.machine), QUESTION.workload
    traffic = data_traffic(STAGES, groups)
    stream = STAGES.tokens * QUESTION.model.hidden_size * workload.compute_bytes
    return {
        "stream": stream,
        "inside": groups.tensor.local_bytes_per_s,
        "between": groups.shard.network_bytes_per_s,
        "all_reduce": all_reduce_s(groups.tensor, stream),
        "tensor": estimate.step_time_parts_s["tensor_parallel"] / LAYOUT.grad_accumulation,
        "reduction": traffic.gradients_s,
        "gathering": traffic.parameters_s,
    }


def of_the_step(estimate: Estimate) -> dict[str, float]:
    parts = estimate.step_time_parts_s
    return {
        "all_forward": parts["forward"],
        "all_backward": parts["backward"],
        "all_tensor": parts["tensor_parallel"],
        "exposed": parts["gradient_reduction"],
        "optimizer": parts["optimizer"],
        "update": parts["parameter_update_gathering"],
        "step": estimate.step_time_s,
        "MFU": estimate.mfu,
    }


def program() -> dict[str, float]:
    """Return the program's value of every name."""
    estimate = estimate_layouts(QUESTION, LAYOUTS)[0]
    found = {**of_the_model(), **of_memory(estimate), **of_computation()}
    return {**found, **of_traffic(estimate), **of_the_step(estimate)}


PROGRAM = program()
OURS = {"last", "hidden"}
"""Names that the program computes only inside a formula."""


@pytest.mark.parametrize(("name", "figure", "unit"), [(row[0], *row[2:]) for row in ROWS])
def test_what_is_printed_is_what_follows(name: str, figure: str, unit: str) -> None:
    digits = len(figure.partition(".")[2])
    assert f"{WORKED_OUT[name] / UNITS[unit]:,.{digits}f}" == figure


@pytest.mark.parametrize("name", PROGRAM)
def test_what_follows_is_what_the_program_says(name: str) -> None:
    assert WORKED_OUT[name] == pytest.approx(float(PROGRAM[name]), rel=1e-9)


def test_no_line_is_left_out() -> None:
    assert [row[0] for row in ROWS] == re.findall(r"^\| `(\w+)`", TEXT, re.MULTILINE)
    assert set(WORKED_OUT) == set(PROGRAM) | OURS


def test_the_peak_is_where_it_says() -> None:
    assert estimate_layouts(QUESTION, LAYOUTS)[0].peak_moment == "loss"
    assert WORKED_OUT["working"] < WORKED_OUT["logits"]


def test_the_command_asks_for_it(capsys: pytest.CaptureFixture[str]) -> None:
    [said] = re.findall(r"^    planner (.+)$", TEXT, re.MULTILINE)
    with pytest.raises(SystemExit):
        main([*shlex.split(said), "--json"])
    answer = json.loads(capsys.readouterr().out)
    assert answer["layout"] == LAYOUT.model_dump(mode="json")
    assert answer["framework"] == QUESTION.framework.name
    assert answer["memory_bytes"]["total"] == PROGRAM["memory"]
    assert answer["step_time_s"] == PROGRAM["step"]
