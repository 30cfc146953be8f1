"""Reading runs, scoring them, and the figures of a group."""

from __future__ import annotations

import csv
import json
import os
import re
from pathlib import Path

import pytest
from rich.console import Console

from planner.choose.search import rank_fastest, search
from planner.cost.estimate import estimate_layouts
from planner.cost.memory.footprint import stage_memory
from planner.cost.scenario import Scenario
from planner.cost.shards.layouts import Layouts
from planner.describe.catalogue import load_machine, names
from planner.errors import CatalogueError, PlannerError, UnknownNameError
from planner.evidence import backtest
from planner.evidence.backtest import Backtest, score
from planner.evidence.runs.cells import Cells
from planner.evidence.runs.labels import (
    described_framework,
    known_labels,
    normalised,
    precision_of,
    software_of_label,
    switches_of,
    year_of,
)
from planner.evidence.runs.run import RefusedRun, Run
from planner.evidence.runs.run_files import read_runs
from planner.evidence.runs.run_machine import machine_of
from planner.show.measured_runs import backtest_page, main
from tests import ROOT
from tests.evidence.tables import narayanan_rows, row, write


def read_one(tmp_path: Path, **cells: object) -> Run | RefusedRun:
    [run] = read_runs(write(tmp_path / "one.csv", [row(**cells)]))
    return run


def test_counts_are_whole_and_end_at_a_billion() -> None:
    cells = Cells({"dp": "1000000000", "tp": "1000000001", "pp": "2.5"})
    assert cells.count("dp") == 10**9
    for column in ("tp", "pp"):
        with pytest.raises(PlannerError, match=rf"{column} = .* must be a whole number up to"):
            cells.count(column)


@pytest.mark.parametrize(
    ("hidden", "tp", "heads"), [(4096, 8, 32), (1600, 1, 25), (2304, 2, 18), (2800, 1, 25)]
)
def test_heads_that_a_row_leaves_out_are_about_as_wide_as_usual(
    tmp_path: Path, hidden: int, tp: int, heads: int
) -> None:
    """128 wide, 64 in small models, or the nearest width that divides; 2,800 has one of 112."""
    run = read_one(tmp_path, n_heads="", hidden=hidden, tp=tp, params_b="", model="own")
    assert isinstance(run, Run)
    assert run.model.num_heads == heads
    assert f"n_heads missing: heads of width {hidden // heads}" in run.assumed


def accepted(tmp_path: Path, **cells: object) -> Run:
    run = read_one(tmp_path, **cells)
    assert isinstance(run, Run), run
    return run


def refused(tmp_path: Path, **cells: object) -> str:
    run = read_one(tmp_path, **cells)
    assert isinstance(run, RefusedRun), run
    assert run.row_id == "r"
    return run.reason


@pytest.mark.parametrize(
    ("cells", "words"),
    [
        ({"step_time_s": "1e300"}, "step_time_s = '1e300' must lie between"),
        ({"gpu_mem_gb": "1e-300"}, "must lie between"),
        ({"step_time_s": "1e12"}, "the step time is .* times its estimate; check the unit"),
        (
            {"step_time_s": "0.05"},
            "would need .* times the peak of .* devices of .*; check the unit",
        ),
        ({"step_time_s": "1e-8"}, "the step time is .*e-.* times its estimate; check the unit"),
    ],
)
def test_cells_beyond_reason_are_refused(
    tmp_path: Path, cells: dict[str, object], words: str
) -> None:
    """They gave infinite and NaN figures in the JSON, and a division by zero."""
    found = score(read_runs(write(tmp_path / "one.csv", [row(**cells)])))
    [reason] = [item.reason for item in found.refused]
    assert re.search(words, reason)
    json.dumps(found.to_json(), allow_nan=False)


def test_a_table_is_a_small_regular_file(tmp_path: Path) -> None:
    with pytest.raises(CatalogueError, match=r"/dev/zero is not a regular file"):
        read_runs("/dev/zero")
    large = tmp_path / "large.csv"
    with large.open("wb") as file:
        file.truncate(30_000_000)
    with pytest.raises(CatalogueError, match=r"30\.0 MB; files above 20 MB are refused: split it"):
        read_runs(large)


# --- published rows ---------------------------------------------------------------------------


def test_narayanan_rows_score_within_ten_percent(tmp_path: Path) -> None:
    result = score(read_runs(write(tmp_path / "n.csv", narayanan_rows())))
    assert not result.refused
    for item in result.scores:
        assert item.error is not None
        assert abs(item.error) < 0.10, (item.run.row_id, item.error)


def test_dp_and_grad_accumulation_follow(tmp_path: Path) -> None:
    run = accepted(tmp_path, dp="", grad_accum="", micro_batch=4)
    assert (run.layout.dp, run.layout.grad_accumulation) == (32, 4)


def test_a_micro_batch_follows_where_the_rest_divides_the_batch(tmp_path: Path) -> None:
    for batch, accumulation in ((512, 8), (448, 7)):
        run = accepted(tmp_path, dp=32, grad_accum=accumulation, micro_batch="", global_batch=batch)
        assert (run.workload.global_batch, run.layout.micro_batch) == (batch, 2)
    assert "differs from global_batch" in refused(tmp_path, dp=32, grad_accum=12, micro_batch="")


def test_step_time_from_tokens_per_second(tmp_path: Path) -> None:
    run = accepted(tmp_path, step_time_s="", tokens_per_s_per_gpu=2048)
    assert run.step_time_s == pytest.approx(512 * 2048 / (2048 * 128))


