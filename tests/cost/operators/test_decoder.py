"""Decoder of an encoder-decoder: operations by hand, and that equal streams change nothing."""

from __future__ import annotations

import functools
import itertools

import pytest

from planner.cost.operators.blocks import blocks_of, scale_to_decoder
from planner.cost.operators.operations import model_flop
from planner.cost.shards.layouts import Layouts
from planner.cost.step.compute.block_time import block_time
from planner.describe.catalogue import load_model
from planner.describe.layout import Layout
from tests import descriptions

scenario = functools.partial(
    descriptions.scenario, "t5-3b-nemo", machine="selene", sequence_length=512, global_batch=1
)


def test_operations_are_those_of_both_lengths() -> None:
    """24 layers a stack, h = 2048, f = 5120 with a gate, 512 and 128 tokens, 29,096 words."""
    h, f, long, short = 2048, 5120, 512, 128
    own = 4 * h * h + 3 * h * f
    encoder = long * own
    decoder = short * (own + 2 * h * h) + long * 2 * h * h  # queries and out; keys and values
    products = 24 * (encoder + decoder) + short * h * 29_096
    scores = 24 * h * (long**2 + short**2 + short * long)
    q = scenario()
    assert float(model_flop(blocks_of(q), q.workload)) == 6 * products + 12 * scores


@pytest.mark.parametrize("attention", ["flash", "eager"])
def test_equal_streams_are_the_block_itself(attention: str) -> None:
    even = load_model("t5-3b-nemo").replaced(decoder_share=1.0)
    block = blocks_of(descriptions.scenario(even, attention=attention))[2]
    assert scale_to_decoder(even, block) == block


@pytest.mark.parametrize("attention", ["flash", "eager"])
def test_a_shorter_decoder_keeps_and_computes_less(attention: str) -> None:
    layouts, shorter = Layouts.of(Layout(micro_batch=24)), []
    for share in (1.0, 0.5, 0.25):
        model = load_model("t5-3b-nemo").replaced(decoder_share=share)
        q = descriptions.scenario(
            model, machine="selene", sequence_length=512, global_batch=24, attention=attention
        )
        block = blocks_of(q)[2]
        time = block_time(q, block, layouts)
        kept = sum(item.bytes_per_token for item in block.saved)
        shorter.append((float(time.forward_s), float(time.backward_s), kept))
    for longer, less in itertools.pairwise(shorter):
        assert all(b < a for a, b in zip(longer, less, strict=True))
    # keys and values of the encoder's tokens are left
    assert shorter[2][2] > 0.25 * shorter[0][2]
