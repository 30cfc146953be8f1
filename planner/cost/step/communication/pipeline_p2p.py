"""Pipeline point-to-point: transfers of activations and gradients between stages."""

from dataclasses import dataclass

import numpy as np

from planner.cost.arrays import Arrays, Float, Int, where_any
from planner.cost.network.collectives import p2p_s
from planner.cost.network.groups import Groups
from planner.cost.scenario import Scenario
from planner.cost.shards.layouts import Layouts
from planner.cost.step.communication.tensor_parallel import stream_bytes


def send_stage_s(scenario: Scenario, layouts: Layouts, groups: Groups) -> Float:
    """Point-to-point send of one micro-batch's activations to the next stage [s].

    Counted: every tensor-parallel rank sends its slice of the tokens (scatter/gather, Narayanan et
    al. 2021, arXiv:2104.04473, section 4.1), at the pace of ranks at a node's border. Left out:
    gathering the slices, overlap.
    """
    size = stream_bytes(scenario, layouts) / layouts.tp
    return where_any(layouts.piped, lambda: p2p_s(groups.pipeline, size))


def transfer_wait_s(scenario: Scenario, layouts: Layouts) -> Float:
    """Measured extra delay of each transfer between stages on this machine [s].

    Counted: the profile's `transfer_delays`, linear in the logarithm of the job's nodes. Left out:
    the message itself. overlap.md#traffic-per-axis-and-overlap.
    """
    machine = scenario.machine
    delays = machine.network.transfer_delays if machine.network else None
    if delays is None:
        return np.zeros(np.shape(layouts.pp))
    nodes = np.maximum(layouts.world / machine.node.num_devices, 1)
    wait = np.interp(np.log(nodes), np.log(delays.num_nodes), delays.seconds)
    return np.where(layouts.piped, wait, 0.0)


@dataclass(frozen=True, slots=True)
class Transfer(Arrays):
    """Point-to-point send of one chunk's activations or gradients to the next stage [s]."""

    arrives_s: Float
    """From send to arrival."""
    fills: Int
    """Transfers on the critical path while the pipeline fills, and again while it drains."""
    blocks_s: Float
    """Time that the sending stage is blocked; less where transfers overlap computation."""
    behind_s: Float
    """Inter-node part that is hidden behind computation."""


def stage_transfer(scenario: Scenario, layouts: Layouts, groups: Groups, free_s: Float) -> Transfer:
    """Delays of one transfer between stages, for the receiving and the sending stage [s].

    `free_s`: time of one micro-batch on the stage, forward and backward, less other inter-node
    traffic hidden behind it. Counted: the message, and the machine's measured wait; if the
    framework overlaps transfers of stages with several chunks, only what a chunk's pass does not
    hide. Left out: launch latency. pipeline.md#pipeline.
    """
    if not layouts.piped.any():
        zero = np.zeros(free_s.shape)
        return Transfer(zero, layouts.pp - 1, zero, zero)
    message, wait = send_stage_s(scenario, layouts, groups), transfer_wait_s(scenario, layouts)
    # both directions of a link run at once; waits add up, one per neighbour of a stage
    awaited = message + wait * np.minimum(layouts.pp - 1, 2)
    hides = scenario.framework.communication.overlap_pipeline & (layouts.vpp > 1)
    left = np.maximum(message - free_s / (2 * layouts.vpp), 0.0)
    across = hides & (groups.pipeline.nodes > 1)
    return Transfer(
        arrives_s=message + wait,
        # the first micro-batch passes all chunks before its backward pass; without overlap, the
        # stage's own transfers block it as long as the further rounds take
        fills=np.where(hides, _hops(layouts), layouts.pp - 1),
        blocks_s=np.where(hides, left, awaited),
        behind_s=np.where(across, message - left, 0.0),
    )


def _hops(layouts: Layouts) -> Int:
    """Transfers awaited while a pipeline with overlap fills, and again while it drains."""
    chunk_hops = layouts.pp * layouts.vpp - 1
    # a V has none at its turn; many micro-batches pass the first chunks again, unless paired
    returns = (layouts.num_microbatches > layouts.pp) & ~layouts.paired
    second_round = np.where(returns, layouts.pp - 2, 0)
    return np.where(layouts.v_shaped, chunk_hops - 1 + second_round, chunk_hops)
