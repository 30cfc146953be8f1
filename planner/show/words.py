"""Words: what is said of a plan and of an estimate, in the same sentences everywhere."""

from __future__ import annotations

from planner.choose.plan import Plan
from planner.choose.verdicts.fixes import shortage_summary
from planner.choose.verdicts.strategy_verdicts import Verdict
from planner.cost.estimate import Estimate
from planner.describe.machine import Machine
from planner.describe.workload import Workload
from planner.show.catalogue.layout_words import layout_words
from planner.units import counted, either, format_amount, format_bytes, format_count, format_seconds

__all__ = [
    "alternative",
    "beside_fastest",
    "cost",
    "decided",
    "doubt",
    "fate",
    "figures",
    "fits",
    "instead",
    "interval",
    "job",
    "memory_interval",
    "metrics",
    "nearest",
    "other_batches",
    "probability",
    "queues",
    "rate_unit",
    "verdict",
    "waiting",
]


def _place(plan: Plan) -> str:
    return (
        f"{counted(plan.nodes, 'node')} of {plan.machine} ({counted(plan.num_devices, 'device')})"
    )


def job(plan: Plan) -> str:
    """What was asked."""
    workload = plan.workload
    return (
        f"{plan.model} ({format_count(plan.num_params)} parameters) on {_place(plan)}, "
        f"{_batch(workload)} per step, "
        f"{workload.precision}"
    )


def _batch(workload: Workload) -> str:
    """What a step trains on."""
    length = "" if workload.unit == "samples" else f" x {workload.sequence_length:,}"
    return f"{workload.global_batch:,}{length} {workload.unit}"


def rate_unit(estimate: Estimate) -> str:
    """What is counted by the second: tokens, or samples where each is a token alone.

    >>> from planner.choose.planning import estimate
    >>> rate_unit(estimate("cosmoflow", "polaris", Layout(dp=4)))
    'samples'
    """
    tokens = estimate.tokens_per_s * estimate.step_time_s
    return "samples" if round(tokens) == estimate.layout.global_batch else "tokens"


def verdict(plan: Plan) -> str:
    """The answer in one sentence, and whether it is sure."""
    estimate = plan.recommended
    if estimate is None:
        return nearest(plan)
    recommendation = (
        f"{plan.model} fits on {_place(plan)}; recommended is {layout_words(estimate.layout)} with "
        f"{estimate.framework}: {format_seconds(estimate.step_time_s)} per step."
    )
    parts = (
        recommendation,
        instead(plan),
        doubt(estimate),
        beside_fastest(plan),
        other_batches(plan),
    )
    return " ".join(part for part in parts if part)


def instead(plan: Plan) -> str:
    """Of a plan for another batch than the one asked for: that it is; else empty."""
    if plan.asked_batch in (0, plan.workload.global_batch):
        return ""
    return (
        f"This is for {plan.workload.global_batch:,} {plan.workload.batch_unit} a step: no layout "
        f"that one would run, and that files can be written for, shares {plan.asked_batch:,}."
    )


def doubt(estimate: Estimate) -> str:
    """Of a tight layout: by how much runs have missed."""
    if not estimate.tight:
        return ""
    return f"It is tight: {memory_interval(estimate)}. Run it once first."


def beside_fastest(plan: Plan) -> str:
    """What the fastest layout would gain over the recommended one, and at what price."""
    best, estimate = plan.best, plan.recommended
    if best is None or estimate is None or best.step_time_s >= estimate.step_time_s:
        return "No layout is faster." if estimate else ""
    less, price = 1 - best.step_time_s / estimate.step_time_s, _price(best, estimate)
    return (
        f"The fastest, {best.layout} with {best.framework}, takes "
        f"{format_seconds(best.step_time_s)} ({100 * less:.0f} % less)"
        + (f", for {price}." if price else ".")
    )


def other_batches(plan: Plan) -> str:
    """Which nearby global batches the devices share evenly, and what that brings."""
    offered = [x for x in plan.batches if x.global_batch != plan.workload.global_batch]
    if not offered:
        return ""
    offers = "; ".join(
        f"with {offer.global_batch:,}, {offer.estimate.layout} [{offer.estimate.framework}] takes "
        f"{format_seconds(offer.estimate.step_time_s)}{_rate(offer.speedup)}"
        for offer in offered
    )
    batch = plan.asked_batch or plan.workload.global_batch
    return f"{batch:,} {plan.workload.batch_unit} do not divide evenly: {offers}."


