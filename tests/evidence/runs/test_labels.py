"""Labels of tables: the cells that they mean, and frameworks as their launchers configure them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from planner.describe.catalogue import load_model, names
from planner.evidence.backtest import score
from planner.evidence.runs.cells import Cells
from planner.evidence.runs.labels import canonical
from planner.evidence.runs.run import RefusedRun
from planner.evidence.runs.run_files import read_runs
from planner.evidence.runs.run_model import _from_catalogue, _size_of
from tests.evidence.runs.test_runs import NANOTRON, accepted
from tests.evidence.tables import row, write


def read(tmp_path: Path, *rows: dict[str, object]) -> list[Any]:
    return read_runs(write(tmp_path / "p.csv", [row(**cells) for cells in rows]))


@pytest.mark.parametrize(
    ("cells", "column", "text"),
    [
        ({"model": "T5 3B", "framework": "NeMo Megatron"}, "model", "t5-3b-nemo"),
        ({"model": "T5 3B", "framework": "JAX"}, "model", "T5 3B"),
        ({"fsdp_sharding": "distributed_fused_adam"}, "zero_stage", "1"),
        ({"fsdp_sharding": "Optimizer over DP", "zero_stage": "0"}, "zero_stage", "1"),
        ({"fsdp_sharding": "FULL_SHARD", "zero_stage": "3"}, "zero_stage", "3"),
        ({"model": "mT5 3B", "framework": "NeMo Megatron"}, "model", "mt5-3b-nemo"),
        ({"framework": "DDP (NVIDIA DeepLearningExamples)", "notes": "DALI"}, "micro_batch", "256"),
        ({"memory_kind": "GB per GPU, rounded up"}, "memory_kind", "nvidia-smi"),
    ],
)
def test_cells_are_written_in_words_that_a_users_table_has(
    cells: dict[str, str], column: str, text: str
) -> None:
    assert canonical(Cells(cells)).text(column) == text


def test_what_a_label_fills_in_is_said(tmp_path: Path) -> None:
    cells = {"framework": "Megatron-DeepSpeed (ALCF)", "micro_batch": "", "precision": "bf16"}
    [run] = read(tmp_path, {**cells, "recompute": ""})
    assert "micro_batch missing: 1, as the row's labels mean" in run.assumed
    assert run.open_recompute


@pytest.mark.parametrize(
    ("label", "sentence"),
    [("MegaScale", "as megatron-lm"), ("Meta internal", "as fsdp2")],
)
def test_trainers_that_no_one_else_has_are_the_nearest(
    tmp_path: Path, label: str, sentence: str
) -> None:
    [run] = read(tmp_path, {"framework": label, "year": 2024, "recompute": ""})
    assert f"{label} is not described; treated {sentence}" in run.assumed
    assert run.layout.recompute == "selective"


@pytest.mark.parametrize(("notes", "is_read"), [("dominated by IO/noise", False), ("", True)])
def test_steps_that_wait_for_input_are_no_evidence(
    tmp_path: Path, notes: str, is_read: bool
) -> None:
    """ALCF's CosmoFlow: evaluation, without gradients, takes 0.017 s a step of 0.040 s."""
    [run] = read(tmp_path, {"notes": notes})
    assert isinstance(run, RefusedRun) is not is_read
    assert is_read or "without waiting for its input" in run.reason


@pytest.mark.parametrize(("year", "waits"), [(2021, False), (2022, True)])
def test_bigscience_s_launches_block_since_its_runs_hung(
    tmp_path: Path, year: int, waits: bool
) -> None:
    cells = {"framework": "Megatron-DeepSpeed (bigscience)", "year": year}
    framework = read(tmp_path, cells)[0].framework
    assert framework.host.awaits_kernels is waits
    assert not framework.communication.overlap_gradients


def test_memory_tells_which_of_two_builds_ran(tmp_path: Path) -> None:
    """Rows U00670 and U00744 of the ultrascale runs: tp 16, the same but for gathered inputs."""
    cells = [{**NANOTRON, "row_id": gib, "tp": 16, "peak_memory_gib": gib} for gib in (6, 14)]
    less, more = score(read(tmp_path, *cells)).scores
    assert not less.run.framework.kernels.saves_gathered
    assert more.run.framework.kernels.saves_gathered
    # two unsplit inputs of 2 bytes in place of their sixteenths, in every layer, and the head's
    inputs = 8 * 4096 * 2048 * 2 * 15 / 16
    more_kept = (
        more.estimate.memory_bytes["activations"] - less.estimate.memory_bytes["activations"]
    )
    assert more_kept == pytest.approx(16 * 2 * inputs)
    assert less.run.told_by_memory
    assert more.run.told_by_memory
    assert [run.framework.name for run in (less.run, more.run)] == ["nanotron"] * 2
    assert any("saves gathered not, nearer" in word for word in less.run.assumed)
    # tp 1 gathers nothing
    [alone] = read(tmp_path, {**NANOTRON, "tp": 1, "peak_memory_gib": 41.3})
    assert not alone.told_by_memory


