"""Buckets: number of collectives for the gradients and updated weights of a stage."""

from __future__ import annotations

import numpy as np

from planner.cost.arrays import Float
from planner.cost.shards.layouts import Layouts
from planner.cost.shards.stages import Stages
from planner.describe.model.block import Block

__all__ = ["num_buckets", "num_units"]


def num_units(stages: Stages) -> Float:
    """Units of a stage that travel one by one: its parameters in layers, the ends among them [1].

    Counted: parameters over those of the largest layer. Left out: layers of several sizes.
    method.md#traffic-per-axis-and-overlap.

    >>> scenario = make_scenario("llama-3-8b", "fsdp2")
    >>> units = num_units(Stages.of_pipeline(scenario, Layout(dp=4)))[0]
    >>> round(float(units), 1), round(scenario.model.num_params / 218_112_000, 1)    # a layer's
    (36.8, 36.8)
    """
    largest, elements = stages.params.largest_layer, stages.params.unsharded
    layer = np.where(largest > 0, largest, elements)
    return np.maximum(elements / np.maximum(layer, 1), 1.0)


def num_buckets(stages: Stages, bucket: float) -> Float:
    """Buckets of `bucket` elements that a stage's trained matrices fill; 0 stands for one [1].

    A bucket closes with the matrix that fills it. Counted: matrices as the framework multiplies
    them; one as large as a bucket closes one by itself, smaller ones share one that is too
    large by half of a matrix, as large ones close it more often (sum x^2 / 2 sum x). Left out:
    vectors, the order of matrices. torch 2.13, compute_bucket_assignment_by_size; Feller 1971,
    "An introduction to probability theory" II, XI.4; method.md#traffic-per-axis-and-overlap.

    >>> scenario = make_scenario("llama-3-8b", "nanotron")
    >>> stages = Stages.of_pipeline(scenario, Layout(tp=4))  # a layer: 6.3, 4.2, 29.4 and 14.7 M
    >>> round(float(num_buckets(stages, 12.5 * 2**20)[0]))  # torch: 66, two a layer and the ends
    68
    """
    if not bucket:
        return np.ones(stages.shape)
    sizes: list[tuple[Float, Float]] = []
    elements, squares = np.zeros(stages.shape), np.zeros(stages.shape)
    for block, count in zip(stages.blocks, stages.counts, strict=True):
        for matrix, copies in _matrices(block, stages.layouts):
            sizes.append((matrix, count * copies))
            if block.kind == "layer":
                elements = elements + count * copies * matrix
                squares = squares + count * copies * matrix**2
    closed = bucket + squares / np.maximum(2 * elements, 1)
    buckets = sum((copies * np.minimum(x / closed, 1.0) for x, copies in sizes), np.zeros(()))
    return np.maximum(buckets, 1.0)


def _matrices(block: Block, layouts: Layouts) -> list[tuple[Float, Float]]:
    """Trained matrices of a block on a rank: elements of each, and how many there are."""
    unit = np.ones(np.shape(layouts.tp))
    if block.kind != "layer":
        tables = [weight for weight in block.weights if weight.trainable and not weight.tied]
        split = [layouts.tp if table.split != "replicated" else unit for table in tables]
        return [(t.num_params / parts, unit) for t, parts in zip(tables, split, strict=True)]
    matrices = []
    for gemm in block.gemms:
        if gemm.weight_gradient:
            ranks = layouts.expert_tp if gemm.experts else layouts.tp
            parts = ranks if gemm.split != "replicated" else unit
            copies = np.maximum(gemm.experts / layouts.ep, 1.0) if gemm.experts else unit
            matrices.append((gemm.n * gemm.k / parts, copies))
    return matrices
