"""Public surface: it equals the reviewed file tests/public_surface.json."""

from __future__ import annotations

import pytest

from tests.surface import PATH, written


@pytest.mark.slow
def test_the_surface_is_the_one_that_is_written_down() -> None:
    text = PATH.read_text(encoding="utf-8")
    assert written() == text, "python -m tests.surface writes it again; review the difference"
