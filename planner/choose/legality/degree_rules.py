"""Rules of the degrees tp, cp and ep: sizes that they must divide, axes of the framework."""

import math
from collections.abc import Iterator

import numpy as np

from planner.choose.legality.rule import Breaks, Rule, listed, one_of, rule
from planner.cost.scenario import Scenario
from planner.cost.shards.layouts import Layouts
from planner.describe.layout import Layout, divisors
from planner.describe.workload import parse_ramp
from planner.errors import shorten
from planner.units import either

_AXES = ("tp", "pp", "cp", "ep")


def _axis(name: str) -> Rule:
    @rule(f"{name} is not offered by the framework", name)
    def axis(q: Scenario, x: Layouts, y: Layout, breaks: Breaks) -> Iterator[str]:
        if breaks((getattr(x, name) > 1) & (name not in q.framework.axes)):
            model = ""
            if q.framework.code.models:
                odd = q.framework.code.unsupported_model(q.model, q.workload.sequence_length)
                model = f" for {q.model.name}" + (f" ({odd})" if odd else "")
            yield (
                f"{name} = {getattr(y, name)}: {q.framework.name} has no {name} axis{model}; use "
                f"{name} = 1 or another framework"
            )

    return axis


def _unsplit_samples(name: str) -> Rule:
    @rule(f"models trained on samples are not split over {name}", name)
    def unsplit(q: Scenario, x: Layouts, y: Layout, breaks: Breaks) -> Iterator[str]:
        traced = q.model.traced
        is_split = traced is not None and traced.is_split(name)
        if breaks((getattr(x, name) > 1) & q.model.counts_samples & (not is_split)):
            reason = getattr(traced, f"no_{name}", "")
            why = (
                f"cannot be split, as {reason}"
                if reason
                else ("is not a transformer and supports only data parallelism")
            )
            yield f"{name} = {getattr(y, name)}: {q.model.name} {why}; use {name} = 1"

    return unsplit


@rule("tp does not divide the heads", "tp", source="arXiv:1909.08053, section 3")
def _heads(q: Scenario, x: Layouts, y: Layout, breaks: Breaks) -> Iterator[str]:
    heads = q.model.num_heads
    if breaks(heads % x.tp != 0):
        yield f"tp = {y.tp} does not divide num_heads = {heads}; {one_of(heads)}"


@rule("tp does not divide the key-value heads", "tp")
def _kv_heads(q: Scenario, x: Layouts, y: Layout, breaks: Breaks) -> Iterator[str]:
    heads = q.model.num_kv_heads
    is_copied = q.framework.replicates_kv_heads & (x.tp % max(heads, 1) == 0)
    if breaks((heads % x.tp != 0) & ~is_copied & (q.model.latent_attention is None)):
        yield (
            f"tp = {y.tp} does not divide num_kv_heads = {heads}, and {q.framework.name} does "
            f"not replicate them; {one_of(heads)}"
        )


@rule("tp does not divide the feed-forward width", "tp")
def _ffn(q: Scenario, x: Layouts, y: Layout, breaks: Breaks) -> Iterator[str]:
    experts = q.model.experts
    width = q.model.ffn_size if experts is None or experts.num_dense_layers else 0
    if breaks(width % x.tp != 0):
        remedy = one_of(width, q.model.num_heads)
        yield f"tp = {y.tp} does not divide the feed-forward width {width}; {remedy}"


@rule("tp does not divide the Linear layers", "tp")
def _linears(q: Scenario, x: Layouts, y: Layout, breaks: Breaks) -> Iterator[str]:
    width = q.model.traced.split_width if q.model.traced is not None else 0
    if breaks(width % x.tp != 0):
        yield f"tp = {y.tp} does not divide the Linear layers' width {width}; {one_of(width)}"


@rule("tp straddles nodes", "tp")
def _node(q: Scenario, x: Layouts, y: Layout, breaks: Breaks) -> Iterator[str]:
    per_node = q.machine.node.num_devices
    if breaks((per_node % x.tp != 0) & (x.tp % per_node != 0)):
        yield (
            f"tp = {y.tp} neither divides nor is a multiple of the {per_node} ranks of a node of "
            f"{q.machine.name}; {one_of(per_node)}"
        )


@rule("the framework has another kind of context parallelism", "cp", "ulysses")
def _context_kind(q: Scenario, x: Layouts, y: Layout, breaks: Breaks) -> Iterator[str]:
    # ring attention, Ulysses, or both in two levels
    offered = q.framework.context
    is_ring, is_exchange = x.ulysses == 1, (x.ulysses > 1) & (x.ulysses == x.cp)
    is_offered = np.where(is_exchange, "ulysses" in offered, "two-level" in offered)
    if breaks((x.cp > 1) & ~np.where(is_ring, "ring" in offered, is_offered)):
        ways = {"ring": "1", "ulysses": f"{y.cp}", "two-level": "a divisor of cp between them"}
        yield (
            f"ulysses = {y.ulysses} with cp = {y.cp} is not offered by {q.framework.name} "
            f"({either(offered)}); use ulysses = {either([ways[kind] for kind in offered])}"
        )