def test_contradicting_global_batch_takes_the_layouts(tmp_path: Path) -> None:
    cells = {"micro_batch": 2, "grad_accum": 2, "dp": 32}
    assert "differs from global_batch = 512; correct one of them" in refused(tmp_path, **cells)
    run = accepted(tmp_path, **cells, tokens_per_s_per_gpu=2048)
    assert run.workload.global_batch == 128
    assert run.step_time_s == pytest.approx(128 * 2048 / (2048 * 128))


# --- hostile tables ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("column", "value", "said"),
    [
        ("step_time_s", "-3", "must be positive"),
        ("step_time_s", "nan", "must be positive and finite"),
        ("step_time_s", "1e999", "must be positive and finite"),
        ("step_time_s", "3.2 ms", "is not a number"),
        ("hidden", "4096.5", "whole number"),
        ("hidden", "\u0664\u0660", "must be positive and finite"),
        ("n_gpus", "0", "must be positive"),
        ("n_gpus", "99999999999", "whole number"),
        ("dp", "31", "differs from n_gpus"),
        ("tp", "3", "does not divide n_gpus"),
        ("seq_len", "", "seq_len is empty"),
        ("micro_batch", "7", "does not divide global_batch"),
        ("zero_stage", "4", "must be 0, 1, 2 or 3"),
        ("zero_stage", "-1", "zero_stage"),
        ("recompute", "sometimes", "is not known"),
        ("n_heads", "33", "must divide hidden"),
        ("ep", "5", "ep = 5 must divide"),
        ("gpu", "TPU v5p", "not a device of the catalogue"),
        ("model", "ResNet-50", "not a known kind of transformer"),
        ("precision", "nvfp4", "4-bit"),
        ("precision", "fp8", "not supported"),
    ],
)
def test_a_bad_cell_refuses_its_row_and_names_the_column(
    tmp_path: Path, column: str, value: str, said: str
) -> None:
    assert said in refused(tmp_path, **{column: value})


def test_one_bad_row_does_not_cost_the_others(tmp_path: Path) -> None:
    rows = [row(row_id="a"), row(row_id="b", step_time_s="soon"), row(row_id="c")]
    result = score(read_runs(write(tmp_path / "three.csv", rows)))
    assert [type(item).__name__ for item in result.rows] == ["Score", "RefusedRun", "Score"]
    rows = result.to_json()["rows"]
    assert [item["row_id"] for item in rows] == ["a", "b", "c"]
    # only a run that fits although the estimate does not has to recompute more
    assert not any("recompute" in words for item in rows for words in item["assumed"])


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "cp1252"])
def test_encodings_and_line_ends(tmp_path: Path, encoding: str) -> None:
    path = write(tmp_path / "a.csv", [row(notes="caf\u00e9", site="Z\u00fcrich")])
    text = path.read_text(encoding="utf-8").replace("\n", "\r\n")
    path.write_bytes(text.encode(encoding))
    [run] = read_runs(path)
    assert isinstance(run, Run)
    assert run.layout.tp == 4


def test_a_thousand_columns_and_ragged_rows(tmp_path: Path) -> None:
    wide = row(**{f"extra_{i}": i for i in range(1000)})
    path = write(tmp_path / "wide.csv", [wide])
    path.write_text(path.read_text() + "only,two\n" + "," * 5000 + "x\n\n")
    runs = read_runs(path)
    assert isinstance(runs[0], Run)
    assert all(isinstance(run, RefusedRun) for run in runs[1:])


def test_a_huge_cell_costs_only_its_row(tmp_path: Path) -> None:
    path = write(tmp_path / "huge.csv", [row(notes="x" * 200_000), row(row_id="after")])
    runs = read_runs(path)
    assert isinstance(runs[-1], Run)
    assert runs[-1].row_id == "after"


