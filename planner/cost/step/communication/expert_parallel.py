"""Expert parallelism: dispatch and combine of tokens, and expert tensor parallelism."""

import numpy as np
from numpy.typing import ArrayLike

from planner.cost.arrays import Float
from planner.cost.network import collectives
from planner.cost.network.groups import Groups
from planner.cost.scenario import Scenario
from planner.cost.shards.layouts import Layouts
from planner.cost.shards.tensor_split import expert_load
from planner.describe.model.block import Block
from planner.describe.model.model import Model


def expert_s(
    scenario: Scenario, block: Block, layouts: Layouts, groups: Groups
) -> tuple[Float, Float]:
    """Dispatch and combine of expert layers: two all-to-alls forward, two backward [s].

    Counted: the residual stream times top_k, a rank's slice with sequence parallelism; uneven
    routing (`expert_load`), narrower elements in dispatch; if tokens go once per node, only
    `crossing_part` on the network. Left out: overlap, gathers of split experts (`split_expert_s`).
    Lepikhin et al. 2020, arXiv:2006.16668.
    """
    size, rules = _sent_bytes(scenario, block, layouts), scenario.framework.communication
    # dispatch in forward and the gradient of combine in backward may use narrower elements
    narrow = rules.dispatch_bytes / scenario.workload.compute_bytes or 1.0
    transfers, machine = 1 + narrow, scenario.machine
    # nodes of one NVLink domain forward nothing: every rank reaches every other
    direct_all_to_all = machine.network is None or machine.domain is not None
    if direct_all_to_all or not rules.experts_once_per_node:
        forward = transfers * collectives.all_to_all_s(groups.expert, size)
    else:
        crossing = crossing_part(scenario.model, groups.expert.nodes)
        forward = transfers * collectives.forwarded_all_to_all_s(groups.expert, size, crossing)
    return forward, forward


def _sent_bytes(scenario: Scenario, block: Block, layouts: Layouts) -> Float:
    """Bytes of the tokens that a rank dispatches, or receives [B]."""
    workload = scenario.workload
    tokens = layouts.tokens(workload.sequence_length) * block.dispatch_top_k
    size = tokens * scenario.model.hidden_size * float(workload.compute_bytes)
    size = size * expert_load(workload, layouts)
    return size / np.where(layouts.splits_sequence, layouts.tp, 1)


def split_expert_s(
    scenario: Scenario, block: Block, layouts: Layouts, groups: Groups
) -> tuple[Float, Float]:
    """Expert tensor parallelism: all-gather of dispatched tokens, reduce-scatter of results [s].

    Counted: both forward and again backward, if ranks route their own tokens; otherwise 0, as the
    stream is already gathered (`tensor_s`). Left out: overlap. Liu et al. 2025, arXiv:2504.14960,
    section 3; experts.md#experts.
    """
    if not scenario.framework.communication.routes_own_tokens:
        zero = np.zeros(np.shape(layouts.tp))
        return zero, zero
    gathered = _sent_bytes(scenario, block, layouts) * layouts.expert_tp
    group = groups.expert_tensor
    both = collectives.all_gather_s(group, gathered) + collectives.reduce_scatter_s(group, gathered)
    return both, both


def crossing_part(model: Model, nodes: ArrayLike) -> Float:
    """Share of token copies that cross nodes, if each node receives a token once [1].

    Counted: nodes that hold the top_k experts, chosen evenly within the groups that the router
    picks (node-limited routing), less the token's own node. Left out: uneven routing. DeepSeek-AI
    2024, arXiv:2412.19437, section 2.1.2.
    """
    experts, nodes = model.experts, np.asarray(nodes, dtype=float)
    assert experts is not None
    reached = nodes * (1 - (1 - 1 / nodes) ** experts.top_k)
    limit = experts.top_groups * np.maximum(nodes / experts.num_groups, 1)
    if experts.num_groups > 1:
        reached = np.minimum(reached, limit)
    return reached * (nodes - 1) / nodes / experts.top_k


def exposed_experts_s(
    scenario: Scenario, layouts: Layouts, traffic_s: Float, compute_s: Float
) -> Float:
    """Exposed dispatch and combine of a block, forward and backward [s].

    Counted: all of it; with merged passes only what another micro-batch's computation does not
    hide, and contention. Left out: computation that waits for the exchange. Megatron-LM,
    transformer_config.py: overlap_moe_expert_parallel_comm; experts.md#experts.
    """
    framework = scenario.framework
    left = np.maximum(traffic_s - compute_s, 0.0)
    left = left + framework.communication.contention.value * np.minimum(traffic_s, compute_s)
    return np.where(layouts.merges_passes(framework), left, traffic_s)
