"""Batch site: the machine, the queue, the network and the model that a job script is for."""

import re
from collections.abc import Mapping

from planner.describe.catalogue import load_machine, load_model, names
from planner.describe.configurations.batch_script import BatchScript, directives
from planner.describe.machine import Machine, Queue
from planner.errors import UnstatedError
from planner.units import either

_SELECTING = ("queue", "qos", "constraint")
_COMMON = ("devices", "--exclusive", "--mem", "-l place", "-k")
"""Directives that do not tell one machine from another."""
_LEAST_SHARE = 0.5
# own choice: a script that sets less than half of a network's variables does not use it


def machine_of_script(script: BatchScript) -> Machine:
    """Find the machine by queue, directives and words; raises UnstatedError if that is not one."""
    machines = [load_machine(name) for name in names("machine")]
    machines = [m for m in machines if m.scheduler.kind == script.scheduler and m.scheduler.queues]
    scores = {m.name: _score(script, m) for m in machines}
    most = max(scores.values(), default=0)
    best = [name for name, score in scores.items() if score == most and most > 0]
    if len(best) == 1:
        return load_machine(best[0])
    words = ", ".join(f"{k} {script.requested[k]}" for k in _SELECTING if script.requested.get(k))
    fitting = f"fits {either(best)}" if best else "is of no catalogued machine"
    problem = f"{script.path.name}: {words or 'a script without a queue'} {fitting}"
    raise UnstatedError(f"{problem}; name the machine with --machine")


def _score(script: BatchScript, machine: Machine) -> int:
    """Number of directives and words of a script that are the machine's own."""
    launch = machine.scheduler.launch
    lines = [*(launch.directives if launch else ())]
    for queue in machine.scheduler.queues:
        lines += queue_lines(machine, queue)
    pairs = {pair for line in lines for pair in directives(script.scheduler, [line]).items()}
    pairs = {(field, value) for field, value in pairs if field not in _COMMON and value}
    words = {machine.name, *machine.aliases, *(launch.script_words if launch else ())}
    return len(pairs & set(script.requested.items())) + 2 * sum(
        bool(re.search(rf"(?<![\w-]){re.escape(word)}(?![\w-])", script.text)) for word in words
    )


def queue_lines(machine: Machine, queue: Queue) -> tuple[str, ...]:
    """Directives that select a queue."""
    option = {"slurm": "--partition=", "flux": "--queue="}.get(machine.scheduler.kind, "-q ")
    return queue.directives or (f"{option}{queue.name}",)


def queues_of(script: BatchScript, machine: Machine, nodes: int | None = None) -> list[Queue]:
    """Queues of the machine that the script names; those that admit `nodes`, if given."""
    named = {k: v for k, v in script.requested.items() if k in ("queue", "qos")}
    counts = []
    for queue in machine.scheduler.queues:
        expected = directives(machine.scheduler.kind, queue_lines(machine, queue))
        shared = {field: value for field, value in expected.items() if field in named}
        same = bool(shared) and all(named[field] == value for field, value in shared.items())
        counts.append(len(shared) * same)
    most = max(counts, default=0)
    queues = [q for q, n in zip(machine.scheduler.queues, counts, strict=True) if n == most > 0]
    return [q for q in queues if nodes is None or q.min_nodes <= nodes <= q.max_nodes]


def on_stated_network(script: BatchScript, machine: Machine, framework: str) -> Machine:
    """The machine on the network whose variables the script sets; else that of the framework."""
    usual = machine.network_of(framework) if framework else machine
    if any(words[0] in ("source", ".") for words in script.run.commands) or not machine.networks:
        return usual  # a sourced file may set them
    variables = script.run.variables
    shares = {
        network.name: sum(variables.get(k) == v for k, v in network.environment.items())
        / len(network.environment)
        for network in usual.all_networks
        if network.environment
    }
    best = max(shares, key=shares.__getitem__, default="")
    plain = [network.name for network in usual.all_networks if not network.environment]
    if shares.get(best, 0) >= _LEAST_SHARE:
        return machine.on_network(best)
    return machine.on_network(plain[0]) if plain and shares else usual


def model_of(name: str, shape: Mapping[str, int], where: str) -> str:
    """Name of the model that a name or sizes in files mean; raises UnstatedError without one."""
    if name:
        return _catalogued(name) or name
    needed = {"num_layers", "hidden_size", "num_heads"}
    if not needed <= shape.keys():
        raise UnstatedError(f"{where} names no model; name it with --model")
    sizes = {k: v for k, v in shape.items() if k != "vocab_size"}
    equal = [n for n in names("model") if _has(n, sizes)]
    if len(equal) == 1:
        return equal[0]
    text = ", ".join(f"{k} = {v}" for k, v in sizes.items())
    owner = f"those of {either(equal)}" if equal else "those of no catalogued model"
    raise UnstatedError(f"{where}: {text} are {owner}; name the model with --model")


def _has(name: str, sizes: Mapping[str, int]) -> bool:
    model = load_model(name)
    return all(getattr(model, field) == size for field, size in sizes.items())


def _catalogued(name: str) -> str:
    """Catalogue model that the last part of a path or of a hub name means; empty: none."""
    plain = _letters(name.rstrip("/").rpartition("/")[2]).removeprefix("meta")
    close = [each for each in names("model") if plain.startswith(_letters(each))]
    return max(close, key=len, default="")


def _letters(text: str) -> str:
    return re.sub(r"[^a-z0-9.]", "", text.lower())


def lacking(script: BatchScript, machine: Machine) -> list[str]:
    """List the directives that the site asks for and the script does not state."""
    if not script.scheduler or (launch := machine.scheduler.launch) is None:
        return []
    queues = queues_of(script, machine, script.nodes)
    own_lines = (line for queue in queues[:1] for line in queue_lines(machine, queue))
    lines = dict.fromkeys([*launch.directives, *own_lines])
    has_devices = script.devices or "--gpus" in script.text  # as an option of srun
    fields = {*script.requested, *(["devices"] if has_devices else [])}
    return [line for line in lines if not fields >= directives(script.scheduler, [line]).keys()]
