"""What traces of FSDP2 send, beside the traffic that step times are made of."""

from __future__ import annotations

import pytest

from planner import Workload, estimate, load_machine
from planner.cost.step.communication.bytes_per_axis import step_traffic
from planner.describe.layout import Layout
from planner.validate.trace.expected_collectives import expected_collectives
from tests.descriptions import scenario

_TIMES = {"all_gather": 1, "reduce_scatter": 1, "all_reduce": 2}
"""How often a ring passes the buffer, less the rank's own part."""


CASES = [(stage, times, pp) for stage in range(4) for times, pp in ((1, 1), (4, 1), (4, 2))]
CASES.remove((1, 4, 2))  # no pipeline of torchtitan has it


@pytest.mark.parametrize(("stage", "micro_batches", "pp"), CASES)
def test_weights_and_gradients_are_sent_as_often_as_traces_send_them(
    stage: int, micro_batches: int, pp: int
) -> None:
    """Traces equal what is expected of them to the byte; only ZeRO-3's head is gathered once less
    a pass, as torchtitan keeps it from forward to backward."""
    job = scenario("llama-3-8b", "fsdp2", global_batch=8 * micro_batches)
    layout = Layout(dp=8, pp=pp, zero_stage=stage, grad_accumulation=micro_batches)
    if pp > 1:
        layout = layout.replaced(schedule="1f1b")
    sent = []
    for place in range(pp):
        found = expected_collectives(job, layout, place)
        data = [one for one in found if one.group.startswith("dp")]
        sent.append(sum(_TIMES[one.name] * one.bytes for one in data) * 7 / 8)
    head = 2 * (128256 * 4096 + 4096)
    # of a pipeline the stage with the embedding, which is as large, sends most
    spared = micro_batches * head if stage == 3 and pp == 1 else 0
    ours = step_traffic(job, layout)["dp"].device_bytes
    assert ours - spared * 7 / 8 == pytest.approx(max(sent), rel=1e-5)


@pytest.mark.parametrize("stage", [1, 2, 3])
@pytest.mark.parametrize("times", [1, 4])
def test_a_head_whose_loss_runs_in_pieces_is_sent_as_often_as_traces_send_it(
    stage: int, times: int
) -> None:
    """Its weights three times a pass, beside one more for each of the layers."""
    job = scenario("llama-3-8b", "fsdp2+chunked-loss=8", global_batch=8 * times)
    layout = Layout(dp=8, zero_stage=stage, grad_accumulation=times)
    found = expected_collectives(job, layout)
    sent = sum(_TIMES[one.name] * one.bytes for one in found) * 7 / 8
    assert step_traffic(job, layout)["dp"].device_bytes == pytest.approx(sent, rel=1e-5)


def test_every_piece_of_a_loss_adds_to_the_gradient_of_the_head() -> None:
    """8 pieces more read a 16-bit gradient, read and write an fp32 sum, 8 times."""
    layout, words = Layout(dp=8, zero_stage=3), 128256 * 4096
    device = load_machine("dgx-h100").device
    few, many = (
        estimate(
            "llama-3-8b",
            "dgx-h100",
            layout,
            workload=Workload(sequence_length=8192, global_batch=8),
            framework=f"fsdp2+chunked-loss={pieces}",
        ).step_time_s
        for pieces in (8, 16)
    )
    rate = device.memory_bytes_per_s.value * device.memory_efficiency.value
    sums = 8 * words * (2 + 4 + 4) / rate
    assert 0.99 * sums < many - few < 1.5 * sums
