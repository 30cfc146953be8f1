"""Files: small text and TOML files, read with one clear sentence where they cannot be."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from planner.errors import CatalogueError, shorten

__all__ = ["parse_toml", "read_text", "read_toml"]

_MAX_FILE_BYTES = 1_000_000
_MAX_KEY_PARTS = 64


def read_text(path: Path, limit: int = _MAX_FILE_BYTES) -> str:
    """Text of a small file; CatalogueError where it is missing, huge or not text."""
    where = shorten(str(path))
    try:
        size = path.stat().st_size
        if not path.is_file() and not path.is_dir():
            raise CatalogueError(f"{where} is not a regular file; name a file")
        if size > limit:
            raise CatalogueError(
                f"{where} has {size / 1e6:.1f} MB; files above {limit / 1e6:.0f} MB are refused: "
                "give the description itself, not weights"
            )
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise CatalogueError(f"{where} is not UTF-8 text; save it as UTF-8") from None
    except OSError as error:
        raise CatalogueError(f"cannot read {where}: {error.strerror}; check the path") from None
    except CatalogueError:
        raise
    except ValueError as error:  # a null byte
        raise CatalogueError(f"cannot read {where}: {error}; check the path") from None


def read_toml(path: Path) -> dict[str, Any]:
    """A TOML file as plain data; CatalogueError with the line where it is malformed."""
    return parse_toml(read_text(path), str(path))


def parse_toml(text: str, where: str) -> dict[str, Any]:
    """TOML text as plain data; CatalogueError with the line where it is malformed."""
    where = shorten(where)
    nested = CatalogueError(
        f"{where} is nested too deeply for a description; give a flat TOML file"
    )
    # the parser takes time that grows with the square of the parts of a dotted key
    if any(line.partition("=")[0].count(".") > _MAX_KEY_PARTS for line in text.splitlines()):
        raise nested
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise nested from None
    except tomllib.TOMLDecodeError as error:
        raise CatalogueError(f"{where} is not valid TOML: {error}; correct that line") from None
