"""Audit: what `make audit` says of weak packages, and where no index of advisories answers."""

from __future__ import annotations

from typing import Any

import pytest

from tests.audit import NO_ANSWER, NONE_KNOWN, SOME_KNOWN, read_report, summary

FINE: dict[str, Any] = {"name": "numpy", "version": "2.0", "vulns": []}
WEAK: dict[str, Any] = {"name": "old", "version": "1", "vulns": [{"id": "CVE-1"}, {"id": "CVE-2"}]}
SKIPPED: dict[str, Any] = {"name": "own", "skip_reason": "not found on the index"}


@pytest.mark.parametrize(
    ("packages", "code", "words"),
    [
        ([], NO_ANSWER, "no index of advisories answered"),
        ([SKIPPED, SKIPPED], NO_ANSWER, "no index of advisories answered"),
        ([FINE], NONE_KNOWN, "no weakness is known of 1 packages"),
        ([FINE, SKIPPED], NONE_KNOWN, "1 packages (1 others are in no index: own)"),
        ([FINE, WEAK, SKIPPED], SOME_KNOWN, "old 1 has CVE-1; old 1 has CVE-2; install"),
    ],
)
def test_one_sentence_and_its_exit_code(
    packages: list[dict[str, Any]], code: int, words: str
) -> None:
    sentence, ended = summary(packages)
    assert ended == code
    assert words in sentence
    assert "\n" not in sentence


def test_a_report_that_broke_off_audits_nothing() -> None:
    assert read_report('{"dependencies": [{"name": "numpy", "version": "2.0", "vulns": []}]}') == [
        FINE
    ]
    for text in ("", "{", "[]", "{}", "null"):
        assert read_report(text) == []
