"""Layout words: the printed code is read back as it was, in any order."""

from __future__ import annotations

import random

import pytest

from planner.choose.verdicts.layout_words import parse_layout
from planner.cost.shards.layouts import Layouts
from planner.describe.catalogue import load_machine, load_model
from planner.describe.layout import RECOMPUTE_MODULES, Layout
from planner.describe.workload import Workload
from planner.errors import PlannerError
from tests.descriptions import searched

RARE = [
    Layout(dp=8, dp_shard=2, zero_stage=3, reshard=2, micro_batch=2),
    Layout(cp=8, ulysses=4, recompute="selective", recompute_modules=("layernorm", "mlp")),
    Layout(pp=4, vpp=2, schedule="zero-bubble-v", recompute="full", recompute_layers=1),
    Layout(pp=4, schedule="gpipe", recompute="full", recompute_every=2, tiles=4),
    Layout(pp=2, vpp=2, schedule="interleaved-1f1b", split="7,8*2,7", recompute="full"),
    Layout(pp=2, schedule="1f1b", embedding_slots=1, head_slots=1, offload="optimizer-cpu"),
    Layout(pp=2, schedule="dualpipe-v", vpp=2, first_layers=7, last_layers=5, etp=1, ep=8),
    Layout(recompute="full", recompute_span=3, offload_activations=True, sequence_parallel=True),
    Layout(recompute="selective", recompute_modules=RECOMPUTE_MODULES, offload="all-nvme"),
]


def shuffled(layout: Layout, draw: random.Random) -> str:
    """The code of a layout with its words in another order; recompute keeps its own words."""
    words = str(layout).replace(" recompute", "_recompute").split()
    if layout.recomputed or layout.offload_activations or layout.offload != "none":
        return str(layout)
    if any("(" in word for word in words) or layout.tiles > 1:
        return str(layout)
    draw.shuffle(words)
    return ", ".join(words).upper()


@pytest.mark.parametrize("layout", RARE, ids=str)
def test_rare_fields_are_read_back(layout: Layout) -> None:
    assert parse_layout(str(layout)).layout == layout
    assert parse_layout(f"{layout} [fsdp2+compile]").framework == "fsdp2+compile"


@pytest.mark.slow
def test_every_layout_of_a_search_is_read_back_in_any_order() -> None:
    draw = random.Random(3)
    job = load_model("mixtral-8x7b"), load_machine("dgx-h100"), 2, Workload(global_batch=32)
    seen = 0
    for part in searched(*job).values():
        layouts = part.footprints.layouts
        for row in draw.sample(range(len(layouts)), min(200, len(layouts))):
            layout, seen = layouts[row], seen + 1
            stated = parse_layout(str(layout))
            assert stated.complete
            assert stated.layout == layout
            assert Layouts.of(parse_layout(shuffled(layout, draw)).layout) == Layouts.of(layout)
    assert seen > 200


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        ("dp32 tp2 pp48 cp4", {"dp": 32, "tp": 2, "pp": 48, "cp": 4}),
        ("TP=2, dp = 4", {"tp": 2, "dp": 4}),
        ("zero-3 mb2 full recompute", {"zero_stage": 3, "micro_batch": 2, "recompute": "full"}),
    ],
)
def test_what_users_write_is_read(text: str, fields: dict[str, object]) -> None:
    assert parse_layout(text).fields == fields
    assert not parse_layout(text).complete


@pytest.mark.parametrize(
    "text",
    ["", "  ", "dp", "dp-1", "tp1e9", "x" * 10_000, "dp4 <b>", "dp99999999999", "tp4 tp4", "[]"],
)
def test_other_text_is_refused_in_a_sentence(text: str) -> None:
    with pytest.raises(PlannerError) as error:
        parse_layout(text)
    assert len(error.value.plain) < 200
