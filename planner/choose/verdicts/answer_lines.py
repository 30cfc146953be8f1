"""Answer lines: a plan in six labelled lines, the same in terminal, pages, notebooks and files."""

import re
from collections.abc import Iterator
from typing import NamedTuple

from planner.choose.plan import Plan, Verdict
from planner.choose.preferences import preferences
from planner.choose.verdicts.layout_words import degree_words, estimate_words
from planner.cost.estimate import Estimate
from planner.units import GIB, counted, either, format_amount, format_count, format_seconds


class AnswerLine(NamedTuple):
    """One line of an answer: what it is about, and a sentence or figures."""

    label: str
    text: str

    @property
    def plain(self) -> str:
        """The text without a bar of characters."""
        return re.sub(r"\[[#.>]+\] ", "", self.text)


def answer_lines(plan: Plan) -> list[AnswerLine]:
    """Return whether a job fits, how to run it, step, memory, cost, and why not the fastest."""
    estimate = plan.recommended
    if estimate is None:
        return [
            AnswerLine("Does not fit", f"{job_sentence(plan)}."),
            AnswerLine("Why", closest_strategy(plan)),
        ]
    lines = (
        AnswerLine(fit_word(estimate), f"{job_sentence(plan)}."),
        AnswerLine("Change", headline(plan)),
        *estimate_lines(estimate, plan.device_memory_bytes, plan.network_note),
        AnswerLine("Cost", cost_sentence(plan, estimate)),
        AnswerLine("Why", fastest_gain(plan)),
        AnswerLine("Scale", plan.scale_note),
        AnswerLine("Faster", plan.files_note),
    )
    return [line for line in lines if line.text]


def short_answer(plan: Plan, estimate: Estimate | None = None) -> str:
    """Answer for an estimate or the recommended one: does it fit, how, how fast, how large."""
    estimate = estimate or plan.recommended
    if estimate is not None:
        fits = fit_word(estimate).replace(", but tight", " tightly")
        how = degree_words(estimate.layout)
        # a layout of many words leaves no room for its framework
        if how.count(" x ") + how.count(",") + estimate.tight < 3:
            how = f"{how} with {estimate.framework}"
        return f"{fits}. {how}: {step_words(estimate)}, {_memory(plan, estimate)}."
    closest = plan.closest
    if closest is None or closest.estimate is None:
        return f"Does not fit. {closest_strategy(plan)}"
    nodes = f" It fits on {counted(plan.enough_nodes, 'node')}." if plan.enough_nodes else ""
    memory = _memory(plan, closest.estimate)
    if closest.estimate.memory_bytes["total"] <= plan.device_memory_bytes:
        memory = "short of host memory or disk"
    return f"Does not fit. Closest is {closest.name}: {memory}.{nodes}"


def step_words(estimate: Estimate) -> str:
    """Write a step time with its 90 % interval, in one unit."""
    low, high = (
        format_seconds(bound, like=estimate.step_time_s).partition(" ")[0]
        for bound in estimate.interval_step_time_s
    )
    return f"{format_seconds(estimate.step_time_s)} a step ({low} to {high})"


def _memory(plan: Plan, estimate: Estimate) -> str:
    used, limit = estimate.memory_bytes["total"] / GIB, plan.device_memory_bytes / GIB
    return f"{used:.1f} of {limit:.1f} GiB"


def estimate_lines(estimate: Estimate, device_bytes: float, on: str = "") -> Iterator[AnswerLine]:
    """Yield the layout in words, its step time, and its memory on devices of `device_bytes`."""
    yield AnswerLine("Run", estimate_words(estimate))
    yield AnswerLine(
        "Step",
        f"{format_seconds(estimate.step_time_s)} ({step_interval(estimate)}), "
        f"MFU {100 * estimate.mfu:.0f} %, {format_amount(estimate.tokens_per_s)} "
        f"{throughput_unit(estimate)}/s{f' {on}' if on else ''}",
    )
    used = estimate.memory_bytes["total"]
    text = f"{memory_bar(used / device_bytes)} {used / GIB:.1f} of {device_bytes / GIB:.1f} GiB"
    risk = percent_chance(estimate.out_of_memory_probability)
    doubt = "; measured runs differ, run it once first" if estimate.tight else ""
    yield AnswerLine("Memory", f"{text}, out-of-memory risk {risk}{doubt}")


