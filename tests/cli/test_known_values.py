"""Known values of functions of `planner.cli`."""

from __future__ import annotations

from planner.cli.options.help_panels import _plain_default


def test_plain_default() -> None:
    assert (
        _plain_default("Degree.  [default: (1)]"),
        _plain_default("Exact.  [default: (False)]"),
    ) == ("Degree.  [default: 1]", "Exact.")
