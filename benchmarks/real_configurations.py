"""Real configurations: every file below a folder read and estimated, or refused in a sentence.

    python benchmarks/real_configurations.py FOLDER

FOLDER holds checkouts of public repositories (their examples and recipes); none of their files is
stored here. A file counts as read if a reader recognizes it. It is then completed and estimated for
one model on eight ranks of a machine, with options that a user would add for missing fields. Any
error other than a one-sentence refusal is a failure, and the exit code is 1. What is read is judged
against a plain parse of the keys that decide the job (`JUDGED`); another job is wrong.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections import Counter
from pathlib import Path

from planner.choose.planning import estimate
from planner.choose.user_layouts import complete_layout
from planner.describe.catalogue import load_machine, load_model
from planner.describe.configurations.configuration import Configuration
from planner.describe.configurations.reading import read_configuration
from planner.errors import PlannerError

SUFFIXES = (".json", ".yaml", ".yml", ".toml", ".sh", ".slurm", ".args", ".py")
MODEL, MACHINE = "llama-3.2-1b", "dgx-h100"
LONGEST_SENTENCE = 600
JUDGED = {
    "micro_batch": "micro_batch_size|(?:per_device_train|train_micro)_batch_size(?:_per_gpu)?",
    "grad_accumulation": "gradient_accumulation_steps",
    "sequence_length": "sequence_len|seq_length|cutoff_len",
    "tp": "tensor_model_parallel_size|model_parallel_size|tensor_parallel_size",
    "pp": "pipeline_model_parallel_size|pipe_parallel_size",
    "cp": "context_parallel_size",
    "lora_rank": "lora_r|lora_rank",
    "zero_stage": "zero_stage",
}
"""Keys of a field in other programs' files, with `_` for `-`."""
ADAPTER = re.compile(
    r"(?:^|--)(?:adapter|finetuning_type|use_peft|use_lora)[: ] *(?:q?lora|true)", re.M
)


def wrong(text: str, found: Configuration) -> str:
    """Return the first field that a file states once, as a number, and that is read otherwise."""
    read = {**found.usual, **found.layout, **found.workload}
    plain = re.sub(r"(?m)^\s*#.*$", "", text).replace("-", "_")
    for name, value in re.findall(r"(?m)^(?:export +)?([A-Z_]+)=(\d+)\s*$", plain):
        plain = re.sub(rf"\$\{{?{name}\b\}}?", value, plain)
    for field, keys in JUDGED.items():
        stated = set(
            re.findall(rf"(?<![A-Za-z_])[\"']?(?:__)?(?:{keys})[\"']?[:= ] *(\d+)\b", plain)
        )
        if len(stated) != 1 or field in found.unclear:
            continue
        if field == "lora_rank" and not ADAPTER.search(text):
            stated = {"0"}
        value = max(int(stated.pop()), 0 if field in ("lora_rank", "zero_stage") else 1)
        if int(read.get(field, 1 if field in ("tp", "pp", "cp") else 0)) != value:
            return f"{field} is {value} in the file, read as {read.get(field)}"
    return ""


def outcome(path: Path) -> tuple[str, str]:
    """Return the outcome of a file, and its kind or the sentence that refuses it."""
    try:
        found = read_configuration(path)
    except PlannerError as error:
        unknown = "is not a supported configuration file" in str(error)
        return "no configuration" if unknown else "refused", str(error)
    if other := wrong(path.read_text(errors="replace"), found):
        return "WRONG", f"{found.kinds[0]}: {other}"
    model, machine = load_model(MODEL), load_machine(MACHINE)
    nodes = None if found.world else 1
    options = {} if "micro_batch" in found.layout else {"micro_batch": 1}
    if "zero_stage" in found.left_to:
        options["zero_stage"] = 3
    try:
        job = complete_layout(model, machine, found, nodes=nodes, layout=options)
        estimate(model, machine, job.layout, workload=job.workload, framework=job.framework)
    except PlannerError as error:
        return "read, not on these ranks", f"{found.kinds[0]}: {error}"
    return "read and estimated", found.kinds[0]


def main() -> int:
    """Print the counts by outcome and kind, and the sentences with --verbose."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--verbose", action="store_true")
    given = parser.parse_args()
    outcomes: Counter[tuple[str, str]] = Counter()
    failures = 0
    for path in sorted(given.folder.rglob("*")):
        if path.suffix not in SUFFIXES or not path.is_file():
            continue
        try:
            what, words = outcome(path)
        except Exception as error:  # the failures that this program looks for
            what, words = "FAILED", f"{type(error).__name__}: {error}"
            failures += 1
        failures += what == "WRONG"
        if len(words) > LONGEST_SENTENCE or "\n" in words:
            what, failures = "FAILED", failures + 1
        if given.verbose or what in ("FAILED", "WRONG"):
            print(f"{what:26} {path.relative_to(given.folder)}: {words}")
        kind = words.split(":")[0] if what.startswith(("read", "WRONG")) else ""
        outcomes[what, kind] += 1
    for (what, kind), count in sorted(outcomes.items()):
        print(f"{count:6} {what:26} {kind}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