_BAR_WIDTH = 24


def memory_bar(share: float) -> str:
    """Draw a share of memory as a bar; an overflow ends in `>`."""
    if share > 1:
        return f"[{'#' * (_BAR_WIDTH - 1)}>]"
    used = round(share * _BAR_WIDTH)
    return f"[{'#' * used}{'.' * (_BAR_WIDTH - used)}]"


def place(plan: Plan) -> str:
    """Name the nodes, the machine and the devices of a plan."""
    devices = counted(plan.num_devices, "device")
    return f"{counted(plan.nodes, 'node')} of {plan.machine} ({devices})"


def job_sentence(plan: Plan) -> str:
    """Describe the job of a plan."""
    workload = plan.workload
    length = "" if workload.unit == "samples" else f" x {workload.sequence_length:,}"
    return (
        f"{plan.model} on {place(plan)}, {workload.global_batch:,}{length} {workload.unit} a step, "
        f"{workload.precision}"
    )


def fit_word(estimate: Estimate) -> str:
    """State in a few words whether a layout fits."""
    if not estimate.fits:
        return "Does not fit"
    return "Fits, but tight" if estimate.tight else "Fits"


def step_interval(estimate: Estimate) -> str:
    """Format the 90 % interval of a step time."""
    low, high = estimate.interval_step_time_s
    number = format_seconds(low, like=high).partition(" ")[0]
    return f"90 %: {number} to {format_seconds(high)}"


def throughput_unit(estimate: Estimate) -> str:
    """Name the unit of throughput: tokens, or samples if a sample is a single token."""
    tokens = estimate.tokens_per_s * estimate.step_time_s
    return "samples" if round(tokens) == estimate.layout.global_batch else "tokens"


def headline(plan: Plan) -> str:
    """Say what the plan changes in the job, and what the job takes as asked; empty if nothing."""
    advice, as_asked = plan.advice, plan.as_asked
    if advice is None or advice.kind == "as-asked":
        return ""
    step_time = format_seconds(as_asked.estimate.step_time_s) if as_asked else ""
    exact = f" Exactly as asked: {step_time} a step." if as_asked else ""
    return f"{advice.sentence}{exact}"


def training_cost(plan: Plan, estimate: Estimate) -> tuple[str, str, str]:
    """Return amount, duration and node-hours of a training, or of 1,000 steps.

    Price and emissions follow the node-hours where they are stated.
    """
    tokens, node_hours = plan.workload.all_tokens, plan.node_hours(estimate)
    if plan.training is not None and estimate == plan.recommended:
        time_s, bill = plan.training.time.expected, plan.training.bill
        amount = f"training on {format_count(tokens or 0)} {plan.workload.unit}"
        costs = [f"{format_amount(bill.node_hours.expected)} node-hours"]
        if bill.price is not None:
            costs.append(f"a price of {format_amount(bill.price.expected)}")
        if bill.carbon_kg is not None:
            costs.append(f"{format_amount(bill.carbon_kg.expected / 1000)} t CO2e")
        return amount, format_seconds(time_s), ", ".join(costs)
    amount = f"steps of {format_count(tokens)} {plan.workload.unit}" if tokens else "1,000 steps"
    duration_s = plan.duration_s(estimate) if tokens else 1000 * estimate.step_time_s
    return amount, format_seconds(duration_s), f"{format_amount(node_hours)} node-hours"