def _rate(speedup: float | None) -> str:
    if speedup is None:
        return ""
    times = round(speedup, 1)
    return ", as many a second" if times == 1 else f", {times:g} times as many a second"


_MORE = (
    ("tp", "tensor parallelism over {}"),
    ("pp", "{} pipeline stages"),
    ("vpp", "{} chunks a stage"),
    ("cp", "context parallelism over {}"),
    ("ep", "expert parallelism over {}"),
    ("zero_stage", "ZeRO stage {}"),
    ("micro_batch", "micro-batches of {}"),
)


def _price(best: Estimate, recommended: Estimate) -> str:
    """What a layout takes that another does not, in words."""
    prices = [
        text.format(getattr(best.layout, name))
        for name, text in _MORE
        if getattr(best.layout, name) > getattr(recommended.layout, name)
    ]
    if best.layout.offload not in ("none", recommended.layout.offload):
        prices.append(f"offload ({best.layout.offload})")
    if best.framework != recommended.framework:
        prices.append(best.framework)
    if best.out_of_memory_probability > recommended.out_of_memory_probability:
        chance = probability(best.out_of_memory_probability)
        prices.append(f"a chance of {chance} to run out of memory")
    return ", ".join(prices[:-1]) + " and " + prices[-1] if len(prices) > 1 else "".join(prices)


def probability(value: float) -> str:
    """A probability in percent, none of them certain.

    >>> probability(0.0021), probability(0.347), probability(0.998)
    ('< 1 %', '35 %', '> 99 %')
    """
    if value < 0.005:
        return "< 1 %"
    return "> 99 %" if value > 0.99 else f"{100 * value:.0f} %"


def memory_interval(estimate: Estimate) -> str:
    """The range in which the memory of nine of ten measured runs lay."""
    low, high = estimate.interval_memory_bytes
    return f"90 % of measured runs so estimated took {format_bytes(low)} to {format_bytes(high)}"


def decided(plan: Plan) -> str:
    """How many layouts were looked at, and how many of them bounds decided."""
    count, full = plan.num_candidates, plan.num_estimated
    if full == count:
        return f"{count:,} layouts evaluated"
    return f"{count:,} layouts decided, {full:,} of them estimated in full and the rest by bounds"


def nearest(plan: Plan) -> str:
    """Of a plan that does not fit: what comes closest, and what would help."""
    entry = plan.closest
    if entry is None or entry.estimate is None:
        sizes = plan.legal_batches
        batch = f"of {_either(sizes)}" if sizes else "that is a multiple of the devices"
        return (
            f"{plan.model} cannot be laid out on {_place(plan)} at all: no strategy has a legal "
            f"layout; try a global batch {batch}."
        )
    return (
        f"{plan.model} does not fit on {_place(plan)}. Closest is {entry.name}: it {entry.why}. "
        f"{_help(plan, entry)}"
    )


def _help(plan: Plan, entry: Verdict) -> str:
    """What would make a job fit that does not."""
    if plan.enough_nodes:
        return f"It fits on {counted(plan.enough_nodes, 'node')} with the same batch."
    if plan.batches:
        return other_batches(plan)
    able = [
        verdict.fix
        for verdict in (entry, *plan.strategies)
        if verdict.fix and _fills(plan, verdict)
    ]
    if able:
        return f"Cheapest fix: {able[0]}."
    if "per rank" in entry.why:
        return (
            "More nodes, as far as there are, were not found to help; shorten the sequence, or "
            "take devices of more memory."
        )
    return "Take nodes of more memory or disk."


def _fills(plan: Plan, entry: Verdict) -> bool:
    """Whether a strategy uses all devices, or would."""
    return entry.estimate is None or entry.estimate.layout.world == plan.num_devices


def _either(sizes: list[int]) -> str:
    return either(f"{size:,}" for size in sizes)


def fits(estimate: Estimate) -> str:
    """Whether one layout fits, in a word or two."""
    if not estimate.fits:
        return "Does not fit"
    return "Fits, but tight" if estimate.tight else "Fits"


def fate(estimate: Estimate, machine: Machine) -> str:
    """Whether one layout fits, and by how much it does not."""
    limit = machine.device.memory_bytes.value
    total = estimate.memory_bytes["total"]
    if estimate.tight:
        return (
            f"Fits, but tight: {format_bytes(limit - total)} free per device; "
            f"{memory_interval(estimate)}: run it once first"
        )
    if estimate.fits:
        return f"Fits: {format_bytes(limit - total)} free per device"
    return f"Does not fit: {shortage_summary(estimate, machine)}"


