"""Preferences: the judgements that decide what is searched, recommended and offered."""

import functools
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from planner.describe.base import Count, Description, Factor, Quantity, Rate, Share
from planner.describe.files import read_toml
from planner.errors import DescriptionError, shorten, shorten_path

VARIABLE = "PLANNER_PREFERENCES"
"""Environment variable with the path of the user's file; an empty value means no file."""
_DEFAULTS = Path(__file__).with_name("preferences.toml")


class Effort(Quantity, ge=0, le=100):
    """Work to set up a run (1: tensor parallelism) or to change it (1: a flag), as a preference."""


class Gain(Factor, ge=1, le=100):
    """Ratio above which an option is worth its cost."""


class Parameters(Quantity, ge=0, le=1e15):
    """Size of a model."""


class RecommendationPreferences(Description):
    """How the recommended layout is chosen among those that fit."""

    tolerance: Share
    """Share by which a simpler layout may be slower than the fastest."""
    spared_effort: Effort
    """Effort that must be spared for all of the tolerance."""
    out_of_memory_risk: Share
    """Highest probability of running out of memory of a layout that is called safe."""
    stall_probability: Share
    """Share of stalled runs above which a layout is said to stall."""
    failed_start: Effort
    """Cost of a start that runs out of memory, in runs."""
    min_slice_tokens: Count
    """Shortest slice of a sequence in common use [tokens]."""
    max_pipeline_stages: Count
    """Most pipeline stages in common use."""
    deep_pipeline_params: Parameters
    """Model size from which more pipeline stages are common."""
    uncommon_slowdown: Gain
    """Factor on the time of layouts that hardly anyone runs."""
    offload_slowdown: Share
    """Share by which offload counts as slower than its estimate."""
    strategy_slowdown: Share
    """Share by which a strategy's safe layout may be slower before its fastest is shown."""


class EffortPreferences(Description):
    """Setup effort of a layout, by column; offload by kind."""

    used: dict[str, Effort]
    """Effort once, if the degree is above one."""
    doubling: dict[str, Effort]
    """Effort for every doubling of the degree."""
    sharding: dict[str, Effort]
    """Effort of sharding states, and of each sharding group smaller than all ranks."""
    offload: dict[str, Effort]
    """Effort by kind of offload."""


class SearchPreferences(Description):
    """Limits beyond which the search estimates no layouts."""

    max_micro_batch: Count
    """Largest micro-batch [sequences]."""
    max_samples: Count
    """Largest micro-batch of samples other than sequences, such as images."""
    min_context_tokens: Count
    """Shortest slice of a sequence per context rank [tokens]."""
    fullest_chunk: Gain
    """Largest ratio of the layers in the fullest chunk to the mean of all chunks."""


class OfferPreferences(Description):
    """Which alternatives to the answer are offered."""

    batch_change: Share
    """Share by which a batch may change and the job stay the same."""
    batch_cost: Effort
    """Share of the throughput that a change of the batch costs, for each share that it changes."""
    sequence_cut: Share
    """Share of a sequence that may be cut off."""
    change_gain: Gain
    """Throughput of another way over that of the job as asked, from which on it comes first."""
    fewer_devices: Share
    """Share of the devices that do a job as fast as all and come first."""
    kernel_gain: Gain
    """Gain in computation that jobs on fewer devices are given before they are searched."""
    computing_share: Share
    """Share of the step in computation below which nodes may be wasted."""
    doubling_gain: Gain
    """Throughput on twice the nodes below which the doubled nodes are wasted."""
    node_doublings: Count
    """Number of times that the nodes are doubled if nothing fits."""
    switch_gain: Gain
    """Smallest speedup for which a switch is offered."""
    switch_shortage: Share
    """Excess over device memory, as a share, up to which layouts are tried with a switch."""


class GuidePreferences(Description):
    """Thresholds of the field's decision guide and of its comparison with the answer."""

    fast_network_bytes_per_s: Rate
    """Network bandwidth per device from which a network counts as fast [B/s]."""
    same_time: Share
    """Relative difference up to which two step times count as equal."""
    attention_share: Share
    """Share of attention in all operations above which a note mentions the causal mask."""


class Preferences(Description):
    """All preferences, grouped by what they decide."""

    recommendation: RecommendationPreferences
    effort: EffortPreferences
    change: dict[str, Effort]
    """Effort of changing one column of a layout, the framework, or tp beyond wired devices."""
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
    """Load the preferences; values in the user's file override the defaults."""
    return _load(user_file())


def user_file() -> Path | None:
    """Path of the user's file, from PLANNER_PREFERENCES or `~/.config/planner`; else None."""
    named = os.environ.get(VARIABLE)
    if named is not None:
        return Path(os.path.expanduser(named)) if named else None
    folder = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    # called hundreds of times by a search: pathlib would take as long as one search of layouts
    path = os.path.join(os.path.expanduser(folder), "planner", "preferences.toml")
    return Path(path) if os.path.isfile(path) else None


def user_changes() -> dict[str, tuple[float, float]]:
    """Values that the user's file changes, by dotted name: default and new value."""
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
    """Apply a user's changes to the tables; a plain number sets a value."""
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
    values: dict[str, float] = {}
    for name, table in tables.items():
        if "value" in table:
            values[prefix + name] = table["value"]
        else:
            values |= _values(table, f"{prefix}{name}.")
    return values
