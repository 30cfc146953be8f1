"""Search every legal layout of a world size; try further options only where they can help."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from planner.choose.legality import legal_refined
from planner.choose.legality.check import check_routing, check_sequence
from planner.choose.preferences import preferences
from planner.choose.search.candidates import Candidates
from planner.choose.search.enumeration import enumerate_layouts
from planner.choose.search.pruning import SearchScope, estimate_promising
from planner.choose.search.recompute import reduce_recompute
from planner.cost.arrays import Float, Int, Mask, is_in
from planner.cost.estimate import estimate_fitting
from planner.cost.memory.footprint import Footprints
from planner.cost.operators.blocks import blocks_of
from planner.cost.scenario import Scenario
from planner.cost.shards.layouts import Layouts
from planner.cost.shards.partial_recompute import stage_block_counts
from planner.cost.step.block_pass import block_passes
from planner.describe.layout import RECOMPUTE, SCHEDULES, divisors

_HEAD_WEIGHTS = (0.5, 1.0, 2.0)
"""Assumed ratios of the head's time per parameter to a layer's; its time is unknown here."""


def count_embedding_and_head(candidates: Candidates) -> Layouts:
    """Count embedding and head as one layer each in the pipeline split, where that can help."""
    scenario, framework = candidates.scenario, candidates.scenario.framework
    has_slots = framework.custom_pipeline_split and framework.balance == "layers"
    layouts = candidates.footprints.layouts
    is_tried = layouts.piped & bool(has_slots and len(layouts))
    footprints = candidates.footprints.take(np.flatnonzero(is_tried))
    piped = footprints.layouts
    if not len(piped):
        return piped
    helps = _is_lighter(scenario, piped, _with_slots(piped)) | _nearly_fits(scenario, footprints)
    is_even = (piped.vpp == 1) | _is_even(piped.pp * piped.vpp, scenario.model.depth + 2)
    helped = piped.take(np.flatnonzero(helps & is_even))
    layouts = Layouts.joined([_with_slots(helped), *_interleaved(scenario, piped)])
    return _legal(scenario, layouts)


def _legal(scenario: Scenario, refined: Layouts) -> Layouts:
    return refined.take(np.flatnonzero(legal_refined(scenario, refined)))


def _with_slots(layouts: Layouts) -> Layouts:
    slots = np.ones_like(layouts.pp)
    return replace(layouts, embedding_slots=slots, head_slots=slots)


def _is_lighter(scenario: Scenario, plain: Layouts, with_slots: Layouts) -> Mask:
    """True if slots give the slowest stage less work, for at least one assumed head time."""
    shapes, rows = plain.distinct("pp", "schedule")
    slotted, _ = with_slots.distinct("pp", "schedule")
    head = _head_in_layers(scenario)
    before, after = (_slowest_stage(scenario, each, head) for each in (shapes, slotted))
    return np.any(after < before, axis=0)[rows]


def _slowest_stage(scenario: Scenario, layouts: Layouts, head: float) -> Float:
    """Work of the slowest stage, in layers. Shape (_HEAD_WEIGHTS, layouts)."""
    blocks = blocks_of(scenario)
    stages = np.arange(int(np.max(layouts.pp)))
    counts = stage_block_counts(blocks, layouts.take((..., None)), stages, scenario.framework)
    pairs = list(zip(blocks, counts, strict=True))
    layers = np.sum([count for block, count in pairs if block.kind == "layer"], axis=0)
    heads = np.sum([count for block, count in pairs if block.kind == "head"], axis=0)
    work = layers + np.reshape(_HEAD_WEIGHTS, (-1, 1, 1)) * head * heads
    return np.max(np.where(stages < layouts.pp[:, None], work, 0.0), axis=-1)


def _head_in_layers(scenario: Scenario) -> float:
    """Parameters of the head over the parameters of a layer that one token uses [1]."""
    blocks, experts = blocks_of(scenario), scenario.model.experts
    used = experts.top_k / experts.num_experts if experts else 1.0
    weights = {kind: 0.0 for kind in ("embedding", "layer", "head")}
    for block in blocks:
        for weight in block.weights:
            share = used if weight.part == "experts" else 1.0
            weights[block.kind] += share * block.count * weight.num_params
    layers = sum(block.count for block in blocks if block.kind == "layer")
    head = weights["head"] or weights["embedding"]
    return head * layers / max(weights["layer"], 1.0)


def _nearly_fits(scenario: Scenario, footprints: Footprints) -> Mask:
    """True for layouts that do not fit, but would fit the device with one layer less per stage."""
    layers = np.maximum(scenario.model.depth // footprints.layouts.pp, 1)
    without_layer = footprints.memory_bytes * (1 - 1 / layers)
    return ~footprints.fits & (without_layer <= footprints.device_limit_bytes)


def _is_even(chunks: Int, slots: int) -> Mask:
    """True if the fullest chunk has few more layers than the mean."""
    fullest = -(-slots // chunks) * chunks
    return fullest <= preferences().search.fullest_chunk.value * slots


def _interleaved(scenario: Scenario, piped: Layouts) -> list[Layouts]:
    """Interleaved layouts whose chunks are even only with slots for embedding and head."""
    layers, schedule = scenario.model.depth, SCHEDULES.index("interleaved-1f1b")
    if "interleaved-1f1b" not in scenario.framework.schedules:
        return []
    layouts = piped.take(np.flatnonzero(piped.uses_schedule("1f1b")))
    by_chunks = []
    for chunks in range(2, layers // 2 + 2):
        places = layouts.pp * chunks
        is_gained = _is_even(places, layers + 2) & ~_is_even(places, layers)
        gained = layouts.take(np.flatnonzero(is_gained))
        vpp, schedules = np.full(len(gained), chunks), np.full(len(gained), schedule)
        by_chunks.append(_with_slots(replace(gained, vpp=vpp, schedule=schedules)))
    return [each for each in by_chunks if len(each)]


def shard_in_groups(candidates: Candidates) -> Layouts:
    """Try sharding groups of every size (hybrid sharding) for weights sharded over all ranks."""
    scenario, footprints = candidates.scenario, candidates.footprints
    layouts = footprints.layouts
    if not scenario.framework.hybrid_stages or not len(layouts):
        return layouts.take(np.zeros(0, dtype=np.int64))
    least = candidates.least_of_each_job(footprints.memory_bytes)
    fits = footprints.fits | (footprints.memory_bytes == least)
    sharded = layouts.take(np.flatnonzero(fits & layouts.shards_weights & layouts.keeps_states))
    groups = []
    for size in _divisors(sharded.dp):
        divided = sharded.take(np.flatnonzero((sharded.dp % size == 0) & (size < sharded.dp)))
        groups.append(replace(divided, dp_shard=np.full(len(divided), size)))
    return _legal(scenario, Layouts.joined([sharded.take(slice(0)), *groups]))


def _divisors(degrees: Int) -> list[int]:
    """Numbers above 1 that divide one of the degrees."""
    return sorted({size for degree in np.unique(degrees) for size in divisors(int(degree))[1:]})


def keep_weights_near(candidates: Candidates) -> Layouts:
    """Keep ZeRO-3 weights sharded over one node between forward and backward."""
    scenario, footprints = candidates.scenario, candidates.footprints
    layouts = footprints.layouts
    if not scenario.framework.second_shards or not len(layouts):
        return layouts.take(np.zeros(0, dtype=np.int64))
    node, shards = scenario.machine.node.num_devices, layouts.num_shards
    spans_nodes = layouts.shards_weights & (shards > node) & (shards % node == 0)
    layouts = layouts.take(np.flatnonzero(footprints.fits & spans_nodes))
    return _legal(scenario, replace(layouts, reshard=np.full(len(layouts), node)))


def exchange_heads(candidates: Candidates) -> Layouts:
    """Use Ulysses, alone or with a ring, where that makes a micro-batch faster than the ring."""
    scenario, footprints = candidates.scenario, candidates.footprints
    layouts, blocks = footprints.layouts, blocks_of(scenario)
    has_kinds = bool(set(scenario.framework.context) - {"ring"}) and len(layouts) > 0
    is_ring = (layouts.cp > 1) & (layouts.ulysses == 1)
    rings = layouts.take(np.flatnonzero(footprints.fits & is_ring & has_kinds))
    if not len(rings):
        return rings

    def layers_s(layouts: Layouts) -> Float:
        passes = block_passes(scenario, blocks, layouts)
        return np.sum([b.count * p.total_s for b, p in zip(blocks, passes, strict=True)], axis=0)

    best_size, least_s = np.ones_like(rings.cp), layers_s(rings)
    for size in _divisors(rings.cp):
        rows = np.flatnonzero(rings.cp % size == 0)
        exchanged = replace(rings.take(rows), ulysses=np.full(len(rows), size))
        is_legal = legal_refined(scenario, exchanged)
        rows = rows[is_legal]
        time_s = layers_s(exchanged.take(np.flatnonzero(is_legal)))
        is_faster = time_s < (1 - 1e-9) * least_s[rows]  # no tie that the last digit decides
        best_size[rows[is_faster]], least_s[rows[is_faster]] = size, time_s[is_faster]
    changed = np.flatnonzero(best_size > 1)
    return replace(rings.take(changed), ulysses=best_size[changed])


TILES = (4, 16)
"""Numbers of tiles to try for the largest matrix."""


def offload_activations(candidates: Candidates) -> Layouts:
    """Offload activations to host memory, if no layout fits without it."""
    layouts = candidates.footprints.layouts
    modes = candidates.scenario.framework.offload_activations
    codes = [RECOMPUTE.index(mode) for mode in modes]
    is_tried = is_in(layouts.recompute, codes) & candidates.nothing_fits()
    layouts = layouts.take(np.flatnonzero(is_tried))
    if not len(layouts):
        return layouts
    offloaded = replace(layouts, offload_activations=np.ones_like(layouts.recompute))
    return _legal(candidates.scenario, offloaded)


def tile_matrices(candidates: Candidates) -> Layouts:
    """Compute the largest matrix in tiles with sharded weights, if no layout fits without it."""
    layouts = candidates.footprints.layouts
    is_tried = candidates.nothing_fits() & candidates.scenario.framework.tiling
    sharded = layouts.take(np.flatnonzero(layouts.shards_weights & is_tried))
    return Layouts.joined([replace(sharded, tiles=np.full(len(sharded), n)) for n in TILES])


REFINEMENTS: tuple[Callable[[Candidates], Layouts], ...] = (
    count_embedding_and_head,
    shard_in_groups,
    reduce_recompute,
    offload_activations,
    keep_weights_near,
    exchange_heads,
    tile_matrices,
)
"""Refinements in order: each sees the layouts that earlier ones added."""


def search(
    scenario: Scenario,
    world: int,
    within: Callable[[Layouts], Mask] | None = None,
    scope: SearchScope = SearchScope(),
) -> Candidates:
    """Search every legal layout of `world` ranks under one framework."""
    return search_together([(scenario, world, scope)], within)[0]


def search_together(
    jobs: Sequence[tuple[Scenario, int, SearchScope]],
    within: Callable[[Layouts], Mask] | None = None,
) -> list[Candidates]:
    """Search scenarios that differ only in their batch, each on its ranks, in one array."""
    enumerated = []
    for scenario, world, _ in jobs:
        check_sequence(scenario.model, scenario.workload)
        check_routing(scenario.model, scenario.workload)
        layouts, dropped = enumerate_layouts(scenario, world)
        enumerated.append((_restrict(layouts, within), dropped))
    first, _, scope = jobs[0]
    if len(jobs) > 1 and sum(len(layouts) for layouts, _ in enumerated) <= scope.exhaustive_up_to:
        # all are estimated, so that the times found before in the scopes do not count
        joined = _refined(first, Layouts.joined([each for each, _ in enumerated]), within, scope)
        results = [joined.of_job(scenario, world) for scenario, world, _ in jobs]
    else:
        results = [
            _refined(scenario, layouts, within, scope)
            for (scenario, _, scope), (layouts, _) in zip(jobs, enumerated, strict=True)
        ]
    for candidates, (_, dropped) in zip(results, enumerated, strict=True):
        candidates.dropped.update(dropped)
        _count_dropped(candidates)
    return results


def _refined(
    scenario: Scenario,
    layouts: Layouts,
    within: Callable[[Layouts], Mask] | None,
    scope: SearchScope,
) -> Candidates:
    """Estimate layouts and their refinements."""

    def estimate(layouts: Layouts) -> Candidates:
        return Candidates(scenario, *estimate_fitting(scenario, layouts), {})

    candidates, pruner = estimate_promising(scenario, layouts, estimate, scope)
    for refine in REFINEMENTS:
        refined = _restrict(refine(candidates), within)
        if pruner is not None and len(refined):
            refined = pruner.promising(refined)
        if len(refined):
            estimated = estimate(refined)
            candidates = Candidates.joined([candidates, estimated])
            if pruner is not None:
                pruner.learn(estimated)
    if pruner is not None:
        large, slow = candidates.too_large + pruner.too_large, candidates.too_slow + pruner.too_slow
        candidates = replace(candidates, too_large=large, too_slow=slow)
    return candidates


def _restrict(layouts: Layouts, within: Callable[[Layouts], Mask] | None) -> Layouts:
    return layouts if within is None else layouts.take(np.flatnonzero(within(layouts)))


def _count_dropped(candidates: Candidates) -> None:
    """Add the candidates that do not fit or are ruled out by a bound to `dropped`."""
    footprints = candidates.footprints
    no_host_memory = footprints.fits_device & ~footprints.fits_host
    counts = {
        "out of device memory": int(np.count_nonzero(~footprints.fits_device))
        + candidates.too_large,
        "out of host memory": int(np.count_nonzero(no_host_memory)),
        "slower than another of its class by a lower bound": candidates.too_slow,
    }
    candidates.dropped.update({reason: count for reason, count in counts.items() if count})