@rule("ulysses does not divide the heads", "tp", "ulysses", source="arXiv:2309.14509, section 3")
def _exchanged_heads(q: Scenario, x: Layouts, y: Layout, breaks: Breaks) -> Iterator[str]:
    heads = {"num_heads": q.model.num_heads}
    if not q.framework.kernels.repeats_kv_heads and q.model.latent_attention is None:
        heads["num_kv_heads"] = q.model.num_kv_heads
    common = math.gcd(*heads.values())
    if breaks((x.ulysses > 1) & (common % (x.tp * x.ulysses) != 0)):
        counts = " and ".join(f"{name} = {count}" for name, count in heads.items())
        yield (
            f"ulysses = {y.ulysses}: tp * ulysses = {y.tp * y.ulysses} must divide {counts}; "
            f"use a product among {listed(divisors(common))}"
        )


@rule("cp excludes tp and pp", "cp", "tp", "pp")
def _context_alone(q: Scenario, x: Layouts, y: Layout, breaks: Breaks) -> Iterator[str]:
    if breaks((x.cp > 1) & (x.tp * x.pp > 1) & q.framework.context_alone):
        yield (
            f"cp = {y.cp} with tp = {y.tp} and pp = {y.pp}: {q.framework.name} does not "
            "combine context parallelism with them; use tp = 1 and pp = 1, or cp = 1"
        )


@rule("cp does not divide the sequence", "cp", "ulysses", source="arXiv:2407.21783, section 3.3.2")
def _sequence(q: Scenario, x: Layouts, y: Layout, breaks: Breaks) -> Iterator[str]:
    length = q.workload.sequence_length
    if breaks((x.cp > 1) & (length % np.where(x.ulysses == x.cp, x.cp, 2 * x.cp) != 0)):
        exchanges_heads = y.ulysses == y.cp
        pieces, divided = ("cp", "which") if exchanges_heads else ("2 * cp", "whose double")
        pieces_of = length if exchanges_heads else length / 2
        degrees = [d for d in divisors(length) if d <= 64 and pieces_of % d == 0]
        remedy = (
            f"a cp {divided} divides it, such as {listed(degrees)}" if degrees[1:] else "cp = 1"
        )
        yield (
            f"cp = {y.cp}: the sequence of {length} tokens is cut into {pieces} pieces; "
            f"use {remedy}"
        )


@rule("dp and micro_batch do not divide the ramp", "dp", "micro_batch")
def _ramp(q: Scenario, x: Layouts, y: Layout, breaks: Breaks) -> Iterator[str]:
    is_uneven = x.dp < 0
    for _, size in parse_ramp(q.workload.ramp):
        is_uneven = is_uneven | (size % (x.dp * x.micro_batch) != 0)
    if breaks(is_uneven):
        yield (
            f"ramp = {shorten(q.workload.ramp)} has batches that dp * micro_batch = "
            f"{y.dp * y.micro_batch} does not divide; change one of them"
        )


@rule("the pieces of the loss do not divide the sequence", "cp")
def _loss_chunks(q: Scenario, x: Layouts, y: Layout, breaks: Breaks) -> Iterator[str]:
    length, pieces = q.workload.sequence_length, q.framework.kernels.loss_chunks
    if breaks(length % (x.cp * pieces) != 0):
        yield (
            f"the sequence of {length} tokens over cp = {y.cp} is not a multiple of the {pieces} "
            f"pieces of the loss of {q.framework.name}; use a multiple, or another framework"
        )


@rule(
    "tp does not divide the sequence (sequence parallel)",
    *("tp", "cp", "sequence_parallel"),
    source="arXiv:2205.05198, section 4.2.2",
)
def _split_sequence(q: Scenario, x: Layouts, y: Layout, breaks: Breaks) -> Iterator[str]:
    length = q.workload.sequence_length
    if breaks(x.splits_sequence & ((x.tp == 1) | (length % (x.tp * x.cp) != 0))):
        yield (
            f"sequence_parallel with tp = {y.tp}, cp = {y.cp} and {length} tokens: needs "
            "tp > 1 and a sequence that tp * cp divides; switch it off or change tp"
        )


@rule("the framework has no sequence parallelism", "tp", "sequence_parallel")
def _sequence_kind(q: Scenario, x: Layouts, y: Layout, breaks: Breaks) -> Iterator[str]:
    name, kind = q.framework.name, q.framework.sequence_parallel
    if breaks(x.splits_sequence & (kind == "never")):
        yield f"sequence_parallel: {name} splits no sequence over tp; leave it out"