def test_semicolons(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", [row()])
    path.write_text(path.read_text().replace(",", ";"))
    assert isinstance(read_runs(path)[0], Run)


@pytest.mark.parametrize(
    "content", [b"", b"\x89PNG\r\n\x1a\n" + bytes(range(256)), b"hello\nworld\n", b"{}", b"\n\n"]
)
def test_what_is_no_table_of_runs(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "not.csv"
    path.write_bytes(content)
    with pytest.raises(CatalogueError, match="not a table of runs"):
        read_runs(path)


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(CatalogueError, match="cannot read"):
        read_runs(tmp_path / "absent.csv")
    with pytest.raises(CatalogueError, match="is a directory"):
        read_runs(tmp_path)


def test_missing_columns_take_stated_defaults(tmp_path: Path) -> None:
    few = {
        "gpu": "H100",
        "n_gpus": 8,
        "model": "Llama-3.1-8B",
        "framework": "FSDP",
        "seq_len": 4096,
        "global_batch": 8,
        "step_time_s": 1.0,
    }
    [run] = read_runs(write(tmp_path / "few.csv", [few]))
    assert isinstance(run, Run)
    assert (run.layout.dp, run.layout.zero_stage, run.layout.micro_batch) == (8, 3, 1)
    assert run.model.name == "llama-3.1-8b"
    said = " ".join(run.assumed)
    for column in ("dp", "zero_stage", "micro_batch", "recompute", "precision", "flash_attention"):
        assert f"{column} missing" in said
    assert run.row_id == "line 2"


def test_a_rate_without_batch_is_that_of_a_usual_batch(tmp_path: Path) -> None:
    cells = {"global_batch": "", "step_time_s": "", "tokens_per_s_per_gpu": 100, "n_gpus": 128}
    run = accepted(tmp_path, **cells, tp=2, pp=2)
    assert run.workload.global_batch == 2**22 // 2048
    assert run.step_time_s == pytest.approx(2**22 / (100 * 128))
    samples = {**cells, "tokens_per_s_per_gpu": "", "samples_per_s": 100 * 128 / 2048}
    again = accepted(tmp_path, **samples, tp=2, pp=2)
    assert again.step_time_s == pytest.approx(run.step_time_s)
    # a time depends on the batch, a rate hardly
    assert "global_batch and grad_accum are empty" in refused(tmp_path, global_batch="", pp=2)


def test_ranks_follow_from_stated_degrees_only(tmp_path: Path) -> None:
    assert accepted(tmp_path, n_gpus="", dp=32, tp=4).layout.world == 128
    assert "n_gpus is empty" in refused(tmp_path, n_gpus="", dp="", tp="", pp="")


# --- what a row leaves open -------------------------------------------------------------------

OPEN = {"framework": "Megatron-Core", "model": "some GPT", "recompute": "none", "vocab": 51200}


def test_an_open_micro_batch_is_the_fastest_that_fits(tmp_path: Path) -> None:
    run = accepted(tmp_path, **OPEN)
    scenario = Scenario(run.model, run.machine, run.workload, run.framework)
    per_replica = run.workload.global_batch // run.layout.dp
    sizes = [size for size in (1, 2, 4, 8, 16) if per_replica % size == 0]
    layouts = [
        run.layout.replaced(micro_batch=size, grad_accumulation=per_replica // size)
        for size in sizes
    ]
    estimates = estimate_layouts(scenario, Layouts.stack(layouts))
    fitting = [index for index in range(len(sizes)) if estimates.fits[index]]
    best = min(fitting, key=lambda index: estimates.step_time_s[index])
    assert len(fitting) < len(sizes)
    assert run.layout.micro_batch == sizes[best] > 1
    assert any(f"micro_batch missing: {sizes[best]}, the fastest" in text for text in run.assumed)
    # a run that ran out of memory was not tuned
    assert accepted(tmp_path, **OPEN, oom="yes", step_time_s="").layout.micro_batch == 1


def test_open_recompute_fits_with_any(tmp_path: Path) -> None:
    cells = {**OPEN, "micro_batch": 4, "tp": 1, "n_gpus": 32, "zero_stage": 1}
    [stated] = score([accepted(tmp_path, **cells)]).scores
    [left_open] = score([accepted(tmp_path, **{**cells, "recompute": ""})]).scores
    assert left_open.run.layout == stated.run.layout
    assert not stated.estimate.fits
    assert (stated.fits, left_open.fits) == (False, True)
    rows = Backtest((stated, left_open)).to_json()["rows"]
    assert [row["estimated_fits"] for row in rows] == [False, True]
    assert "it fits with more recompute than is assumed" in rows[1]["assumed"]


def test_an_open_layout_is_the_fastest_that_fits_and_agrees(tmp_path: Path) -> None:
    free = {**OPEN, "tp": "", "pp": "", "dp": "", "zero_stage": ""}
    run = accepted(tmp_path, **free)
    found = search(Scenario(run.model, run.machine, run.workload, run.framework), 128)
    fastest = found.estimates[int(rank_fastest(found.estimates, 1)[0])]
    assert run.layout.world == 128
    assert run.layout.recompute == "none"
    assert any(text.startswith("dp, tp and pp missing") for text in run.assumed)
    [estimate] = score([run]).scores
    assert estimate.estimate.fits
    assert estimate.estimate.step_time_s >= fastest.step_time_s * (1 - 1e-9)
    assert accepted(tmp_path, **free, micro_batch=2).layout.micro_batch == 2
    huge = {**free, "n_gpus": 1, "n_layers": 400, "hidden": 12288, "n_heads": 96}
    assert "no such layout fits" in refused(tmp_path, **huge)


@pytest.mark.parametrize("heads", ["", 96])
@pytest.mark.parametrize("missing", ["hidden", "n_layers"])
def test_a_missing_width_or_depth_follows_from_the_parameters(
    tmp_path: Path, missing: str, heads: object
) -> None:
    # GPT-3 175B, arXiv:2005.14165, table 2.1
    shape = {"n_layers": 96, "hidden": 12288, "n_heads": heads, "params_b": 174.6, missing: ""}
    cells = {**OPEN, **shape, "model": "a GPT", "tp": 8, "pp": 8, "n_gpus": 512, "micro_batch": 1}
    run = accepted(tmp_path, **cells)
    assert (run.model.num_layers, run.model.hidden_size) == (96, 12288)
    assert any(f"{missing} missing" in text for text in run.assumed)
    assert f"{missing} is empty" in refused(tmp_path, **{**cells, "params_b": ""})


def test_a_size_alone_gives_a_shape_of_that_size(tmp_path: Path) -> None:
    cells = {
        **OPEN,
        "model": "GPT 20B",
        "params_b": "",
        "n_layers": "",
        "hidden": "",
        "n_heads": "",
    }
    run = accepted(tmp_path, **cells)
    assert run.model.num_params == pytest.approx(20e9, rel=0.03)
    assert run.model.num_heads % run.layout.tp == 0
    small = accepted(tmp_path, **{**cells, "model": "GPT 40M"}, tp=1)
    assert small.model.num_params == pytest.approx(40e6, rel=0.25)
    for label in ("Qwen9 30B-A3B", "T5 3B"):
        refused(tmp_path, **{**cells, "model": label})


def test_torchtitan_of_2024_splits_a_batch_into_as_many_micro_batches_as_stages(
    tmp_path: Path,
) -> None:
    cells = {**OPEN, "framework": "torchtitan", "tp": 4, "pp": 4, "n_gpus": 128}
    old = accepted(tmp_path, **cells, year=2024)
    assert old.layout.grad_accumulation == old.layout.pp
    assert accepted(tmp_path, **cells, year=2025).layout.micro_batch == 1


@pytest.mark.parametrize(
    ("cells", "name"),
    [
        ({"framework": "Levanter (JAX)", "tp": 1}, "fsdp2"),
        ({"framework": "our own loop", "tp": 4}, "megatron-lm"),
        ({"framework": "our own loop", "tp": 1, "zero_stage": 1}, "deepspeed"),
    ],
)
def test_unknown_software_is_stood_in_for_and_said(
    tmp_path: Path, cells: dict[str, object], name: str
) -> None:
    run = accepted(tmp_path, **{**OPEN, "system": "", "year": 2024, **cells})
    assert run.framework.name == name
    assert any(f"is not described; treated as {name}" in text for text in run.assumed)


# --- labels -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("label", "year", "name"),
    [
        ("Megatron-DeepSpeed (somebody's fork)", 2023, "megatron-deepspeed"),
        ("Megatron-LM", 2021, "megatron-lm-2021"),
        ("Megatron-LM", 2022, "megatron-lm-2022"),
        ("Megatron-LM v5", 2025, "megatron-lm"),
        ("NVIDIA NeMo 2.0", 2024, "megatron-lm"),
        ("Megatron-Core dev", None, "megatron-lm"),
        ("Megatron-Bridge", 2026, "megatron-lm"),
        ("torchtitan v0.2", 2025, "fsdp2"),
        ("PyTorch FSDP1", 2023, "fsdp2"),
        ("Composer", 2023, "llm-foundry"),
        ("DeepSpeed ZeRO-3", 2024, "deepspeed"),
        ("HF Trainer", 2024, "accelerate"),
        ("accelerate 1.0", 2025, "accelerate"),
        ("PyTorch DDP", 2022, "ddp"),
        ("Horovod 0.28", 2022, "horovod"),
        ("nanotron main", 2025, "nanotron"),
    ],
)
def test_framework_labels(label: str, year: int | None, name: str) -> None:
    software = software_of_label(label, year)
    assert software is not None
    assert software.framework == name


@pytest.mark.parametrize(
    ("label", "year", "overlaps"),
    [
        ("Megatron-LM", 2021, False),  # first commit that overlaps: 2021-08-30, after v2.6
        ("Megatron-LM", 2022, True),
        ("Megatron-LM", 2025, True),
        ("Megatron-DeepSpeed (bigscience)", 2022, False),
        ("nanotron main", 2025, True),
    ],
)
def test_backward_of_column_parallel_layers_overlaps_since_its_release(
    label: str, year: int, overlaps: bool
) -> None:
    software = software_of_label(label, year)
    assert software is not None
    framework = described_framework(software)
    assert framework.communication.overlap_tensor_backward is overlaps


def test_compiled_code_launches_little_more_than_its_kernels() -> None:
    software = software_of_label("accelerate", 2025)
    assert software is not None
    eager, compiled = (described_framework(software, on) for on in ((), ("compile",)))
    assert compiled.host.dispatch_ratio.value < 0.5 * eager.host.dispatch_ratio.value


@pytest.mark.parametrize(
    ("label", "year", "row", "name", "loss"),
    [
        (
            "torchtitan",
            2025,
            {"compile": "yes", "framework": "torchtitan, async TP"},
            "fsdp2+compile+async-tp",
            "fused-copy",
        ),
        (
            "torchtitan",
            2025,
            {"compile": "yes", "precision": "fp8 rowwise"},
            "fsdp2+compile+fp8-rowwise",
            "fused-copy",
        ),
        ("torchtitan", 2024, {"compile": "yes"}, "fsdp2+compile", "eager"),
        ("torchtitan", 2025, {"compile": "no", "framework": "vanilla TP"}, "fsdp2", "eager"),
        ("nanotron", 2025, {"compile": "yes"}, "nanotron+compile", "vocab-parallel-copy"),
        (
            "DeepSpeed + Liger",
            2026,
            {"framework": "DeepSpeed + Liger"},
            "deepspeed+liger",
            "fused-linear",
        ),
    ],
)
def test_runs_are_read_with_the_switches_that_they_had_on(
    label: str, year: int, row: dict[str, str], name: str, loss: str
) -> None:
    software = software_of_label(label, year)
    assert software is not None
    found = described_framework(software, switches_of(Cells(row), software))
    assert (found.name, found.kernels.loss) == (name, loss)


@pytest.mark.parametrize(
    ("system", "gpu", "memory", "per_node", "name"),
    [
        ("Polaris (ALCF)", "A100-SXM", 40, 4, "polaris"),
        ("Sunspot testbed", "PVC tile", 64, 12, "aurora"),
        ("LUMI-G, 200 nodes", "MI250X (1 GCD)", 64, 8, "lumi-g"),
        ("Jean Zay", "V100-SXM2", 32, 4, "jean-zay-v100"),
        ("Jean Zay", "A100-SXM", 80, 8, "jean-zay-a100"),
        ("Perlmutter", "A100", 80, 4, "perlmutter-80gb"),
        ("AWS p4d.24xlarge", "A100", 40, 8, "aws-p4d"),
        ("AWS p4de.24xlarge", "A100", 80, 8, "aws-p4de"),
        ("some cluster", "NVIDIA H100 80GB HBM3", 80, 8, "dgx-h100"),
        ("", "H200", None, None, "dgx-h200"),
        ("JUWELS Booster", "A100", 40, 4, "juwels-booster"),
        ("Leonardo", "A100 custom 64GB", 64, 4, "leonardo"),
        ("desk", "RTX 4090", 24, 2, "workstation-2x4090"),
        ("DGX-GB200", "GB200 NVL72", None, 4, "dgx-gb200"),
        ("", "GB300 NVL72", None, 4, "dgx-gb300"),
        ("DGX-B300", "B300", None, 8, "dgx-b300"),
        ("", "B200", 180, 8, "dgx-b200"),
        ("DGX-1 V100", "V100-SXM2", 32, 8, "dgx-1v"),
        ("DGX-2H", "V100-SXM3", 32, 16, "dgx-2"),
        ("Grand Teton (Meta)", "H100-SXM", 96, 8, "grand-teton"),
        ("128x H100 94 GB (Meta)", "H100-SXM", 94, 8, "grand-teton"),
        ("MI300X node", "MI300X", 192, 8, "mi300x-node"),
        ("", "MI355X", 288, 8, "mi355x-node"),
        ("", "T4", 16, 4, "t4-node"),
        ("", "A10G", 24, 4, "a10g-node"),
        ("", "L40S", 48, 8, "l40s-node"),
    ],
)
def test_machine_labels(
    system: str, gpu: str, memory: float | None, per_node: int | None, name: str
) -> None:
    assert machine_of(system, gpu, memory, per_node).machine.name == name


def test_memory_of_the_row_overrides_the_catalogue() -> None:
    found = machine_of("Jean Zay", "V100", 16, 4)
    machine = found.machine
    assert machine.device.memory_bytes.value == pytest.approx(16 * 0.99 * 2**30, rel=1e-3)
    assert "device.memory_bytes" in found.label
    assert ["16 GB" in note for note in found.notes] == [True]


def test_devices_without_a_profile() -> None:
    with pytest.raises(PlannerError, match="no hardware profile has a MI350X"):
        machine_of("", "MI350X", 288, 8)
    with pytest.raises(PlannerError, match="not a device of the catalogue"):
        machine_of("", "Gaudi 2", 96, 8)
    found = machine_of("", "H100", 80, 5)
    assert found.machine.node.num_devices == 4
    assert any("gpus_per_node = 5 has no profile: 4" in note for note in found.notes)
    found = machine_of("Polaris (ALCF)", "", None, None)
    assert found.machine.name == "polaris"
    assert found.notes == ("gpu missing: that of polaris",)
    # the same chip with fewer NVLinks
    place = machine_of("", "H800", 80, 8)
    assert "device_bytes_per_s=200e9" in place.label
    assert place.machine.node.fabric.device_bytes_per_s.value == 200e9


def test_labels_are_written_as_they_are_compared() -> None:
    known = known_labels()
    words = [word for row in (*known.devices, *known.precisions) for word in row.words]
    words += [word for row in known.software for word in row.words]
    words += [row.noted for row in known.software]
    wheres = [row.where for row in (*known.cells, *known.switches)]
    words += [word for where in wheres for column in where.values() for word in column]
    words += [label for name in names("machine") for label in load_machine(name).labels]
    assert [word for word in words if word != normalised(word)] == []


def test_what_labels_stand_for_is_in_the_catalogue() -> None:
    known = known_labels()
    described = set(names("framework"))
    assert {row.framework for row in known.software} | set(known.usual) <= described
    assert set(known.usual_machines) <= set(names("machine"))
    devices = {load_machine(name).device.name for name in names("machine")}
    assert all(any(row.like in device for device in devices) for row in known.slower_links)


def test_no_row_of_software_is_shadowed() -> None:
    # each is reached by a label of its own words in the last year of its meaning
    for known in known_labels().software:
        assert software_of_label(" ".join(known.words), known.until_year, known.noted) == known


def test_a_site_outranks_the_kind_of_its_nodes() -> None:
    assert machine_of("DGX A100 SuperPOD (Selene)", "A100", 80, 8).machine.name == "selene"


def test_precisions_and_years() -> None:
    assert precision_of("bf16/fp16 mixed") == "bf16"
    assert precision_of("fp16 amp") == "fp16"
    assert precision_of("") is None
    assert year_of("2023-2024") == 2023
    assert year_of("v25") is None


@pytest.mark.parametrize(
    ("year", "stated", "kind"),
    [(2021, "", "eager"), (2021, "yes", "flash"), (2025, "", "flash"), (2025, "no", "eager")],
)
def test_attention_kernel(tmp_path: Path, year: int, stated: str, kind: str) -> None:
    run = accepted(tmp_path, year=year, flash_attention=stated)
    assert run.workload.attention == kind


def test_architecture_from_the_activation(tmp_path: Path) -> None:
    plain = accepted(tmp_path).model
    assert (plain.norm, plain.position, plain.tied_embeddings) == ("layernorm", "learned", True)
    gated = accepted(tmp_path, activation="swiglu", ffn_hidden=11008, model="mine").model
    assert (gated.norm, gated.position, gated.gated_mlp) == ("rmsnorm", "rope", True)
    assert not gated.qkv_bias


def test_stated_parameters_decide_whether_embeddings_are_tied(tmp_path: Path) -> None:
    shape = {
        "model": "own",
        "n_layers": 16,
        "hidden": 2048,
        "n_heads": 32,
        "n_kv_heads": 32,
        "ffn_hidden": 8192,
        "activation": "swiglu",
        "vocab": 131072,
        "params_b": 1.342,
    }
    assert accepted(tmp_path, **shape).model.tied_embeddings
    assert not accepted(tmp_path, **{**shape, "params_b": 1.611}).model.tied_embeddings


def test_experts_come_from_the_catalogue(tmp_path: Path) -> None:
    known = accepted(
        tmp_path,
        model="Mixtral-8x7B",
        n_experts=8,
        n_layers=32,
        hidden=4096,
        n_heads=32,
        activation="swiglu",
    )
    assert known.model.experts is not None
    assert "no column states top_k" in refused(tmp_path, model="Unheard MoE", n_experts=16)


@pytest.mark.parametrize(
    ("label", "kind"),
    [
        ("nvidia-smi GB", "device"),
        ("max allocated over 64 ranks", "allocated"),
        ("peak reserved GiB", "reserved"),
        ("bananas", "allocated"),
    ],
)
def test_memory_kinds(tmp_path: Path, label: str, kind: str) -> None:
    run = accepted(tmp_path, peak_memory_gib=30, memory_kind=label)
    assert (run.memory_kind, run.memory_bytes) == (kind, 30 * 2**30)


def test_what_is_compared_depends_on_how_memory_was_measured(tmp_path: Path) -> None:
    rows = [
        row(row_id=kind, peak_memory_gib=30, memory_kind=kind)
        for kind in ("allocated", "reserved", "nvidia-smi")
    ]
    allocated, reserved, device = score(read_runs(write(tmp_path / "m.csv", rows))).scores
    parts = device.estimate.memory_bytes
    assert device.estimated_memory_bytes == parts["total"]
    assert device.estimated_memory_bytes - reserved.estimated_memory_bytes == pytest.approx(
        parts["runtime_context"]
    )
    assert reserved.estimated_memory_bytes - allocated.estimated_memory_bytes == pytest.approx(
        parts["allocator_reserve"]
    )


NANOTRON: dict[str, object] = {
    "framework": "nanotron",
    "gpu": "H100-SXM",
    "precision": "bf16",
    "flash_attention": "yes",
    "recompute": "none",
    "n_gpus": 16,
    "n_layers": 16,
    "hidden": 2048,
    "n_heads": 32,
    "vocab": 131072,
    "seq_len": 4096,
    "memory_kind": "peak reserved",
    "pp": 1,
    "micro_batch": 8,
    "global_batch": 256,
}


def test_nanotron_prints_the_first_stage(tmp_path: Path) -> None:
    """One micro-batch: the last stage with its logits is the fullest, rank 0 is in the first."""
    cells = {**NANOTRON, "n_gpus": 32, "tp": 1, "pp": 2, "micro_batch": 16, "peak_memory_gib": 41.3}
    [one] = score(read_runs(write(tmp_path / "f.csv", [row(**cells)]))).scores
    stages = stage_memory(
        Scenario(one.run.model, one.run.machine, one.run.workload, one.run.framework),
        one.run.layout,
    )
    first = sum(stages[0].values()) - stages[0]["runtime_context"]
    assert one.run.layout.grad_accumulation == 1
    assert one.estimated_memory_bytes == pytest.approx(first)
    assert one.estimate.worst_stage == 1


def test_a_linear_loss_never_holds_the_logits(tmp_path: Path) -> None:
    """stas00/ml-engineering, Llama 3.1 8B on 8 B200: from 192k to 256k tokens 28.9 GiB."""
    cells = {
        "framework": "HF transformers + DeepSpeed + Liger",
        "gpu": "B200",
        "precision": "bf16",
        "flash_attention": "yes",
        "n_gpus": 8,
        "dp": 8,
        "tp": 1,
        "n_layers": 32,
        "hidden": 4096,
        "n_heads": 32,
        "n_kv_heads": 8,
        "ffn_hidden": 14336,
        "activation": "swiglu",
        "vocab": 128256,
        "zero_stage": 3,
        "offload": "optimizer to CPU",
        "micro_batch": 1,
        "global_batch": 8,
        "memory_kind": "peak reserved GiB",
        "model": "Llama-3.1-8B",
        "system": "",
    }
    rows = [
        row(
            **{**cells, "row_id": gib, "seq_len": tokens, "peak_memory_gib": gib, "step_time_s": ""}
        )
        for tokens, gib in ((196608, 95.7), (262144, 124.6))
    ]
    less, more = score(read_runs(write(tmp_path / "l.csv", rows))).scores
    grown = more.estimated_memory_bytes - less.estimated_memory_bytes
    assert grown / 2**30 == pytest.approx(124.6 - 95.7, rel=0.05)


def test_nothing_measured_is_refused(tmp_path: Path) -> None:
    [item] = score(read_runs(write(tmp_path / "n.csv", [row(step_time_s="")]))).rows
    assert isinstance(item, RefusedRun)
    assert "nothing to compare" in item.reason


# --- output -----------------------------------------------------------------------------------

ROW_KEYS = {
    "row_id",
    "source",
    "status",
    "reason",
    "measured_step_time_s",
    "estimated_step_time_s",
    "interval_step_time_s",
    "measured_memory_bytes",
    "estimated_memory_bytes",
    "measured_fits",
    "estimated_fits",
    "assumed",
}


def test_json_form_and_exit_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "two.csv", [row(row_id="good"), row(row_id="bad", tp="x")])
    assert main(path, json_output=True) == 3
    out = json.loads(capsys.readouterr().out)
    assert set(out) == {"rows", "groups"}
    assert all(set(item) == ROW_KEYS for item in out["rows"])
    assert [item["status"] for item in out["rows"]] == ["scored", "refused"]
    assert "tp = 'x'" in out["rows"][1]["reason"]
    assert out["groups"][0]["name"] == "Narayanan 2021"
    assert main(write(path, [row()]), json_output=True) == 0


def test_tables_name_groups_and_reasons(tmp_path: Path) -> None:
    path = write(tmp_path / "two.csv", [*narayanan_rows(), row(row_id="bad", tp="x")])
    console = Console(record=True, width=200, file=open(os.devnull, "w"))  # noqa: SIM115
    assert main(path, group_by=("machine", "model"), console=console) == 3
    text = console.export_text()
    assert "selene, GPT 39.1B" in text
    assert "is not a number" in text
    console.file.close()


def test_unknown_groups_and_empty_tables(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", [row()])
    with pytest.raises(UnknownNameError, match="unknown group 'sauce'"):
        main(path, group_by=("sauce",))
    with pytest.raises(PlannerError, match="no rows"):
        backtest_page(Backtest(()), ("source",))


def test_rows_are_estimated_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    real = backtest.estimate_layouts
    monkeypatch.setattr(
        backtest, "estimate_layouts", lambda q, layouts: calls.append(1) or real(q, layouts)
    )
    rows = [row(row_id=str(mb), micro_batch=mb) for mb in (1, 2, 4, 8, 16)]
    assert len(score(read_runs(write(tmp_path / "g.csv", rows))).scores) == 5
    assert len(calls) == 1


def test_empty_cells_have_many_names() -> None:
    cells = Cells({"a": " n/a ", "b": "3"})
    assert (cells.text("a"), cells.text("absent"), cells.count("b")) == ("", "", 3)
    assert cells.filled(a=7).count("a") == 7
    # the row itself stays as it was read
    assert cells.count("a") is None


def test_defaults_are_noted_in_their_order() -> None:
    cells = Cells({})
    assert (cells.assume(1, "first"), cells.assume(3, "second", guess=True)) == (1, 3)
    assert [(note.sentence, note.guess) for note in cells.notes] == [
        ("first", False),
        ("second", True),
    ]
    assert cells.filled(a=1).notes == []


def test_what_the_table_assumed_is_said_first(tmp_path: Path) -> None:
    run = accepted(tmp_path, assumed="heads as in the paper; ", dp="")
    assert run.assumed[0] == "heads as in the paper"
    assert any(sentence.startswith("dp missing") for sentence in run.assumed[1:])
    assert not run.guessed


def _measured(name: str) -> Path:
    folder = os.environ.get("PLANNER_DATA")
    path = (Path(folder) if folder else ROOT.parent / "shared" / "data") / name
    if not path.is_file():
        pytest.skip(f"measured runs are not here: {path} is missing; set PLANNER_DATA")
    return path


@pytest.mark.slow
@pytest.mark.parametrize("name", ["runs.csv", "ultrascale.csv"])
def test_measured_tables_are_read_whole(name: str) -> None:
    path = _measured(name)
    with path.open(newline="", encoding="utf-8") as file:
        count = sum(1 for _ in csv.DictReader(file))
    runs = list(read_runs(path))
    assert len(runs) == count
    # every ninth: benchmarks/accuracy.py scores all of them
    result = score(runs[::9])
    assert len(result.rows) == len(runs[::9])
    assert len(result.scores) > count / 18
    json.dumps(result.to_json(), allow_nan=False)


def test_bf16_runs_of_deepspeed_send_what_they_sum_from_zero_2_on(tmp_path: Path) -> None:
    # deepspeed/runtime/engine.py, communication_data_type: bf16 where nothing is configured
    for stage, sent in ((1, 4), (2, 2), (3, 2)):
        run = accepted(
            tmp_path, framework="Megatron-DeepSpeed", precision="bf16", pp=1, zero_stage=stage
        )
        assert run.framework.states("bf16").reduce_bytes == sent


@pytest.mark.parametrize(
    ("interconnect", "count", "rate"),
    [
        ("4x 100 Gb/s RoCE", 4, 12.5e9),
        ("NVLink; 4x Omni-Path 100 Gb/s per node", 4, 12.5e9),
        ("NVLink; 100 Gb/s RDMA per GPU", 8, 12.5e9),
        ("IB 800 Gb/s per node", 8, 12.5e9),
        ("2 Tb/s RoCE per node", 8, 31.25e9),
        # other spellings
        ("4x100Gbps", 4, 12.5e9),
        ("4 x 100GbE", 4, 12.5e9),
        ("4\u00d7100 Gbit/s", 4, 12.5e9),
        ("HDR100 x8", 8, 12.5e9),
        ("8xNDR", 8, 50e9),
        ("8x A100, 4x HDR100 per node", 4, 12.5e9),
        ("NVLink 600 GB/s; 4 * 200 gbps", 4, 25e9),
        # what Selene has, in other words, and what says nothing of the network
        ("NVSwitch; 8x HDR IB 200 Gb/s per node", 8, 25e9),
        ("NVLink in node", 8, 25e9),
        ("", 8, 25e9),
    ],
)
def test_the_interconnect_of_a_row_is_that_of_its_run(
    tmp_path: Path, interconnect: str, count: int, rate: float
) -> None:
    """It was never read: four interfaces of 100 Gb/s became the profile's 1600 Gb/s."""
    run = accepted(tmp_path, system="Selene", interconnect=interconnect)
    assert run.machine.node.num_nics == count
    assert run.machine.node_bytes_per_s == count * rate
    said = any(sentence.startswith("interfaces are") for sentence in run.assumed)
    assert said == (count * rate != 200e9)


@pytest.mark.parametrize("interconnect", ["10GbE", "-4x 100 Gb/s", "0x 100 Gb/s", "999x 100 Gb/s"])
def test_a_rate_of_no_count_of_interfaces_is_said(tmp_path: Path, interconnect: str) -> None:
    run = accepted(tmp_path, system="Selene", interconnect=interconnect)
    assert run.machine.node_bytes_per_s == 200e9
    assert any("states no count and rate of interfaces" in sentence for sentence in run.assumed)
    assert any(interconnect in sentence for sentence in run.assumed)


def test_a_failed_run_does_not_tell_what_it_needs(tmp_path: Path) -> None:
    """32 GB of a 32-GB device are what a run had when it failed, not its peak."""
    cells = {"peak_memory_gib": 32, "memory_kind": "GB per GPU", "step_time_s": ""}
    assert accepted(tmp_path, **cells, oom="no").memory_bytes == 32 * 2**30
    failed = accepted(tmp_path, **cells, oom="yes")
    assert failed.memory_bytes is None
    assert failed.fits is False


@pytest.mark.parametrize(("zero_stage", "precision"), [("", "fp16"), (0, "fp16"), (1, "bf16")])
def test_an_unnamed_precision_is_one_that_goes_with_the_sharding(
    tmp_path: Path, zero_stage: int | str, precision: str
) -> None:
    """DeepSpeed sums bf16 gradients in fp32 only where it shards something."""
    cells = {"framework": "Megatron-DeepSpeed", "precision": "", "year": 2024}
    assert accepted(tmp_path, **cells, zero_stage=zero_stage).workload.precision == precision


@pytest.mark.parametrize(("dp", "measured"), [(1, 73), (2, 51)])
def test_memory_of_a_gpt_whose_states_few_ranks_share(
    tmp_path: Path, dp: int, measured: float
) -> None:
    """bigscience @9e64ede, train/tr11-176B-ml/chronicles-prequel.md, Best TFLOPs: GPT of 200B in
    fp16, ZeRO-1, as nvidia-smi shows it. DeepSpeed's step copies gradients flat and to fp32."""
    cells = {
        "system": "Jean Zay (A100 partition)",
        "gpu": "A100-SXM",
        "gpu_mem_gb": 80,
        "n_gpus": 80 * dp,
        "gpus_per_node": 8,
        "model": "GPT 200B",
        "n_layers": 80,
        "hidden": 14400,
        "n_heads": 96,
        "n_kv_heads": 96,
        "ffn_hidden": 57600,
        "activation": "gelu",
        "vocab": 250000,
        "seq_len": 2048,
        "precision": "fp16",
        "framework": "Megatron-DeepSpeed (bigscience)",
        "year": 2022,
        "dp": dp,
        "tp": 8,
        "pp": 10,
        "zero_stage": 1,
        "recompute": "full",
        "flash_attention": "no",
        "micro_batch": 1,
        "grad_accum": 2048 // dp,
        "global_batch": 2048,
        "peak_memory_gib": measured,
        "memory_kind": "nvidia-smi GB",
        "step_time_s": "",
    }
    (item,) = score([accepted(tmp_path, **cells)]).scores
    assert item.estimated_memory_bytes == pytest.approx(measured * 2**30, rel=0.06)


@pytest.mark.parametrize(
    ("sharding", "reshard"), [("ZeRO-3 + hpZ within node (12)", 12), ("ZeRO-3 MiCS", 0)]
)
def test_a_second_sharding_group_is_read(tmp_path: Path, sharding: str, reshard: int) -> None:
    """ALCF's rows of AuroraGPT-70B say over how many ranks."""
    cells = {
        "framework": "Megatron-DeepSpeed (ALCF)",
        "gpu": "Intel Max 1550 PVC (1 tile)",
        "system": "Aurora (ALCF)",
        "n_gpus": 96,
        "gpus_per_node": 12,
        "dp": 96,
        "tp": 1,
        "pp": 1,
        "zero_stage": 3,
        "fsdp_sharding": sharding,
        "micro_batch": 1,
        "grad_accum": 1,
        "global_batch": 96,
        "precision": "bf16",
    }
    assert accepted(tmp_path, **cells).layout.reshard == reshard


@pytest.mark.parametrize(
    ("layers", "framework", "year", "slots"),
    [
        (126, "Megatron-Core", 2025, 1),  # 126 + 2 over 8 * 8, as NVIDIA's recipes of 405B
        (128, "Megatron-Core", 2025, -1),
        (124, "Megatron-Core", 2025, -1),  # neither divides: an own layout that nothing tells
        (126, "Megatron-LM", 2021, -1),  # had no such option
    ],
)
def test_ends_count_as_layers_where_the_layers_alone_would_be_refused(
    tmp_path: Path, layers: int, framework: str, year: int, slots: int
) -> None:
    cells = {"n_layers": layers, "hidden": 1024, "n_heads": 16, "pp": 8, "vpp": 8, "tp": 1}
    shape = {"n_gpus": 64, "dp": 8, "micro_batch": 1, "grad_accum": 8, "global_batch": 64}
    run = read_one(tmp_path, **cells, **shape, framework=framework, year=year, params_b="")
    if isinstance(run, Run):
        assert run.layout.embedding_slots == run.layout.head_slots == slots
        said = any("both ends are taken as layers" in text for text in run.assumed)
        assert said == (slots == 1)
    else:
        assert slots == -1
        assert "does not divide the" in run.reason


def test_a_batch_follows_from_micro_batches_accumulation_and_replicas(tmp_path: Path) -> None:
    run = accepted(
        tmp_path, micro_batch=2, grad_accum=3, dp=4, tp=1, pp=1, n_gpus=4, global_batch=""
    )
    assert run.workload.global_batch == 2 * 3 * 4
    assert "global_batch missing: micro_batch * grad_accum * dp = 24" in run.assumed


@pytest.mark.parametrize(("header", "is_table"), [("model,colour", False), ("model,dp", True)])
def test_two_columns_make_a_table_of_runs(tmp_path: Path, header: str, is_table: bool) -> None:
    path = tmp_path / "runs.csv"
    path.write_text(f"{header}\ngpt2,4\n")
    if is_table:
        assert len(list(read_runs(path))) == 1
    else:
        with pytest.raises(CatalogueError, match="is not a table of runs"):
            list(read_runs(path))