def figures(estimate: Estimate) -> str:
    """Write step time, utilisation and throughput of an estimate."""
    return (
        f"step {format_seconds(estimate.step_time_s)} ({interval(estimate)}), "
        f"MFU {100 * estimate.mfu:.1f} %, "
        f"{format_amount(estimate.tokens_per_s)} {rate_unit(estimate)}/s"
    )


def waiting(estimate: Estimate, numbered: bool) -> str:
    """What numbers, if there are, and gaps of a drawn step are, in its own figures."""
    parts, step = estimate.step_time_parts_s, estimate.step_time_s
    bubble = 100 * parts["pipeline_bubble"] / step
    transfer = 100 * parts["pipeline_transfer"] / step
    numbers = "Numbers are micro-batches. " if numbered else ""
    if estimate.layout.pp == 1:
        return f"{numbers}There is one stage: it waits for no other."
    return (
        f"{numbers}Gaps are waiting: of the stage that works longest the "
        f"bubble is {bubble:.1f} % of the step, transfers {transfer:.1f} %."
    )


def interval(estimate: Estimate) -> str:
    """The range in which nine of ten measured runs of this class lay."""
    low, high = estimate.interval_step_time_s
    return f"90 % between {format_seconds(low)} and {format_seconds(high)}"


def alternative(estimate: Estimate, better: Estimate | None) -> str:
    """What the same framework can do for the job of a configured layout, in one sentence."""
    step = format_seconds(estimate.step_time_s) if estimate.fits else "does not fit"
    if better is None:
        verdict = "is faster" if estimate.fits else "fits either"
        return (
            f"Your layout: {step}; no layout of {estimate.framework} that was searched {verdict}."
        )
    return (
        f"Your layout: {step}; {better.framework} can do {format_seconds(better.step_time_s)} with "
        f"{better.layout}."
    )


def cost(plan: Plan, estimate: Estimate) -> tuple[str, str, str]:
    """What of the training is counted, how long that takes, and its node-hours."""
    tokens, node_hours = plan.workload.all_tokens, plan.node_hours(estimate)
    amount = f"steps of {format_count(tokens)} {plan.workload.unit}" if tokens else "1,000 steps"
    duration_s = plan.duration_s(estimate) if tokens else 1000 * estimate.step_time_s
    return amount, format_seconds(duration_s), f"{format_amount(node_hours)} node-hours"


def queues(plan: Plan, estimate: Estimate) -> str:
    """Which queues admit the job, and into how many runs its length must be cut.

    Empty where the machine has none that are known.
    """
    if not plan.queued:
        return ""
    if not plan.queues:
        return f"No queue of {plan.machine} is known to admit {counted(plan.nodes, 'node')}."
    named = ", ".join(
        f"{q.name} (up to {q.max_hours:g} h{', by request' * q.on_request})" for q in plan.queues
    )
    text = f"Queues that admit {counted(plan.nodes, 'node')}: {named}."
    hours = plan.duration_s(estimate) / 3600
    longest = max(plan.queues, key=lambda queue: (not queue.on_request, queue.max_hours))
    runs = -(-hours // longest.max_hours)
    if runs > 1:
        text += f" Its steps alone take at least {counted(runs, 'run')} in {longest.name}."
    return text


def metrics(plan: Plan, estimate: Estimate, limit_bytes: float) -> list[tuple[str, str, str]]:
    """Label, value and small print of the numbers that matter first."""
    per_device = estimate.tokens_per_s / plan.num_devices
    memory = estimate.memory_bytes["total"]
    low, high = (format_bytes(value) for value in estimate.interval_memory_bytes)
    amount, duration, node_hours = cost(plan, estimate)
    return [
        ("step time", format_seconds(estimate.step_time_s), interval(estimate)),
        (
            f"{rate_unit(estimate)} per second",
            format_amount(estimate.tokens_per_s),
            f"{format_amount(per_device)} per device",
        ),
        ("model FLOPs utilisation", f"{100 * estimate.mfu:.1f} %", "of the dense peak"),
        ("memory per device", format_bytes(memory), f"90 % between {low} and {high}"),
        (amount, duration, node_hours),
    ]
