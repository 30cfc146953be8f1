"""Speed report: the gain from estimating layouts in one call, and search time over rank count.

    python benchmarks/speed.py                      # two minutes at most
    python benchmarks/speed.py --calculon FOLDER    # also compares with a clone of Calculon

Every line has ratios of figures of this run, which also hold on a slow machine. Times are CPU
times. The clone is https://github.com/calculon-ai/calculon (Isaev et al. 2023).
"""

from __future__ import annotations

import argparse
import logging
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import planner
from planner.choose.search.enumeration import enumerate_layouts
from planner.cost.estimate import estimate_layouts
from planner.cost.scenario import Scenario

MOST = 65_536
"""Most layouts in one call."""
ALONE = 20
"""Number of calls with one layout each."""
JOBS = (
    ("llama-3.1-405b", "eos", "megatron-lm", 256, 8192, 2048),
    ("deepseek-v3", "eos", "fsdp2", 256, 4096, 15_360),
)
"""Model, machine, framework, nodes, sequence length and global batch."""
GROWTH = (("llama-3-8b", 1), ("llama-3.1-405b", 64))
"""Model, and the node count (eight devices each) of its smallest job."""
NODES = (1, 16, 256, 2048, 16_384)


def seconds(work: Callable[[], object]) -> float:
    """Measure the CPU time of a call [s]."""
    start = time.process_time()
    work()
    return time.process_time() - start


def one_call(model: str, machine: str, framework: str, nodes: int, length: int, batch: int) -> None:
    """Compare many layouts in one call with one call per layout."""
    place = planner.load_machine(machine)
    workload = planner.Workload(sequence_length=length, global_batch=batch)
    known = planner.load_framework(framework)
    scenario = Scenario(planner.load_model(model), place, workload, known)
    found, _ = enumerate_layouts(scenario, nodes * place.node.num_devices)
    layouts = found.take(slice(0, MOST))
    some = [layouts[i] for i in range(0, len(layouts), max(len(layouts) // ALONE, 1))]

    def singly() -> None:
        for layout in some:
            planner.estimate(scenario.model, place, layout, workload=workload, framework=known)

    singly()
    together = min(seconds(lambda: estimate_layouts(scenario, layouts)) for _ in range(3))
    alone = seconds(singly) / len(some)
    each = together / len(layouts)
    print(
        f"{model} with {framework}: {len(layouts):,} layouts in one call, {1 / each:,.0f}/s; "
        f"one by one {1e3 * alone:.1f} ms each, {alone / each:,.0f} times as long"
    )


def growth(model: str, fewest: int) -> None:
    """Compare searches on more and more ranks with the first one."""
    first = (0.0, 0)
    for nodes in (n for n in NODES if n >= fewest):
        place = planner.load_machine("dgx-h100", (f"num_nodes={max(NODES)}",))
        ranks = nodes * place.node.num_devices
        workload = planner.Workload(sequence_length=8192, global_batch=max(ranks, 1024))
        start = time.process_time()
        found = planner.plan(model, place, nodes=nodes, workload=workload)
        took = time.process_time() - start
        first = first if first[1] else (took, found.num_candidates)
        print(
            f"{model} on {ranks:,} ranks: {found.num_candidates:,} candidates, {took:.2f} s; "
            f"{found.num_candidates / first[1]:.1f} times the first's candidates, "
            f"{took / first[0]:.1f} times its time"
        )


def calculon(folder: Path) -> None:
    """Time one evaluation of GPT-3 175B by Calculon and by this planner."""
    sys.path.insert(0, str(folder))
    # these imports exist only with a clone
    import calculon as theirs  # type: ignore[import-not-found]
    from calculon.llm import Llm  # type: ignore[import-not-found]
    from calculon.system import System  # type: ignore[import-not-found]

    read = theirs.io.read_json_file
    application = Llm.Application(read(str(folder / "models" / "gpt3-175B.json")))
    asked = read(str(folder / "validation" / "seqsel" / "tab5" / "gpt3-175B_full.json"))
    system = System(read(str(folder / "systems" / "a100_80e.json")))
    logger = logging.getLogger("calculon")

    def evaluate() -> None:
        model = Llm(application, logger)
        model.compile(system, Llm.Execution.from_json(asked))
        model.run(system)

    evaluate()
    each = seconds(lambda: [evaluate() for _ in range(100)]) / 100
    known, place = planner.load_model("gpt3-175b"), planner.load_machine("selene")
    job = planner.Workload(sequence_length=2048, global_batch=64)
    scenario = Scenario(known, place, job, planner.load_framework("megatron-lm"))
    layouts = enumerate_layouts(scenario, 64)[0]
    own = min(seconds(lambda: estimate_layouts(scenario, layouts)) for _ in range(3)) / len(layouts)
    one = layouts.take(slice(0, 1))
    alone = seconds(lambda: [estimate_layouts(scenario, one) for _ in range(ALONE)]) / ALONE
    print(
        f"GPT-3 175B on 64 devices: Calculon {1e3 * each:.2f} ms a layout; this planner "
        f"{1e6 * own:.1f} us in a call of {len(layouts):,} ({each / own:,.0f} times as many a "
        f"second), {1e3 * alone:.1f} ms alone"
    )


def apart(name: str, *arguments: str) -> None:
    """Run one part of the report in its own process, so that it has its own memory peak."""
    subprocess.run([sys.executable, __file__, "--part", name, *arguments], check=True)


def main() -> None:
    """Run every part of the report, or one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calculon", type=Path, help="a clone of Calculon to compare with")
    parser.add_argument("--part", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.part is None:
        for name in [job[0] for job in JOBS] + [f"growth-{model}" for model, _ in GROWTH]:
            apart(name)
        if given.calculon:
            apart("calculon", "--calculon", str(given.calculon))
        else:
            print("Calculon is not at hand: --calculon FOLDER")
        return
    for job in JOBS:
        if given.part == job[0]:
            one_call(*job)
    for model, fewest in GROWTH:
        if given.part == f"growth-{model}":
            growth(model, fewest)
    if given.part == "calculon":
        calculon(given.calculon)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10
    print(f"  peak of memory {peak:.0f} MiB", flush=True)


if __name__ == "__main__":
    main()
