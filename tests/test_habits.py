"""Habits: the limits that CONTRIBUTING.md sets; lists of exceptions may only shrink."""

from __future__ import annotations

from tests.habits import LEFT, empty_names, file_lengths, function_lengths, repeated_names

MOST_LINES = 400
MOST_BODY_LINES = 40
REPEATED_NAMES: set[str] = set()
"""File names that three or more modules may share; add none."""


def test_files_can_be_read_in_one_sitting() -> None:
    long = {path: lines for path, lines in file_lengths().items() if lines > MOST_LINES}
    assert not long, f"split by concept: at most {MOST_LINES} lines"


def test_functions_fit_on_a_screen() -> None:
    long = {name for name, lines in function_lengths().items() if lines > MOST_BODY_LINES}
    assert not long, f"split it: at most {MOST_BODY_LINES} lines without the docstring"


def test_no_new_name_says_nothing() -> None:
    """Name things by nouns: candidates, result, message, layout; see nomenclature.md."""
    left = LEFT.read_text(encoding="utf-8").splitlines()
    new = sorted(set(empty_names()) - set(left))
    assert not new, "name it by the field's noun"


def test_the_list_of_names_that_say_nothing_shrinks() -> None:
    left = LEFT.read_text(encoding="utf-8").splitlines()
    assert empty_names() == left, "python -m tests.habits takes what is gone off the list"


def test_names_of_files_tell_them_apart() -> None:
    assert set(repeated_names()) == REPEATED_NAMES
