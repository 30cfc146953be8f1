"""Layout codes: fields of a layout as integers, and back."""

import functools
from collections.abc import Iterable
from typing import Any

from planner.describe.layout import OFFLOAD, RECOMPUTE, RECOMPUTE_MODULES, SCHEDULES, Layout, Module

_CHOICES: dict[str, tuple[str, ...]] = {
    "recompute": RECOMPUTE,
    "schedule": SCHEDULES,
    "offload": OFFLOAD,
}

_BOOLEANS = ("sequence_parallel", "offload_activations")


def encode_layout(layout: Layout) -> dict[str, int]:
    """Encode the fields of a layout as integers, in any order [1].

    Counted: every field; choices as tuple indices, modules as bits. Left out: nothing that an
    estimate reads. Definition.
    """
    plain = vars(layout)
    return {
        **plain,
        **{name: int(plain[name]) for name in _BOOLEANS},
        **{name: table.index(plain[name]) for name, table in _CHOICES.items()},
        "recompute_modules": module_bits(layout.recompute_modules),
        "split": _split_code(layout.split),
        "dp_shard": layout.dp_shard or layout.dp,
    }


@functools.lru_cache(maxsize=4096)
def decode_layout(names: tuple[str, ...], numbers: tuple[int, ...]) -> Layout:
    """Decode one row of integers; cached, because searches revisit layouts."""
    values: dict[str, Any] = dict(zip(names, numbers, strict=True))
    return Layout(
        **{
            **values,
            "dp_shard": values["dp_shard"] if values["dp_shard"] != values["dp"] else 0,
            **{name: bool(values[name]) for name in _BOOLEANS},
            "recompute_modules": _modules_of(values["recompute_modules"]),
            **{name: table[values[name]] for name, table in _CHOICES.items()},
            "split": _SPLITS[values["split"]],
        }
    )


def module_bits(names: Iterable[Module]) -> int:
    """Encode a set of RECOMPUTE_MODULES as one integer, a bit per module [1].

    Counted: every module once. Left out: nothing. Definition.
    """
    return sum(1 << RECOMPUTE_MODULES.index(name) for name in set(names))


def _modules_of(bits: int) -> tuple[Module, ...]:
    return tuple(name for i, name in enumerate(RECOMPUTE_MODULES) if bits >> i & 1)


_SPLITS: list[str] = [""]
"""User-defined splits by code; encoding a new split appends it."""


def _split_code(split: str) -> int:
    if split not in _SPLITS:
        _SPLITS.append(split)
    return _SPLITS.index(split)
