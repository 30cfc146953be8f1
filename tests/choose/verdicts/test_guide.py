"""Guide: all eight cases of the decision guide, our answer beside it, and why they differ."""

from __future__ import annotations

import pytest

from planner.choose.plan import Plan
from planner.choose.planning import plan
from planner.choose.verdicts.guide import Advice, guide
from planner.cost.shards.layouts import Layouts
from planner.describe.catalogue import load_model
from planner.describe.model.model import Model
from planner.describe.workload import Workload
from tests.descriptions import question


def wide(hidden_size: int) -> Model:
    """A GPT of two layers, so wide that one of them is more than a device."""
    heads = hidden_size // 128
    return load_model("gpt3-175b").replaced(
        name=f"gpt-{hidden_size}",
        num_layers=2,
        hidden_size=hidden_size,
        num_heads=heads,
        num_kv_heads=heads,
        ffn_size=4 * hidden_size,
    )


CASES = [
    # one device: the model fits; it does not; not even its largest layer does
    ("gpt2", "workstation-1x4090", 1, 32, 1024, Advice.ALONE, ""),
    ("llama-3.2-3b", "workstation-1x4090", 1, 8, 2048, Advice.ALONE_SHORT, ""),
    (32768, "workstation-1x4090", 1, 4, 2048, Advice.ALONE_LAYER, ""),
    # one node: the same, and a fast or a slow link between the devices
    ("gpt2", "polaris", 1, 64, 1024, Advice.COPIES, ""),
    ("llama-3-8b", "polaris", 1, 32, 4096, Advice.NODE_FAST, "runs out of memory"),
    ("mistral-7b", "workstation-4x4090", 1, 32, 2048, Advice.NODE_SLOW, "none fits"),
    ("llama-3.2-1b", "workstation-2x4090", 1, 16, 4096, Advice.NODE_SLOW, "the guide's dp1 pp2 "),
    (45056, "polaris", 1, 8, 2048, Advice.LAYER, ""),
    # several nodes: 12.5 and 6.25 GB/s per device
    ("llama-3-8b", "polaris", 4, 64, 4096, Advice.NETWORK_FAST, ""),
    ("llama-2-13b", "aws-p4d", 4, 64, 4096, Advice.NETWORK_SLOW, ""),
]


@pytest.mark.parametrize(("model", "machine", "nodes", "batch", "length", "advice", "why"), CASES)
def test_answer_and_guide_agree_or_say_why(
    model: str | int,
    machine: str,
    nodes: int,
    batch: int,
    length: int,
    advice: Advice,
    why: str,
) -> None:
    described = wide(model) if isinstance(model, int) else load_model(model)
    job = Workload(global_batch=batch, sequence_length=length)
    answer = plan(described, machine, nodes=nodes, workload=job)
    assert answer.recommended is not None
    assert len({case.value.text for case in Advice}) == len(Advice)
    (said,) = (note for note in answer.notes if note.startswith("The field's guide: "))
    assert said.endswith(f": {advice.value.text}.")
    differ = [note for note in answer.notes if note.startswith("They differ")]
    assert len(differ) == bool(why)
    assert all(why in note for note in differ)
    assert why or bool(advice.value.holds(Layouts.of(answer.recommended.layout)))
    confirm(advice, answer)


def confirm(advice: Advice, answer: Plan) -> None:
    """What the case presumes is what the verdicts found."""
    fits = {verdict.name: verdict.fits for verdict in answer.strategies}
    alone = advice in (Advice.ALONE, Advice.COPIES)
    assert fits["single device"] == alone
    assert answer.recommended is not None
    if advice in (Advice.ALONE_LAYER, Advice.LAYER):
        assert fits["ZeRO-3 in tiles"]
        # no pipeline holds such a layer
        assert not fits["PP"]
        assert answer.recommended.layout.tiles > 1
    if advice is Advice.ALONE_SHORT:
        assert fits["ZeRO + CPU offload"]


def test_frozen_weights_are_no_training_state() -> None:
    # 70.6e9 frozen weights in the framework's bytes, adapters of 0.2 %: nowhere near 16 bytes each
    job = question("llama-3.1-70b", "deepspeed", "dgx-h100", lora_rank=16)
    _, said = guide([job], 1)
    full, _ = guide([question("llama-3.1-70b", "deepspeed", "dgx-h100")], 1)
    states = float(said.split(" sequence, ")[1].split(" GiB of them")[0])
    assert 2 * 70.6e9 / 2**30 < states < 4.2 * 70.6e9 / 2**30
    assert full is Advice.NODE_FAST


def test_a_long_sequence_counts_in_the_layer() -> None:
    # at a million tokens one layer's activations alone are more than the device
    short, long = (
        guide([question("llama-3-8b", "deepspeed", "dgx-h100", sequence_length=length)], 1)[0]
        for length in (8192, 2**20)
    )
    assert (short, long) == (Advice.NODE_FAST, Advice.LAYER)
