"""Context: parallelism that exchanges tokens for heads."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from planner.choose.legality import legal
from planner.choose.search.found import Found
from planner.cost.arrays import Float
from planner.cost.operators.blocks import blocks_of
from planner.cost.shards.layouts import Layouts
from planner.cost.step.passes import block_passes
from planner.describe.layout import Layout, divisors

__all__ = ["by_heads"]


def by_heads(found: Found) -> Layouts:
    """Context parallelism that exchanges tokens for heads, where a micro-batch takes less time so.

    The kind changes no memory and nothing but the passes of layers, so the fastest of all is that
    of the fastest passes.
    """
    scenario, taken = found.scenario, found.footprints
    layouts, blocks = taken.layouts, blocks_of(scenario)
    other = bool(set(scenario.framework.context) - {"ring"}) and len(layouts) > 0
    mine = layouts.take(
        np.flatnonzero(taken.fits & (layouts.cp > 1) & (layouts.ulysses == 1) & other)
    )
    if not len(mine):
        return mine

    def seconds(some: Layouts) -> Float:
        passes = block_passes(scenario, blocks, some)
        return np.sum([b.count * p.total_s for b, p in zip(blocks, passes, strict=True)], axis=0)

    best, least = np.ones_like(mine.cp), seconds(mine)
    for size in divisors(int(np.max(mine.cp)))[1:]:
        rows = np.flatnonzero(mine.cp % size == 0)
        tried = mine.take(rows)
        tried = replace(tried, ulysses=np.full(len(rows), size))
        allowed, _ = legal(scenario, tried, set(Layout.model_fields))
        rows, tried = rows[allowed], tried.take(np.flatnonzero(allowed))
        time_s = seconds(tried)
        faster = time_s < least[rows]
        best[rows[faster]], least[rows[faster]] = size, time_s[faster]
    changed = np.flatnonzero(best > 1)
    return replace(mine.take(changed), ulysses=best[changed])
