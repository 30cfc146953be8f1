"""Own files on a page: their job becomes the page's, and what they leave open stays the page's."""

from __future__ import annotations

import pytest

pytest.importorskip("streamlit")

from planner.app import address, link
from planner.app.address import QueryReader
from planner.app.controls import drop, own
from planner.app.controls.page_job import PageJob, _match_model, read
from planner.describe.catalogue import load_machine, load_model
from planner.describe.configurations.configuration import joined
from planner.describe.configurations.reading import read_configuration_text
from planner.describe.layout import Layout
from planner.describe.workload import Workload
from planner.errors import PlannerError
from planner.evidence.recognition import recognise

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


def query_of_files(texts: dict[str, str], job: PageJob) -> tuple[address.Query, tuple[str, ...]]:
    """Return the query for the job of files, by their names and texts."""
    files = joined([read_configuration_text(text, name) for name, text in texts.items()])
    return own.query_of_files(files, job)


def test_the_job_of_the_files() -> None:
    query, notes = query_of_files({"ds.json": DEEPSPEED}, JOB)
    wanted = Layout(dp=8, zero_stage=3, micro_batch=2, grad_accumulation=4)
    assert link.unpack_layout(query["layout"]) == (wanted, "deepspeed")
    # the file has the precision, the page the nodes; what the page has already is not repeated
    assert (query["precision"], query["nodes"]) == ("bf16", "2")
    assert query.keys() == {"precision", "nodes", "layout"}
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


LOG = (
    "num_params=85003776\nTokens per iteration: 262,144\n[0/8] Using device='cuda'\n"
    + "".join(f"step={i} loss=1.5 dt=0.3 mfu=45.9\n" for i in range(1, 9))
).encode()


def test_a_log_fills_the_job_with_what_it_states() -> None:
    read = [recognise(LOG, "run.log")]
    workload = JOB.workload.replaced(sequence_length=1024)
    job = JOB.replaced(model=load_model("wordplay-85m-char"), workload=workload)
    query, notes = drop.query_of(read, job)
    # 262,144 tokens in sequences of 1,024, those of the page
    assert query == {"batch": "256", "nodes": "2", "devices": "", "frameworks": "ddp"}
    assert notes[0] == "model wordplay-85m-char, by its 85,003,776 parameters"
    assert "does not state its layout: choose it below" in drop.notes(read, job)[-1]
    chosen = job.replaced(layout="ddp~dp.8")
    assert "the one chosen below is used" in drop.notes(read, chosen)[-1]
    _, notes = drop.query_of(read, JOB)
    assert "llama-3-8b has others: choose its model" in notes[0]


def test_a_log_and_its_configuration_are_one_job() -> None:
    text = DEEPSPEED.replace('"train_micro_batch_size_per_gpu": 2, ', "")
    read = [recognise(LOG, "run.log"), recognise(text.encode(), "ds.json")]
    query, _ = drop.query_of(read, JOB)
    layout, framework = link.unpack_layout(query["layout"])
    # the ranks are the log's, the sharding and the passes the file's
    assert (layout.dp, layout.zero_stage, framework) == (8, 3, "deepspeed")
    assert (layout.micro_batch, layout.grad_accumulation) == (4, 4)
    assert query["frameworks"] == ""


def test_ranks_of_a_part_of_a_node_are_devices() -> None:
    assert drop.query_of_ranks(2, JOB) == {"nodes": "1", "devices": "2"}
    assert drop.query_of_ranks(6, JOB) == {"nodes": "2", "devices": ""}


def test_a_name_pasted_over_the_shown_one_is_that_name() -> None:
    # Streamlit sends the insertion alone, which other names hold, too
    assert _match_model(".1", {}, "llama-3-8b") == "llama-3.1-8b"
    assert _match_model(".1", {}, "gpt2") != "llama-3.1-8b"
    assert _match_model("gpt2-x", {}, "llama-3-8b") == "gpt2-xl"