@rule("overlap of tp needs sequence parallelism inside a node", "tp", "sequence_parallel")
def _user_buffers(q: Scenario, x: Layouts, y: Layout, breaks: Breaks) -> Iterator[str]:
    per_node = q.machine.node.num_devices
    only_inside = q.framework.communication.overlap_tensor_in_node
    if breaks(~((x.tp > 1) & (x.tp <= per_node) & x.splits_sequence) & only_inside):
        inside = f"use both with tp = 2 to {per_node}, or " if per_node > 1 else ""
        yield (
            f"tp = {y.tp} {'with' if y.sequence_parallel else 'without'} sequence_parallel: "
            f"{q.framework.name} overlaps tensor parallelism only with sequence_parallel inside a "
            f"node of {per_node}; {inside}leave its switch out"
        )


@rule("expert_imbalance exceeds ep", "ep")
def _imbalance(q: Scenario, x: Layouts, y: Layout, breaks: Breaks) -> Iterator[str]:
    uneven = q.workload.expert_imbalance
    # the fullest of ep ranks gets at most every token
    if breaks((x.ep > 1) & (uneven > x.ep)):
        yield (
            f"expert_imbalance = {uneven:g} with ep = {y.ep}: a rank that gets every token has "
            f"{y.ep} times the mean; use {y.ep} or less, or ep of {uneven:g} or more"
        )


@rule("etp is not offered by the framework", "tp", "ep", "etp")
def _expert_split(q: Scenario, x: Layouts, y: Layout, breaks: Breaks) -> Iterator[str]:
    if q.model.experts is None:
        if breaks(x.etp != 0):
            yield f"etp = {y.etp}: {q.model.name} has no experts; use etp = 0"
        return
    offered, chosen = q.framework.expert_tensor_parallel, x.expert_tp_in(q.framework)
    is_unsplit = (chosen == 1) & (x.ep > 1) & ("one" in offered)
    same = (chosen == x.tp) & ((x.ep == 1) | ("tp" in offered))
    if breaks(~(is_unsplit | same | ("any" in offered))):
        words = {"tp": f"{y.tp} (tp)", "one": "1"}
        usual = ("tp",) if y.ep == 1 else offered
        yield (
            f"etp = {y.etp} with ep = {y.ep} is not offered by {q.framework.name}; use "
            f"{either([words[word] for word in usual if word in words])}"
        )


@rule("etp does not divide the width of experts", "tp", "ep", "etp")
def _expert_width(q: Scenario, x: Layouts, y: Layout, breaks: Breaks) -> Iterator[str]:
    width = q.model.experts.ffn_size if q.model.experts else 0
    split = x.expert_tp_in(q.framework)
    if breaks(width % split != 0):
        name = f"etp = {split}" if y.etp else f"tp = {y.tp}"
        yield (
            f"{name} does not divide the feed-forward width {width} of an expert; "
            f"{one_of(width, q.model.num_heads)}"
        )


@rule("ep does not divide experts and replicas", "ep", "etp", "dp", "cp", "tp")
def _spread(q: Scenario, x: Layouts, y: Layout, breaks: Breaks) -> Iterator[str]:
    experts = q.model.experts.num_experts if q.model.experts else 1
    splits = x.expert_tp_in(q.framework)
    if breaks((experts % x.ep != 0) | (x.dp * x.cp * x.tp % (x.ep * splits) != 0)):
        split, ranks = int(splits), y.dp * y.cp * y.tp
        divides = f"ep = {y.ep} must divide num_experts = {experts}"
        if q.model.experts is None:
            yield f"ep = {y.ep}: {q.model.name} has no experts; use ep = 1"
        elif split in (1, y.tp):
            axes, group = "dp * cp" if split == y.tp else "dp * cp * tp", ranks // split
            yield f"{divides} and {axes} = {group}; {one_of(experts, group)}"
        else:
            yield (
                f"{divides}, and ep * etp = {y.ep * split} must divide dp * cp * tp = {ranks}; "
                "change one of them"
            )


@rule("experts with tp need sequence parallelism", "tp", "ep", "etp", "sequence_parallel")
def _routes_once(q: Scenario, x: Layouts, y: Layout, breaks: Breaks) -> Iterator[str]:
    # each rank has its own part of the tokens, so each token is sent to its experts once
    routes_own = q.model.experts is not None and q.framework.communication.routes_own_tokens
    is_spread = (x.expert_tp_in(q.framework) != x.tp) | routes_own
    if breaks(is_spread & (x.tp > 1) & ~x.splits_sequence):
        yield (
            f"tp = {y.tp} without sequence parallelism would have {q.framework.name} send every "
            "token to its experts tp times; switch sequence_parallel on or use tp = 1"
        )


DEGREES: tuple[Rule, ...] = (
    *map(_axis, _AXES),
    *map(_unsplit_samples, _AXES),
    *(_heads, _kv_heads, _ffn, _linears, _node),
    *(_context_kind, _exchanged_heads, _context_alone, _sequence),
    *(_ramp, _loss_chunks, _sequence_kind, _split_sequence, _user_buffers),
    *(_imbalance, _expert_split, _expert_width, _spread, _routes_once),
)
