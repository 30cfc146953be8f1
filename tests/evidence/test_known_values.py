"""Known values of functions of `planner.evidence`."""

from __future__ import annotations

import numpy as np

from planner import Layout, estimate
from planner.describe.catalogue import load_machine
from planner.evidence.learning import learn_from_text
from planner.evidence.logs.scalars import chosen_columns, is_table
from planner.evidence.logs.step_lines import Pick
from planner.evidence.logs.steps import steady, step_of
from planner.evidence.nccl_tests import published_for
from planner.evidence.runs.cells import Cells
from planner.evidence.runs.labels import (
    canonical,
    month_of,
    normalised,
    precision_of,
    software_of,
    software_of_label,
    switches_of,
    year_of,
)
from planner.evidence.runs.run_machine import interfaces
from planner.evidence.scores import rank_correlation


def test_learn_from_text() -> None:
    slow = learn_from_text(
        "system,gpu,n_gpus,model,seq_len,framework,dp,tp,zero_stage,"
        "micro_batch,global_batch,step_time_s\n"
        "Polaris,A100,16,Llama-3-8B,8192,Megatron-LM,4,4,1,1,64,60\n",
        "runs.csv",
    )
    job = Layout(dp=4, tp=4, zero_stage=1)
    after = estimate("llama-3-8b", "polaris", job, experience=slow.experience)
    assert after.step_time_s > estimate("llama-3-8b", "polaris", job).step_time_s


def test_chosen_columns() -> None:
    assert chosen_columns(["time_s=dt", "loss = train loss"]) == {
        "time_s": "dt",
        "loss": "train loss",
    }


def test_is_table() -> None:
    assert (
        is_table("epoch,step,loss,step_time\n0,1,9.1,0.5\n"),
        is_table("step 1: loss 9.1\n"),
    ) == (True, False)


def test_pick_of() -> None:
    assert Pick.of({"after": "size ", "prefixed": True}).find("size 5,762K") == 5762000.0


def test_step_of() -> None:
    assert step_of({"step": 25, "passes": 100, "pass_time_s": 0.5, "loss": None})["time_s"] == 2.0


def test_steady() -> None:
    assert steady(np.array([9.0, 3.0, 1.0, 1.01, 1.0, 0.99, 1.0, 1.0])) == 2


def test_published_for() -> None:
    assert published_for("polaris", "all-reduce", 8, 4).times_s[-1] == 0.052079


def test_cells_assume() -> None:
    assert ((cells := Cells({})).assume(1, "pp missing: 1"), cells.notes[0].sentence) == (
        1,
        "pp missing: 1",
    )


def test_cells_number() -> None:
    assert Cells({"hidden": "4096"}).number("hidden") == 4096.0


def test_cells_flag() -> None:
    assert Cells({"oom": "crash_or_oom"}).flag("oom")


def test_normalised() -> None:
    assert normalised("Megatron-DeepSpeed (bigscience)") == "megatron deepspeed bigscience"


def test_year_of() -> None:
    assert (year_of("2022-02-28"), year_of("26.04.01"), year_of("")) == (2022, 2026, None)


def test_month_of() -> None:
    assert (month_of("2022-02-28"), month_of("26.04.01"), month_of("2023-2024"), month_of("")) == (
        "2022-02",
        "2026-04",
        "2023-12",
        "",
    )


def test_precision_of() -> None:
    assert (precision_of("bf16 (fp32 grad accumulation)"), precision_of("mxfp8")) == ("bf16", "fp8")


def test_canonical() -> None:
    assert canonical(Cells({"fsdp_sharding": "distributed_fused_adam"})).text("zero_stage") == "1"


def test_software_of_label() -> None:
    assert software_of_label("NeMo (Megatron-Core)", 2024).framework == "megatron-lm"


def test_switches_of() -> None:
    cells = Cells({"compile": "yes", "framework": "FSDP2 + AsyncTP"})
    assert switches_of(cells, software_of(cells)) == ("compile", "async-tp")


def test_interfaces() -> None:
    assert interfaces("NVLink; 4x Omni-Path 100 Gb/s per node", load_machine("selene")) == (
        4,
        12500000000.0,
    )
    assert interfaces("2 Tb/s RoCE per node", load_machine("selene")) == (8, 31250000000.0)


def test_rank_correlation() -> None:
    assert rank_correlation([1, 2, 3, 4], [1, 3, 2, 4]) == 0.8
