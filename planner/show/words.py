"""Words: sentences about plans and estimates, the same in the terminal, notebooks and pages."""

from __future__ import annotations

from planner.choose.jobs.alternatives import Alternative
from planner.choose.plan import Plan
from planner.choose.preferences import preferences
from planner.choose.verdicts.fixes import shortage_summary
from planner.choose.verdicts.strategy_verdicts import Verdict
from planner.cost.estimate import Estimate
from planner.describe.machine import Machine
from planner.show.layout_words import layout_words
from planner.units import counted, either, format_amount, format_bytes, format_count, format_seconds


def _place(plan: Plan) -> str:
    devices = counted(plan.num_devices, "device")
    return f"{counted(plan.nodes, 'node')} of {plan.machine} ({devices})"


def job_sentence(plan: Plan) -> str:
    """Describe the job of a plan."""
    workload = plan.workload
    length = "" if workload.unit == "samples" else f" x {workload.sequence_length:,}"
    return (
        f"{plan.model} ({format_count(plan.num_params)} parameters) on {_place(plan)}, "
        f"{workload.global_batch:,}{length} {workload.unit} per step, {workload.precision}"
    )


def throughput_unit(estimate: Estimate) -> str:
    """Name the unit of throughput: tokens, or samples if a sample is a single token."""
    tokens = estimate.tokens_per_s * estimate.step_time_s
    return "samples" if round(tokens) == estimate.layout.global_batch else "tokens"


def plan_sentence(plan: Plan) -> str:
    """State the recommended layout and its reservations."""
    estimate = plan.recommended
    if estimate is None:
        return closest_strategy(plan)
    recommendation = (
        f"{plan.model} fits on {_place(plan)}; recommended is {layout_words(estimate.layout)} with "
        f"{estimate.framework}: {format_seconds(estimate.step_time_s)} per step."
    )
    faster = fastest_gain(plan), plan.files_note
    reservations = (tight_warning(estimate), plan.scale_note, *faster, other_ways(plan))
    return " ".join(filter(None, (headline(plan), recommendation, *reservations)))


def headline(plan: Plan) -> str:
    """Say what the plan changes in the job, and what the job takes as asked; empty if nothing."""
    advice, requested = plan.advice, plan.as_asked
    if advice is None or advice.kind == "as-asked":
        return ""
    as_asked = f" As asked: {_way(requested)}." if requested else ""
    return f"{advice.sentence}{as_asked}"


_MOST_WAYS = 3
"""Most other ways to do a job in a sentence."""


def other_ways(plan: Plan) -> str:
    """List the other ways to do the job that gain throughput, or where nothing fits all."""
    least = preferences().offers.change_gain.value - 1
    ways = [
        f"{each.sentence[0].lower()}{each.sentence[1:-1]} ({_way(each)})"
        for each in plan.alternatives
        if each is not plan.advice and each.kind != "as-asked"
        if each.gain is None or each.gain >= least
    ][:_MOST_WAYS]
    return f"Other ways: {'; '.join(ways)}." if ways else ""


def _way(each: Alternative) -> str:
    """Write layout, framework and step time of one way to do a job."""
    estimate = each.estimate
    step_time = format_seconds(estimate.step_time_s)
    return f"{estimate.layout} [{estimate.framework}], {step_time} a step"


def tight_warning(estimate: Estimate) -> str:
    """Warn that a layout is tight, with the range of measured memory; empty if it is not."""
    if not estimate.tight:
        return ""
    return f"It is tight: {memory_interval(estimate)}. Run it once first."


_NOTABLE = 0.005
"""Least share of a step time that is worth a word."""


def fastest_gain(plan: Plan) -> str:
    """Compare the fastest layout with the recommended one: time saved, and what it takes."""
    best, estimate = plan.best, plan.recommended
    if best is None or estimate is None or best.step_time_s >= estimate.step_time_s:
        return "No layout is faster." if estimate else ""
    less = 1 - best.step_time_s / estimate.step_time_s
    if less < _NOTABLE:
        return "No layout is notably faster."
    why = plan.reason or _price(best, estimate)
    return (
        f"The fastest, {best.layout} with {best.framework}, takes "
        f"{format_seconds(best.step_time_s)} ({100 * less:.0f} % less), but {why}."
        if why
        else f"The fastest, {best.layout} with {best.framework}, takes "
        f"{format_seconds(best.step_time_s)} ({100 * less:.0f} % less)."
    )


