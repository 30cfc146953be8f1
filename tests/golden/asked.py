"""Many small questions: verdict, notes and rows of each, with options that others leave alone."""

from __future__ import annotations

from typing import Any

from planner import Workload, ask

JOBS: dict[str, dict[str, Any]] = {
    "small": {"model": "gpt2", "machine": "polaris", "frameworks": "ddp"},
    "odd": {"model": "gpt2", "machine": "vsc-5-a40", "frameworks": ("fsdp2", "ddp")},
    "large": {"model": "llama-3.2-3b", "machine": "vsc-5", "frameworks": "fsdp2"},
    "tight": {"model": "llama-3-8b", "machine": "vsc-5-a40", "frameworks": "deepspeed"},
    "too large": {"model": "llama-2-70b", "machine": "vsc-5-a40", "frameworks": "ddp"},
    "one": {"model": "gpt2-medium", "machine": "workstation-1x4090", "frameworks": "deepspeed"},
    "piped": {"model": "gpt2-xl", "machine": "polaris", "frameworks": "megatron-lm"},
}
BATCHES = {"odd": 50, "one": 12, "large": 48, "tight": 36}
LENGTHS = {"odd": 1000, "large": 2048}

ASKED: dict[str, list[tuple[str, dict[str, Any]]]] = {
    "nodes": [
        ("odd", {"most_nodes": 6}),
        ("large", {"most_nodes": 3}),
        ("tight", {"most_nodes": 20}),
        ("too large", {"most_nodes": 2}),
    ],
    "deadline": [
        ("small", {"days": 1.0, "late": 20.0, "most_nodes": 6, "tokens": 20e9}),
        ("odd", {"days": 0.4, "most_nodes": 5, "tokens": 10e9}),
        ("large", {"days": 30.0, "most_nodes": 4, "most_jobs": 3, "tokens": 3e9}),
        ("too large", {"days": 3.0, "most_nodes": 2, "tokens": 1e9}),
    ],
    "cheapest": [
        ("odd", {"most_nodes": 5, "tokens": 1e9}),
        ("small", {"most_nodes": 4, "price_per_node_hour": 2.5, "days": 0.3, "tokens": 9e9}),
        ("large", {"most_nodes": 4, "node_power": "1.5kW", "tokens": 1e9}),
        ("tight", {"most_nodes": 4, "most_jobs": 1, "days": 9.0, "tokens": 1e9}),
    ],
    "scaling": [
        ("odd", {"most_nodes": 8}),
        ("tight", {"kind": "weak", "nodes": 2, "most_nodes": 8}),
        ("large", {"efficiency": 99.0, "most_nodes": 4}),
        ("too large", {"most_nodes": 2}),
    ],
    "machine": [
        ("small", {"against": ("vsc-5-a40", "dgx-2")}),
        ("large", {"against": ("polaris",), "same": "nodes", "nodes": 2}),
        ("tight", {"against": ("polaris",), "by": "node-hours", "tokens": 1e9}),
    ],
    "change": [
        ("one", {}),
        ("small", {"nodes": 2, "also": ("node.host_memory_bytes=64GB",)}),
        ("too large", {}),
    ],
    "model": [
        ("small", {"family": "gpt2"}),
        ("tight", {"among": ("gpt2-xl", "llama-3-8b", "llama-3.2-3b"), "nodes": 2}),
        ("large", {"days": 3.0, "tokens": 1e9, "nodes": 2}),
    ],
    "sequence": [
        ("large", {"grain": 4096}),
        ("tight", {"grain": 2048, "nodes": 2}),
        ("odd", {"grain": 250}),
    ],
    "batch": [
        ("odd", {"within": 1.5}),
        ("small", {"within": 1.0}),
        ("large", {"within": 1.3, "nodes": 3}),
        ("too large", {}),
    ],
    "largest_batch": [("odd", {}), ("one", {}), ("tight", {"nodes": 3}), ("too large", {})],
    "zero": [("large", {}), ("one", {}), ("tight", {"nodes": 2}), ("tight", {"alone": True})],
    "offload": [("one", {}), ("large", {"share": 50.0}), ("tight", {"nodes": 2})],
    "host": [("one", {}), ("odd", {"nodes": 3}), ("tight", {})],
    "memory": [("odd", {}), ("piped", {}), ("one", {}), ("too large", {})],
    "network": [("piped", {}), ("large", {"nodes": 3}), ("too large", {})],
    "why": [("odd", {}), ("piped", {"nodes": 2}), ("too large", {})],
    "startup": [
        ("one", {}),
        ("small", {"loading": "rank-0", "nodes": 3, "most_nodes": 4}),
        ("large", {"loading": "every-rank", "nodes": 3, "most_nodes": 6}),
        ("large", {"environment": "nfs", "most_nodes": 4, "warm_up_s": 5.0}),
        ("tight", {"environment": "local-disk", "loading": "sharded", "nodes": 3}),
    ],
    "checkpoints": [
        ("one", {}),
        ("odd", {"nodes": 2, "most_nodes": 6, "tokens": 30e9}),
        ("large", {"interval_minutes": 20.0, "share": 10.0}),
        ("tight", {"device_mtbf_hours": 2000.0, "most_nodes": 8, "detection_minutes": 2.0}),
    ],
    "data": [
        ("small", {"dataset": "imagenet", "workers": 2, "most_nodes": 4}),
        ("odd", {"step_seconds": 0.05, "stripe_count": 4, "most_nodes": 3}),
        ("small", {"dataset": "cosmoflow", "staging": "local-disk", "most_nodes": 4}),
        ("large", {"dataset_samples": 1_000_000, "dataset_epochs": 3, "sharded": True}),
    ],
}


def asked(question: str) -> dict[str, Any]:
    """Verdict, notes and rows of every variant of a question."""
    found = {}
    for name, options in ASKED[question]:
        fields = {"global_batch": BATCHES.get(name, 64), "sequence_length": LENGTHS.get(name, 1024)}
        own = {key: value for key, value in options.items() if key != "tokens"}
        if "tokens" in options:
            fields["tokens"] = options["tokens"]
        workload = Workload.described(fields)
        answer = getattr(ask, question)(**JOBS[name], workload=workload, **own)
        columns = list(dict.fromkeys(column for row in answer.rows for column in row))
        found[f"{question} {name} {options}"] = {
            "verdict": answer.verdict,
            "notes": list(answer.notes),
            "columns": columns,
            "rows": [[row.get(column) for column in columns] for row in answer.rows],
        }
    return found


def everything_asked() -> dict[str, Any]:
    """Answers of every question."""
    return {name: found for question in ASKED for name, found in asked(question).items()}
