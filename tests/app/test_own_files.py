"""Own files on a page: their job becomes the page's, and what they leave open stays the page's."""

from __future__ import annotations

import pytest

pytest.importorskip("streamlit")

from streamlit.testing.v1 import AppTest

from planner.app import link
from planner.app.address import QueryReader
from planner.app.controls.own import query_of_files
from planner.app.controls.page_job import PageJob, read
from planner.describe.catalogue import load_machine, load_model
from planner.describe.layout import Layout
from planner.describe.workload import Workload
from planner.errors import PlannerError

JOB = PageJob(
    load_model("llama-3-8b"),
    load_machine("polaris"),  # 4 devices a node
    nodes=2,
    workload=Workload(sequence_length=2048, global_batch=64, precision="fp16"),
)
DEEPSPEED = (
    '{"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 4, '
    '"bf16": {"enabled": true}, "zero_optimization": {"stage": 3}}'
)
LAUNCH = "distributed_type: FSDP\nnum_processes: 16"


def test_the_job_of_the_files() -> None:
    query, notes = query_of_files({"ds.json": DEEPSPEED}, JOB)
    wanted = Layout(dp=8, zero_stage=3, micro_batch=2, grad_accumulation=4)
    assert link.unpack_layout(query["layout"]) == (wanted, "deepspeed")
    # the file has the precision and the batch, the page the nodes and the sequence
    assert (query["precision"], query["batch"]) == ("bf16", "64")
    assert (query["nodes"], query["seq"]) == ("2", "2048")
    assert not any("overlap" in note for note in notes)


def test_what_a_page_is_asked_for_is_possible_there() -> None:
    reader = QueryReader(query_of_files({"ds.json": DEEPSPEED}, JOB)[0])
    assert read(reader).problem == ""
    assert not reader.messages


def test_processes_of_a_file_decide_the_nodes() -> None:
    query, notes = query_of_files({"a.yaml": LAUNCH}, JOB)
    assert query["nodes"] == "4"
    layout, framework = link.unpack_layout(query["layout"])
    assert (layout.dp, layout.global_batch, framework) == (16, 64, "accelerate")
    assert any("micro-batches of one sequence" in note for note in notes)


def test_settings_of_a_file_are_switches_of_the_page() -> None:
    text = DEEPSPEED.replace('"stage": 3', '"stage": 2, "reduce_bucket_size": 1e6')
    query, notes = query_of_files({"a": text}, JOB)
    framework = link.unpack_layout(query["layout"])[1]
    assert framework.startswith("deepspeed+reduce-bucket=1000000")
    assert not any("buckets and overlap" in note for note in notes)


def test_settings_that_a_page_cannot_carry_are_said() -> None:
    text = (
        '{"fsdp": "full_shard", "bf16": true, "gradient_accumulation_steps": 4, '
        '"per_device_train_batch_size": 2}'
    )
    assert any("buckets and overlap" in note for note in query_of_files({"a.json": text}, JOB)[1])


def test_files_of_no_job_are_refused() -> None:
    with pytest.raises(PlannerError, match="is not a supported configuration file"):
        query_of_files({"a": "words"}, JOB)
    with pytest.raises(PlannerError, match="no tp axis"):
        query_of_files({"a": DEEPSPEED[:-1] + ', "tensor_parallel": {"autotp_size": 4}}'}, JOB)


@pytest.mark.slow
def test_the_page_asks_for_files_and_shows_their_layout() -> None:
    app = AppTest.from_string(
        "from planner.app.main import open_page\nopen_page('layout')", default_timeout=60
    )
    for name, value in {**query_of_files({"a": DEEPSPEED}, JOB)[0], "model": "llama-3-8b"}.items():
        app.query_params[name] = value
    app.run()
    assert not app.exception
    assert any("configuration files" in part.label for part in app.expander)
    assert any("ZeRO-3" in str(item.value) for item in [*app.success, *app.error])