_PRICES = (
    ("tp", "tensor parallelism over {}"),
    ("pp", "{} pipeline stages"),
    ("vpp", "{} chunks a stage"),
    ("cp", "context parallelism over {}"),
    ("ep", "expert parallelism over {}"),
    ("zero_stage", "ZeRO stage {}"),
    ("micro_batch", "micro-batches of {}"),
)


def _price(best: Estimate, recommended: Estimate) -> str:
    """List the degrees in which the fastest layout exceeds the recommended, simpler one."""
    prices = [
        text.format(getattr(best.layout, name))
        for name, text in _PRICES
        if getattr(best.layout, name) > getattr(recommended.layout, name)
    ]
    if best.layout.offload not in ("none", recommended.layout.offload):
        prices.append(f"offload ({best.layout.offload})")
    if best.framework != recommended.framework:
        prices.append(best.framework)
    if best.out_of_memory_probability > recommended.out_of_memory_probability:
        chance = percent_chance(best.out_of_memory_probability)
        prices.append(f"a chance of {chance} to run out of memory")
    listed = ", ".join(prices[:-1]) + " and " + prices[-1] if len(prices) > 1 else "".join(prices)
    percent = f"{100 * preferences().tolerance:g}"
    return f"needs {listed}; a simpler layout may be {percent} % slower" if prices else ""


def percent_chance(value: float) -> str:
    """Format a probability in percent, never as 0 % or 100 %."""
    if value < 0.005:
        return "< 1 %"
    return "> 99 %" if value > 0.99 else f"{100 * value:.0f} %"


def memory_interval(estimate: Estimate) -> str:
    """State the 90 % interval of measured memory."""
    low, high = estimate.interval_memory_bytes
    return f"90 % of measured runs so estimated took {format_bytes(low)} to {format_bytes(high)}"


def search_summary(plan: Plan) -> str:
    """State how many layouts were searched, and how many were fully estimated."""
    count, full = plan.num_candidates, plan.num_estimated
    if full == count:
        return f"{count:,} layouts evaluated"
    return f"{count:,} layouts decided, {full:,} of them estimated in full and the rest by bounds"


_MULTIPLE = "that is a multiple of the devices"


def closest_strategy(plan: Plan) -> str:
    """State which strategy comes closest if nothing fits, and what would help."""
    entry = plan.closest
    if entry is None or entry.estimate is None:
        sizes = either(map("{:,}".format, plan.legal_batches)) if plan.legal_batches else ""
        return (
            f"{plan.model} cannot be laid out on {_place(plan)} at all: no strategy has a legal "
            f"layout; try a global batch {f'of {sizes}' if sizes else _MULTIPLE}."
        )
    return (
        f"{plan.model} does not fit on {_place(plan)}. Closest is {entry.name}: it {entry.why}. "
        f"{_help(plan, entry)}"
    )


def _help(plan: Plan, entry: Verdict) -> str:
    """State what would make a job fit: nodes, another batch, another layout, other hardware."""
    if plan.enough_nodes:
        return f"It fits on {counted(plan.enough_nodes, 'node')} with the same batch."
    if plan.alternatives:
        return other_ways(plan)
    for verdict in (entry, *plan.strategies):
        uses_all = verdict.estimate is None or verdict.estimate.layout.world == plan.num_devices
        if verdict.fix and uses_all:
            return f"Cheapest fix: {verdict.fix}."
    if "per rank" in entry.why:
        return (
            "More nodes, as far as there are, were not found to help; shorten the sequence, or "
            "take devices of more memory."
        )
    return "Take nodes of more memory or disk."


def fit_word(estimate: Estimate) -> str:
    """State in a few words whether a layout fits."""
    if not estimate.fits:
        return "Does not fit"
    return "Fits, but tight" if estimate.tight else "Fits"


def fit_sentence(estimate: Estimate, machine: Machine) -> str:
    """State whether a layout fits, with its free or missing memory."""
    free_bytes = machine.device.memory_bytes.value - estimate.memory_bytes["total"]
    head, free = fit_word(estimate), f"{format_bytes(free_bytes)} free per device"
    if estimate.tight:
        return f"{head}: {free}; {memory_interval(estimate)}: run it once first"
    return f"{head}: {free if estimate.fits else shortage_summary(estimate, machine)}"


