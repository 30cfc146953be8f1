"""Rules of context parallelism: how its ranks attend to each other's tokens."""

from __future__ import annotations

import numpy as np

from planner.choose.legality.job_checks import listed
from planner.choose.legality.rule import Rule
from planner.cost.arrays import Mask
from planner.cost.scenario import Scenario
from planner.cost.shards.layouts import Layouts
from planner.describe.layout import Layout, divisors
from planner.units import either

__all__ = ["CONTEXT"]


def _kind(q: Scenario, x: Layouts) -> Mask:
    """The framework has this kind: keys and values in a ring, tokens for heads, or both."""
    offered = q.framework.context
    is_ring, is_exchange = x.ulysses == 1, (x.ulysses > 1) & (x.ulysses == x.cp)
    is_offered = np.where(is_exchange, "ulysses" in offered, "two-level" in offered)
    return (x.cp == 1) | np.where(is_ring, "ring" in offered, is_offered)


def _kind_message(q: Scenario, x: Layout) -> str:
    ways = {"ring": "1", "ulysses": f"{x.cp}", "two-level": "a divisor of cp between them"}
    use = either([ways[kind] for kind in q.framework.context])
    return (
        f"ulysses = {x.ulysses} with cp = {x.cp} is not offered by {q.framework.name} "
        f"({either(q.framework.context)}); use ulysses = {use}"
    )


def _heads(q: Scenario, x: Layouts) -> Mask:
    """The ranks that exchange heads share those of a tensor-parallel rank evenly."""
    ranks = x.tp * x.ulysses
    even = q.model.num_heads % ranks == 0
    if not q.framework.kernels.repeats_kv_heads and q.model.latent_attention is None:
        even = even & (q.model.num_kv_heads % ranks == 0)
    return (x.ulysses == 1) | even


def _heads_message(q: Scenario, x: Layout) -> str:
    heads = {"num_heads": q.model.num_heads}
    if not q.framework.kernels.repeats_kv_heads and q.model.latent_attention is None:
        heads["num_kv_heads"] = q.model.num_kv_heads
    common = int(np.gcd.reduce(list(heads.values())))
    counts = " and ".join(f"{name} = {count}" for name, count in heads.items())
    return (
        f"ulysses = {x.ulysses}: tp * ulysses = {x.tp * x.ulysses} ranks share {counts} evenly; "
        f"use a product among {listed(divisors(common))}"
    )


def _sequence(q: Scenario, x: Layouts) -> Mask:
    pieces = np.where(x.ulysses == x.cp, x.cp, 2 * x.cp)
    return (x.cp == 1) | (q.workload.sequence_length % pieces == 0)


def _sequence_message(q: Scenario, x: Layout) -> str:
    length, exchanges_heads = q.workload.sequence_length, x.ulysses == x.cp
    pieces, divided = ("cp", "which") if exchanges_heads else ("2 * cp", "whose double")
    degrees = [d for d in divisors(length if exchanges_heads else length // 2) if d <= 64]
    return (
        f"cp = {x.cp}: the sequence of {length} tokens is cut into {pieces} pieces; use a cp "
        f"{divided} divides it, such as {listed(degrees)}"
    )


CONTEXT: tuple[Rule, ...] = (
    Rule(
        "the framework has another kind of context parallelism",
        ("cp", "ulysses"),
        _kind,
        _kind_message,
    ),
    Rule("ulysses does not divide the heads", ("tp", "ulysses"), _heads, _heads_message),
    Rule(
        "cp excludes tp and pp",
        ("cp", "tp", "pp"),
        lambda q, x: (x.cp == 1) | (x.tp * x.pp == 1) | (not q.framework.context_alone),
        lambda q, x: (
            f"cp = {x.cp} with tp = {x.tp} and pp = {x.pp}: {q.framework.name} runs context "
            "parallelism without both; use tp = 1 and pp = 1, or cp = 1"
        ),
    ),
    Rule("cp does not divide the sequence", ("cp", "ulysses"), _sequence, _sequence_message),
)
