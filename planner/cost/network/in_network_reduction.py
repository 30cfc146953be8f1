"""In-network reduction: all-reduces in switches of a node (NVLS) and a network (SHARP)."""

import numpy as np
from numpy.typing import ArrayLike

from planner.cost.arrays import Float
from planner.cost.constants import network_constants
from planner.cost.network.topology import GroupView, inter_node_latency_s


def _through_switch_s(group: GroupView, size_bytes: Float) -> tuple[Float, Float]:
    """Start-up and transfer time of an all-reduce in the switch of each node or domain [s]."""
    values, g = network_constants().in_switch, group.linked
    # each of g devices sends its whole buffer and distributes 1/g of the sum
    rate = group.switch_bytes_per_s
    per_byte_s = (1 + 1 / g) / np.where(np.asarray(rate) > 0, rate, np.nan)
    ahead = np.minimum(size_bytes, g * values.ahead_bytes.value)
    return values.step_s.value + ahead * per_byte_s, size_bytes * per_byte_s


def _infinite_s(group: GroupView, size_bytes: ArrayLike) -> Float:
    return np.full(np.broadcast_shapes(np.shape(group.size), np.shape(size_bytes)), np.inf)


def switch_all_reduce_s(group: GroupView, size_bytes: ArrayLike) -> Float:
    """All-reduce in each node's switch, a tree between nodes; infinite if it cannot reduce [s].

    A domain of nodes with such switches (NVL72) counts as one node. Counted: (1 + 1/g) of the
    buffer on the link of each of its g devices, the bytes that fill
    the pipeline first, the switch's latency; between nodes the buffer up and down the tree (once
    for two nodes), the latency of its levels, and the switch's lower rate with a tree. Left out:
    phases, registered buffers. Klenk et al. 2020, doi:10.1109/ISCA45697.2020.00085; NVIDIA/nccl,
    src/graph/tuning.cc; network.md#in-network-reduction.
    """
    if not np.any(group.switch_bytes_per_s):
        return _infinite_s(group, size_bytes)
    size_bytes, m, values = (
        np.asarray(size_bytes, dtype=float),
        group.islands,
        network_constants().in_switch,
    )
    start, inside = _through_switch_s(group, size_bytes)
    part = np.where(m > 2, values.part_of_several.value, values.part_of_two.value)
    inside = inside / np.where(m > 1, part, 1.0)
    piece = size_bytes / network_constants().inter_node.tree_pieces.value
    levels = 2 * np.log2(np.maximum(m, 1)) * inter_node_latency_s(group, piece)
    passes = np.where(m > 2, 2.0, m - 1)
    between = passes * size_bytes / group.network_bytes_per_s
    time = start + np.hypot(levels, np.maximum(inside, between))
    return np.where((group.linked > 1) & (np.asarray(group.switch_bytes_per_s) > 0), time, np.inf)


def network_all_reduce_s(group: GroupView, size_bytes: ArrayLike) -> Float:
    """All-reduce in the network's switches; infinite if they cannot reduce, or in one node [s].

    Counted: the buffer once through the node's interfaces; inside the node its switch if that
    reduces too, else a chain to the interfaces and back, which moves the buffer twice; NCCL's
    latency of either. Left out: levels of the network's tree, limits on the number of groups.
    Graham et al. 2016, doi:10.1109/COMHPC.2016.006; NVIDIA/nccl, src/graph/tuning.cc;
    network.md#in-network-reduction.
    """
    if not group.network_part:
        return _infinite_s(group, size_bytes)
    size_bytes, values = np.asarray(size_bytes, dtype=float), network_constants().in_network
    g, several = group.local, group.local > 1
    chain = 2 * values.chain_step_s.value / network_constants().reference_step_s.value
    start = values.chain_s.value + (g - 1) * chain * group.local_latency_s
    inside = np.where(several, 2 * size_bytes / group.local_bytes_per_s, 0.0)
    if np.any(group.switch_bytes_per_s):
        several = (group.linked > 1) & (np.asarray(group.switch_bytes_per_s) > 0)
        ahead, once = _through_switch_s(group, size_bytes)
        start = np.where(several, values.switch_s.value + ahead, start)
        inside = np.where(several, once, inside)
    between = size_bytes / (group.network_part * group.network_bytes_per_s)
    return np.where(group.islands > 1, start + np.maximum(inside, between), np.inf)