def step_figures(estimate: Estimate) -> str:
    """Format step time, utilisation and throughput of an estimate."""
    return (
        f"step {format_seconds(estimate.step_time_s)} ({step_interval(estimate)}), MFU "
        f"{100 * estimate.mfu:.1f} %, {format_amount(estimate.tokens_per_s)} "
        f"{throughput_unit(estimate)}/s"
    )


def idle_explanation(estimate: Estimate, numbered: bool) -> str:
    """Explain the gaps, and the numbers if any, in the figure of a step."""
    numbers = "Numbers are micro-batches. " if numbered else ""
    if estimate.layout.pp == 1:
        return f"{numbers}There is one stage: it waits for no other."
    parts = estimate.step_time_parts_s
    bubble, transfer = (
        f"{100 * parts[name] / estimate.step_time_s:.1f} %"
        for name in ("pipeline_bubble", "pipeline_transfer")
    )
    return (
        f"{numbers}Gaps are waiting: of the stage that works longest the bubble is {bubble} of the "
        f"step, transfers {transfer}."
    )


def step_interval(estimate: Estimate) -> str:
    """Format the 90 % interval of a step time."""
    low, high = estimate.interval_step_time_s
    return f"90 % between {format_seconds(low)} and {format_seconds(high)}"


def better_layout(estimate: Estimate, better: Estimate | None) -> str:
    """Compare a configured layout with the fastest one of its framework."""
    step = format_seconds(estimate.step_time_s) if estimate.fits else "does not fit"
    if better is None:
        verdict = "is faster" if estimate.fits else "fits either"
        rest = f"no layout of {estimate.framework} that was searched {verdict}"
    else:
        step_time = format_seconds(better.step_time_s)
        rest = f"{better.framework} can do {step_time} with {better.layout}"
    return f"Your layout: {step}; {rest}."


def training_cost(plan: Plan, estimate: Estimate) -> tuple[str, str, str]:
    """Return amount, duration and node-hours of the steps of a training, or of 1,000 steps."""
    tokens, node_hours = plan.workload.all_tokens, plan.node_hours(estimate)
    amount = f"steps of {format_count(tokens)} {plan.workload.unit}" if tokens else "1,000 steps"
    duration_s = plan.duration_s(estimate) if tokens else 1000 * estimate.step_time_s
    return amount, format_seconds(duration_s), f"{format_amount(node_hours)} node-hours"


def cost_sentence(plan: Plan, estimate: Estimate) -> str:
    """State duration and node-hours of a training, and its queues."""
    amount, duration, node_hours = training_cost(plan, estimate)
    return f"{amount}: {duration}, {node_hours}. {queue_sentence(plan, estimate)}".rstrip()


def queue_sentence(plan: Plan, estimate: Estimate) -> str:
    """List the queues that admit the job; empty if the machine's queues are unknown."""
    nodes = counted(plan.nodes, "node")
    if not plan.queued:
        return ""
    if not plan.queues:
        return f"No queue of {plan.machine} is known to admit {nodes}."
    queues = ", ".join(
        f"{q.name} (up to {q.max_hours:g} h{', by request' * q.on_request})" for q in plan.queues
    )
    longest = max(plan.queues, key=lambda queue: (not queue.on_request, queue.max_hours))
    runs = -(-plan.duration_s(estimate) / 3600 // longest.max_hours)
    steps = f" Its steps alone take at least {counted(runs, 'run')} in {longest.name}."
    return f"Queues that admit {nodes}: {queues}.{steps if runs > 1 else ''}"


def metrics(plan: Plan, estimate: Estimate, limit_bytes: float) -> list[tuple[str, str, str]]:
    """Return label, value and remark of the most important figures."""
    rate, memory = estimate.tokens_per_s, format_bytes(estimate.memory_bytes["total"])
    per_device = f"{format_amount(rate / plan.num_devices)} per device"
    low, high = map(format_bytes, estimate.interval_memory_bytes)
    return [
        ("step time", format_seconds(estimate.step_time_s), step_interval(estimate)),
        (f"{throughput_unit(estimate)} per second", format_amount(rate), per_device),
        ("model FLOPs utilisation", f"{100 * estimate.mfu:.1f} %", "of the dense peak"),
        ("memory per device", memory, f"90 % between {low} and {high}"),
        training_cost(plan, estimate),
    ]
