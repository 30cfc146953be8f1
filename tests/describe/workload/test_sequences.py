"""Sequences: documents, padding, samples and epochs."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

from planner.choose.verdicts.plan_notes import utilisation_notes
from planner.cost.estimate import estimate_layouts
from planner.cost.operators.blocks import blocks_of
from planner.cost.operators.operations import sequence_flop
from planner.cost.shards.layouts import Layouts
from planner.cost.step.compute.block_time import block_time
from planner.describe.layout import Layout
from planner.describe.model.block import Attention
from planner.describe.workload import Workload, parse_documents, read_documents
from planner.errors import DescriptionError, PlannerError
from planner.training.job_slot import planned_steps
from tests.descriptions import scenario

HEADS = Attention(num_heads=1, num_kv_heads=1, qk_dim=8, v_dim=8, causal=True)


def allowed(lengths: tuple[int, ...], window: int) -> int:
    """Pairs of a query and a key that a document mask leaves, counted one by one."""
    document = np.repeat(np.arange(len(lengths)), lengths)
    place = np.arange(len(document))
    back = place[:, None] - place[None, :]
    mask = (document[:, None] == document[None, :]) & (back >= 0)
    return int((mask & (back < (window or len(place)))).sum())


@pytest.mark.parametrize("window", [0, 64])
@pytest.mark.parametrize("lengths", [(512,), (256, 256), (32, 480), (100, 200, 212)])
def test_documents_cost_the_pairs_that_their_mask_leaves(
    lengths: tuple[int, ...], window: int
) -> None:
    heads = Attention(1, 1, 8, 8, True, window)
    job = Workload(sequence_length=512, document_lengths=lengths)
    found = float(sequence_flop(heads, 512, job, skips_masked=True))
    # half a diagonal more is seen than the integral counts: less than 1 in 32 of the shortest
    assert found == pytest.approx(2 * 16 * allowed(lengths, window), rel=0.05)


def step(**workload: object) -> float:
    asked = scenario("llama-3-8b", "megatron-lm", "dgx-h100", **workload)
    layouts = Layouts.of(Layout(tp=8, sequence_parallel=True, grad_accumulation=64))
    return estimate_layouts(asked, layouts)[0].step_time_s


def test_one_document_a_sequence_is_the_plain_case() -> None:
    plain = step(sequence_length=8192)
    assert step(sequence_length=8192, document_lengths=(8192,)) == pytest.approx(plain, rel=1e-12)
    assert step(sequence_length=8192, document_lengths=(100_000,)) <= plain * (1 + 1e-12)


def test_short_documents_cost_less_attention_and_the_same_products() -> None:
    whole, short = (
        step(sequence_length=32768),
        step(sequence_length=32768, document_lengths=(1024,)),
    )
    assert short < 0.8 * whole
    packed, alone = (
        block_time(asked, blocks_of(asked)[1], Layouts.of(Layout(micro_batch=batch)))
        for batch, asked in (
            (1, scenario(sequence_length=32768, document_lengths=(1024,))),
            (32, scenario(sequence_length=1024)),
        )
    )
    assert packed.forward_s == pytest.approx(alone.forward_s, rel=1e-12)
    assert packed.core_backward_s == pytest.approx(alone.core_backward_s, rel=1e-12)


def test_padding_is_computed_and_does_not_count() -> None:
    asked = scenario(
        "llama-3-8b", "fsdp2", document_lengths=(1024,), packing="padded", sequence_length=4096
    )
    layouts = Layouts.of(Layout(dp=8, zero_stage=3, grad_accumulation=8))
    padded = estimate_layouts(asked, layouts)[0]
    plain = estimate_layouts(scenario("llama-3-8b", "fsdp2", sequence_length=4096), layouts)[0]
    assert padded.step_time_s == plain.step_time_s
    assert padded.tokens_per_s == pytest.approx(plain.tokens_per_s / 4)
    assert padded.mfu < plain.mfu / 4  # attention of a quarter of the length, too
    assert "25 % of the computed tokens" in " ".join(utilisation_notes(asked, padded))


@pytest.mark.parametrize(
    ("fields", "steps"),
    [
        ({"samples": 52_000, "epochs": 3.0}, 2438),  # 156,000 sequences of 64
        ({"samples": 52_000, "document_lengths": (1024,)}, 407),  # two in a sequence of 2048
        ({"samples": 52_000, "document_lengths": (1024,), "packing": "padded"}, 813),
        ({"samples": 10, "document_lengths": (5000,), "packing": "padded"}, 1),  # cut at 2048
    ],
)
def test_samples_and_epochs_give_the_steps(fields: dict[str, object], steps: int) -> None:
    job = Workload.described({"sequence_length": 2048, "global_batch": 64, **fields})
    assert planned_steps(job) == steps


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"samples": 10, "tokens": 1e9}, "both set the length"),
        ({"epochs": 2.0}, "set samples"),
        ({"packing": "padded"}, "needs document_lengths"),
        ({"document_lengths": (0,)}, "= 0 is not a document length; give whole numbers"),
        ({"document_lengths": (10**300,)}, "is not a document length; give whole numbers"),
        ({"document_lengths": (1,) * 1000}, "more than the limit of 256"),
        ({"dora": True}, "set lora_rank"),
        ({"lora_dropout": 0.1}, "set lora_rank"),
        ({"base_format": "nf4"}, "all layers are trained"),
    ],
)
def test_what_contradicts_itself_is_refused(fields: dict[str, object], message: str) -> None:
    with pytest.raises(DescriptionError, match=message):
        Workload.described(fields)


def test_lengths_are_read_from_files(tmp_path: Path) -> None:
    lengths = list(range(1, 2001))
    files = {
        "plain.csv": "\n".join(map(str, lengths)),
        "named.csv": "id,length\n" + "\n".join(f"{n},{n}" for n in lengths),
        "list.json": json.dumps(lengths),
        "rows.jsonl": "\n".join(json.dumps({"length": n}) for n in lengths),
    }
    for name, content in files.items():
        (tmp_path / name).write_text(content)
        found = read_documents(str(tmp_path / name))
        assert len(found) == 256
        assert np.mean(found) == pytest.approx(1000.5, rel=1e-2)
        assert np.mean(np.square(found)) == pytest.approx(np.mean(np.square(lengths)), rel=1e-3)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (text, "neither a length up to 1,000,000,000 nor a file")
        for text in ("nothing.csv", "-3", "1e300", "1e11", "x" * 5000, "a\0b")
    ],
)
def test_what_is_no_length_is_refused(text: str, message: str) -> None:
    with pytest.raises(DescriptionError, match=message):
        read_documents(text)
    with pytest.raises(DescriptionError, match="is not a document length"):
        parse_documents(text)


def test_what_an_address_names_is_no_file(tmp_path: Path) -> None:
    (tmp_path / "secret.csv").write_text("12")
    assert read_documents(str(tmp_path / "secret.csv")) == (12,)
    with pytest.raises(DescriptionError, match="is not a document length"):
        parse_documents(str(tmp_path / "secret.csv"))


def test_a_file_without_lengths_is_refused(tmp_path: Path) -> None:
    for name, content in {"a.csv": "x\ny\n", "b.json": "{", "c.jsonl": ""}.items():
        (tmp_path / name).write_text(content)
        with pytest.raises(DescriptionError, match=r"length|lengths"):
            read_documents(str(tmp_path / name))


def test_what_never_ends_is_no_file_of_lengths(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo.csv")
    for path in ("/dev/zero", str(tmp_path / "fifo.csv")):
        with pytest.raises(PlannerError, match="is not a regular file; name a file"):
            read_documents(path)
    (tmp_path / "long.csv").write_bytes(b"5\n" * 11_000_000)
    with pytest.raises(PlannerError, match="above 20 MB are refused: give a part of the lengths"):
        read_documents(str(tmp_path / "long.csv"))
    (tmp_path / "wide.csv").write_text("1" * 200_000)
    (tmp_path / "deep.json").write_text("[" * 100_000)
    for name, said in (("wide.csv", "is not a CSV"), ("deep.json", "is not a JSON")):
        with pytest.raises(DescriptionError, match=said):
            read_documents(str(tmp_path / name))


def test_long_documents_take_no_longer_lists() -> None:
    """A document of a billion tokens fills sequences of one token, and is one number of them."""
    job = Workload(sequence_length=1, document_lengths=(10**9, 10**9 - 1))
    assert job.documents == ((1, 2 * 10**9 - 1),)
    job = Workload(sequence_length=4096, document_lengths=(10**9,))
    assert job.documents == ((10**9 % 4096, 1), (4096, 10**9 // 4096))


def test_every_matrix_has_a_short_name() -> None:
    job = Workload.described({"lora_rank": 8, "lora_targets": ["all-linear"]})
    assert job.lora_targets == ("query", "key", "value", "out", "gate", "up", "down")
