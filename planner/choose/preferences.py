"""Preferences: the judgements that decide what is searched, recommended and offered."""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import Field

from planner.describe.base import Count, Description, Factor, Quantity, Rate, Share
from planner.describe.files import read_toml
from planner.errors import DescriptionError, shorten, shorten_path

VARIABLE = "PLANNER_PREFERENCES"
"""Environment variable with the path of the user's file; empty to use none."""
_DEFAULTS = Path(__file__).with_name("preferences.toml")


class Effort(Quantity):
    """Work for the people who set a run up, relative to tensor parallelism or to a flag."""

    value: float = Field(ge=0, le=100)
    """Effort; an order of preference, no measurement."""


class Gain(Factor):
    """A ratio from which on something is worth its price."""

    value: float = Field(ge=1, le=100)
    """Ratio."""


class Parameters(Quantity):
    """A size of models."""

    value: float = Field(ge=0, le=1e15)
    """Parameters."""


class RecommendationPreferences(Description):
    """Which of the layouts that fit is recommended."""

    tolerance: Share
    """Share by which a simpler layout may be slower than the fastest."""
    out_of_memory_risk: Share
    """Highest probability of running out of memory of a layout that counts as safe."""
    stall_probability: Share
    """Probability of a stall above which a layout is recommended only if nothing else fits."""
    min_slice_tokens: Count
    """Shortest slice of a sequence in common use [tokens]."""
    max_pipeline_stages: Count
    """Most pipeline stages in common use."""
    deep_pipeline_params: Parameters
    """Parameters from which on a model may have more stages."""
    uncommon_slowdown: Gain
    """Time of common layouts over the fastest beyond which uncommon ones are recommended."""
    offload_slowdown: Share
    """Time that offload must save, as a share of the fastest with it."""
    strategy_slowdown: Share
    """Time that a strategy's safe layout may lose before its fastest is shown instead."""


class EffortPreferences(Description):
    """Effort of a layout, by column; offload by kind."""

    used: dict[str, Effort]
    """Once, where the degree is above one."""
    doubling: dict[str, Effort]
    """For every doubling of the degree."""
    sharding: dict[str, Effort]
    """Sharding of states, and every group smaller than all ranks."""
    offload: dict[str, Effort]
    """By what is offloaded to where."""


class SearchPreferences(Description):
    """Limits of the search, beyond which layouts are not worth an estimate."""

    max_micro_batch: Count
    """Largest micro-batch of sequences."""
    max_samples: Count
    """Largest micro-batch of samples that are no sequences."""
    min_context_tokens: Count
    """Shortest slice of a sequence [tokens]."""
    fullest_chunk: Gain
    """Layers of the fullest chunk over the mean of all chunks."""


class OfferPreferences(Description):
    """Alternatives to the answer that are worth offering."""

    batch_change: Share
    """Share by which a batch may change and the job stay the same."""
    farther_batch_gain: Gain
    """Sequences per second of a farther batch over those of a nearer one."""
    node_doublings: Count
    """How often the nodes are doubled where nothing fits."""
    switch_gain: Gain
    """Step time without a switch over the time with it."""
    switch_shortage: Share
    """Share of the memory that a layout may lack to be tried with a switch."""


class GuidePreferences(Description):
    """How the field's decision guide is read, and compared with the answer."""

    fast_network_bytes_per_s: Rate
    """Network bandwidth per device from which on a network is fast [B/s]."""
    same_time: Share
    """Difference of two step times that is a matter of taste."""
    attention_share: Share
    """Share of attention in all operations above which the causal mask is mentioned."""


class Preferences(Description):
    """All judgements, by what they decide."""

    recommendation: RecommendationPreferences
    effort: EffortPreferences
    change: dict[str, Effort]
    """Effort of changing one column of a layout, the framework, or beyond wired devices."""
    search: SearchPreferences
    offers: OfferPreferences
    guide: GuidePreferences

    @property
    def tolerance(self) -> float:
        """Share by which a simpler layout may be slower than the fastest."""
        return self.recommendation.tolerance.value

    @property
    def risk(self) -> float:
        """Highest out-of-memory probability of a safe layout."""
        return self.recommendation.out_of_memory_risk.value


def preferences() -> Preferences:
    """Load the preferences, with those of the user's file on top."""
    return _load(user_file())


def user_file() -> Path | None:
    """The user's file, from PLANNER_PREFERENCES or `~/.config/planner`; None without one."""
    named = os.environ.get(VARIABLE)
    if named is not None:
        return Path(named).expanduser() if named else None
    folder = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    path = Path(folder).expanduser() / "planner" / "preferences.toml"
    return path if path.is_file() else None


def user_changes() -> dict[str, tuple[float, float]]:
    """Values that the user's file changes, by dotted name: before and after."""
    current, default = (_values(each.model_dump()) for each in (preferences(), _load(None)))
    return {
        name: (default[name], current[name]) for name in default if current[name] != default[name]
    }


@functools.cache
def _load(path: Path | None) -> Preferences:
    tables = read_toml(_DEFAULTS)
    if path is None:
        return Preferences.described(tables, where=_DEFAULTS.name)
    where = shorten_path(path)
    return Preferences.described(_overridden(tables, read_toml(path), where, ""), where=where)


def _overridden(
    tables: Mapping[str, Any], changes: Mapping[str, Any], where: str, prefix: str
) -> dict[str, Any]:
    """The tables with a user's changes; a plain number stands for a value of the user's own."""
    result = dict(tables)
    for name, change in changes.items():
        if name not in tables:
            raise DescriptionError(
                f"{where}: {shorten(prefix + name)} is no preference; use one of "
                f"{', '.join(tables)}, or `planner show preferences`"
            )
        if "value" in tables[name]:
            table = change if isinstance(change, dict) else {"value": change}
            result[name] = {"kind": "assumed", "source": where, **table}
        elif isinstance(change, dict):
            result[name] = _overridden(tables[name], change, where, f"{prefix}{name}.")
        else:
            raise DescriptionError(
                f"{where}: {prefix}{name} holds several preferences; write [{prefix}{name}] and "
                "one of them below"
            )
    return result


def _values(tables: Mapping[str, Any], prefix: str = "") -> dict[str, float]:
    """The numbers of nested tables by dotted name."""
    values: dict[str, float] = {}
    for name, table in tables.items():
        if "value" in table:
            values[prefix + name] = table["value"]
        else:
            values |= _values(table, f"{prefix}{name}.")
    return values