def cost_sentence(plan: Plan, estimate: Estimate) -> str:
    """State duration and node-hours of a training, and the queue that allows the longest jobs."""
    amount, duration, node_hours = training_cost(plan, estimate)
    if plan.training is not None and plan.training.jobs > 1:
        jobs = f"{counted(plan.training.jobs, 'job')} in {plan.training.queue}"
        return f"{amount}: {duration}, {node_hours}; {jobs}."
    if not plan.queued:
        return f"{amount}: {duration}, {node_hours}."
    if not plan.queues:
        nodes = counted(plan.nodes, "node")
        return f"{amount}: {duration}, {node_hours}; no queue is known to admit {nodes}."
    longest = max(
        plan.queues, key=lambda queue: (not queue.debug, not queue.on_request, queue.max_hours)
    )
    duration_s = plan.duration_s(estimate) or 1000 * estimate.step_time_s
    runs = -(-duration_s / 3600 // longest.max_hours)
    jobs = f"at least {counted(runs, 'job')} in" if runs > 1 else "queue"
    limit = f"{longest.max_hours:g} h{', by request' * longest.on_request}"
    return f"{amount}: {duration}, {node_hours}; {jobs} {longest.name}, {limit}."


NOTABLE = 0.005
"""Least share of a step time that is worth a word."""


def fastest_gain(plan: Plan) -> str:
    """Say how much time the fastest layout saves, and which rule passes it over."""
    best, estimate = plan.best, plan.recommended
    if best is None or estimate is None or best.step_time_s >= estimate.step_time_s:
        return "No layout is faster." if estimate else ""
    if _share_saved(best, estimate) < NOTABLE:
        return "No layout is notably faster."
    fastest = f"The fastest takes {_gain(best, estimate)}, but {plan.reason}."
    risk = max(preferences().risk, estimate.out_of_memory_probability)
    safe = [(e, why) for e, why in plan.passed_over if e.out_of_memory_probability <= risk]
    if not safe or safe[0][0] is best or _share_saved(safe[0][0], estimate) < NOTABLE:
        return fastest
    second, why = safe[0]
    words = f"{_gain(second, estimate)}: {estimate_words(second)}"
    return f"{fastest} The fastest as safe takes {words}; but {why}."


def _share_saved(faster: Estimate, estimate: Estimate) -> float:
    return 1 - faster.step_time_s / estimate.step_time_s


def _gain(faster: Estimate, estimate: Estimate) -> str:
    less = 100 * _share_saved(faster, estimate)
    return f"{format_seconds(faster.step_time_s)} ({less:.0f} % less)"


def percent_chance(value: float) -> str:
    """Format a probability in percent, never as 0 % or 100 %."""
    if value < 0.005:
        return "< 1 %"
    return "> 99 %" if value > 0.99 else f"{100 * value:.0f} %"


def closest_strategy(plan: Plan) -> str:
    """State which strategy comes closest if nothing fits, and what would help."""
    entry = plan.closest
    if entry is not None and entry.estimate is not None:
        return f"Closest is {entry.name}: it {entry.why}. {_help(plan, entry)}"
    sizes = either(map("{:,}".format, plan.legal_batches)) if plan.legal_batches else ""
    batch = f"of {sizes}" if sizes else "that is a multiple of the devices"
    return f"No strategy has a legal layout; try a global batch {batch}."


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


_MOST_WAYS = 3
"""Most other ways to do a job in a sentence."""


def other_ways(plan: Plan) -> str:
    """List the other ways to do the job that gain throughput, or where nothing fits all."""
    least = preferences().offers.change_gain.value - 1
    ways = [
        f"{each.sentence[0].lower()}{each.sentence[1:-1]} "
        f"({format_seconds(each.estimate.step_time_s)} a step)"
        for each in plan.alternatives
        if each is not plan.advice and each.kind != "as-asked"
        if each.gain is None or each.gain >= least
    ][:_MOST_WAYS]
    return f"Other ways: {'; '.join(ways)}." if ways else ""
