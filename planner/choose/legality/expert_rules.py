"""Rules of experts: how they lie on the ranks of the layers around them."""

from __future__ import annotations

import numpy as np

from planner.choose.legality.job_checks import listed
from planner.choose.legality.rule import Rule
from planner.cost.arrays import Mask
from planner.cost.scenario import Scenario
from planner.cost.shards.layouts import Layouts
from planner.describe.layout import Layout, divisors
from planner.units import either

__all__ = ["EXPERTS"]


def _width(q: Scenario, x: Layouts) -> Mask:
    width = q.model.experts.ffn_size if q.model.experts else 0
    return width % x.settled(q.framework).expert_tp == 0


def _width_message(q: Scenario, x: Layout) -> str:
    split, experts = int(Layouts.of(x).settled(q.framework).expert_tp), q.model.experts
    assert experts is not None
    width = experts.ffn_size
    name = f"etp = {split}" if x.etp else f"tp = {x.tp}"
    return (
        f"{name} does not divide the feed-forward width {width} of an expert; use one of "
        f"{listed(divisors(int(np.gcd(width, q.model.num_heads))))}"
    )


def _offered(q: Scenario, x: Layouts) -> Mask:
    offered, chosen = q.framework.expert_tensor_parallel, x.settled(q.framework).expert_tp
    if q.model.experts is None:
        return x.etp == 0
    is_unsplit = (chosen == 1) & (x.ep > 1) & ("one" in offered)
    same = (chosen == x.tp) & ((x.ep == 1) | ("tp" in offered))
    return is_unsplit | same | ("any" in offered)


def _offered_message(q: Scenario, x: Layout) -> str:
    if q.model.experts is None:
        return f"etp = {x.etp}: {q.model.name} has no experts; use etp = 0"
    words = {"tp": f"{x.tp} (tp)", "one": "1"}
    offered = ("tp",) if x.ep == 1 else q.framework.expert_tensor_parallel
    return (
        f"etp = {x.etp} with ep = {x.ep} is not offered by {q.framework.name}; use "
        f"{either([words[word] for word in offered if word in words])}"
    )


def _spread(q: Scenario, x: Layouts) -> Mask:
    experts = q.model.experts.num_experts if q.model.experts else 1
    ranks = x.dp * x.cp * x.tp
    return (experts % x.ep == 0) & (ranks % (x.ep * x.settled(q.framework).expert_tp) == 0)


def _spread_message(q: Scenario, x: Layout) -> str:
    if q.model.experts is None:
        return f"ep = {x.ep}: {q.model.name} has no experts; use ep = 1"
    experts, split = q.model.experts.num_experts, int(Layouts.of(x).settled(q.framework).expert_tp)
    ranks = x.dp * x.cp * x.tp
    if split in (1, x.tp):
        axes = "dp * cp" if split == x.tp else "dp * cp * tp"
        group = ranks // split
        common = listed(divisors(int(np.gcd(experts, group))))
        rule = f"must divide num_experts = {experts} and {axes} = {group}; use one of {common}"
        return f"ep = {x.ep} {rule}"
    return (
        f"ep = {x.ep} must divide num_experts = {experts}, and ep * etp = {x.ep * split} must "
        f"divide dp * cp * tp = {ranks}; change one of them"
    )


def _parts(q: Scenario, x: Layouts) -> Mask:
    """Each rank sends a token to its experts once, because it has its own part of the tokens."""
    together = x.settled(q.framework).expert_tp == x.tp
    if q.model.experts and q.framework.communication.routes_own_tokens:
        together = np.zeros_like(together)
    return together | (x.tp == 1) | x.splits_sequence


def _uneven(q: Scenario, x: Layouts) -> Mask:
    """The fullest of ep ranks gets at most every token."""
    return (x.ep == 1) | (q.workload.expert_imbalance <= x.ep)


def _uneven_message(q: Scenario, x: Layout) -> str:
    uneven = q.workload.expert_imbalance
    return (
        f"expert_imbalance = {uneven:g} with ep = {x.ep}: a rank that gets every token has {x.ep} "
        f"times the mean; use {x.ep} or less, or ep of {uneven:g} or more"
    )


EXPERTS: tuple[Rule, ...] = (
    Rule("expert_imbalance exceeds ep", ("ep",), _uneven, _uneven_message),
    Rule("etp is not offered by the framework", ("tp", "ep", "etp"), _offered, _offered_message),
    Rule("etp does not divide the width of experts", ("tp", "ep", "etp"), _width, _width_message),
    Rule(
        "ep does not divide experts and replicas",
        ("ep", "etp", "dp", "cp", "tp"),
        _spread,
        _spread_message,
    ),
    Rule(
        "experts beside tp need sequence parallelism",
        ("tp", "ep", "etp", "sequence_parallel"),
        _parts,
        lambda q, x: (
            f"tp = {x.tp} without sequence parallelism would have {q.framework.name} send every "
            "token to its experts tp times; switch sequence_parallel on or use tp = 1"
        ),
    ),
)