@pytest.mark.parametrize("stage", [None, 3])
def test_runs_of_alcf_s_launcher_send_what_its_log_counts(
    tmp_path: Path, stage: int | None
) -> None:
    # ALCF/helpers.sh: ZeRO-1 and nothing recomputed by default, no communication_data_type in
    # bf16, reduce_scatter false in ZeRO-3
    cells = {"framework": "Megatron-DeepSpeed (ALCF)", "precision": "bf16", "pp": 1}
    [run] = read(tmp_path, {**cells, "zero_stage": stage or "", "recompute": ""})
    assert (run.layout.zero_stage, run.layout.recompute) == (stage or 1, "none")
    assert run.framework.states("bf16").reduce_bytes == 2
    assert 3 in run.framework.communication.all_reduced_stages


@pytest.mark.parametrize(("pp", "gradient_bytes"), [(1, 2), (2, 6)])
def test_scripts_of_alcf_sum_in_fp32_only_in_pipelines(
    tmp_path: Path, pp: int, gradient_bytes: float
) -> None:
    """ALCF/helpers.sh, generateDSconfig: grad_accum_dtype is fp32 where PP > 1, else not set."""
    cells = {"framework": "Megatron-DeepSpeed (ALCF)", "precision": "bf16", "zero_stage": 0}
    [run] = read(tmp_path, {**cells, "pp": pp, "year": 2025})
    states = run.framework.states("bf16")
    assert states.gradient_bytes + states.unsharded_gradient_bytes == gradient_bytes
    assert states.reduce_bytes == 2  # engine.py communication_data_type: sent in bf16 either way


@pytest.mark.parametrize(("mode", "reduced", "stops"), [("PURE", 2, False), ("DEFAULT", 4, True)])
def test_llm_foundry_s_two_tables(tmp_path: Path, mode: str, reduced: int, stops: bool) -> None:
    """Its tables of October 2023 ran torch 2.1 and reduced in fp32, those before neither."""
    cells = {"framework": "llm-foundry/Composer FSDP", "tp": 1, "pp": 1}
    notes = f"precision flag bf16, FSDP mixed_precision {mode} (PURE: bf16 reduce)"
    framework = read(tmp_path, {**cells, "notes": notes})[0].framework
    assert framework.mixed.reduce_bytes == reduced
    assert framework.kernels.stops_early == stops


def test_memory_of_aurora_gpt_2b_as_its_script_runs_it(tmp_path: Path) -> None:
    """argonne-lcf/Megatron-DeepSpeed@ffa3456d, ALCF/notes/cooldown.md: 39.0 GB at most and 3.71
    after a step, which are the 16-bit weights alone: ZeRO-1 without flat gradients in fp32."""
    cells: dict[str, object] = {
        "system": "Aurora (ALCF)",
        "gpu": "Intel Max 1550 PVC (1 tile)",
        "n_gpus": 3072,
        "gpus_per_node": 12,
        "model": "AuroraGPT-2B",
        "n_layers": 12,
        "hidden": 2048,
        "n_heads": 16,
        "n_kv_heads": 4,
        "ffn_hidden": 11008,
        "activation": "swiglu",
        "vocab": 256000,
        "seq_len": 8192,
        "precision": "bf16",
        "framework": "Megatron-DeepSpeed (ALCF)",
        "year": 2025,
        "dp": 3072,
        "tp": 1,
        "pp": 1,
        "global_batch": 6144,
        "peak_memory_gib": 39.0,
        "memory_kind": "MaxMemAllocated",
    }
    for name in ("zero_stage", "recompute", "micro_batch", "grad_accum", "flash_attention"):
        cells[name] = ""
    [run] = read(tmp_path, cells)
    layout = run.layout
    assert (layout.zero_stage, layout.micro_batch, layout.recompute) == (1, 1, "none")
    (item,) = score([run]).scores
    assert item.estimated_memory_bytes == pytest.approx(39.0 * 2**30, rel=0.03)
    resident = (
        item.estimate.memory_bytes["weights"] + item.estimate.memory_bytes["optimizer_states"]
    )
    assert resident == pytest.approx(3.71 * 2**30, rel=0.01)


def test_a_label_may_state_a_size_in_billions_of_parameters() -> None:
    assert (_size_of("gpt3-20b"), _size_of("bert-large")) == (20.0, None)
    assert (_size_of("gpt 500m"), _size_of("moe 1.5t")) == (0.5, 1500.0)


def test_a_size_alone_has_the_layers_of_the_nearest_dense_model(tmp_path: Path) -> None:
    run = accepted(tmp_path, model="ours 6.1B", hidden="", n_layers="", n_heads="", params_b="")
    dense = [load_model(name) for name in names("model")]
    near = [m for m in dense if m.num_layers and not m.experts and not m.vision]
    nearest = min(near, key=lambda m: max(m.num_params / 6.1e9, 6.1e9 / m.num_params))
    said = f"n_layers missing: as many as in {nearest.name}"
    assert any(said in sentence for sentence in run.assumed), run.assumed
    assert run.scenario.model.num_layers == nearest.num_layers
    assert run.scenario.model.num_params == pytest.approx(6.1e9, rel=0.05)


@pytest.mark.parametrize(
    ("label", "is_it"), [("deepseek-v3 671B", True), ("deepseek-v3 16B", False)]
)
def test_a_size_behind_a_name_is_that_of_the_model(label: str, is_it: bool) -> None:
    found = _from_catalogue(label)
    assert (found is not None and found.name == "deepseek-v3") == is_it
