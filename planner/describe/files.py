"""Files: bounded reads and atomic writes, with one-sentence errors."""

import json
import os
import re
import tempfile
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from planner.errors import CatalogueError, WriteError, shorten, shorten_path

MAX_FILE_BYTES = 1_000_000
"""Largest size of a description [B]."""
_REMEDY = "give the description itself, not weights"
_LONGEST_NAME = 200
_DOTTED = re.compile(r"""(?<![\w.-])(?:(?:"[^"\n]*+"|'[^'\n]*+'|[\w-]++)[ \t]*+\.[ \t]*+){64}""")
"""A key of more than 64 parts, whose parsing takes quadratic time."""


def read_head(path: Path, length: int) -> bytes:
    """Read the first `length` bytes of a regular file; raises CatalogueError."""
    where = shorten_path(path)
    try:
        if path.is_dir():
            raise CatalogueError(f"{where} is a directory; name a file in it")
        if path.exists() and not path.is_file():
            raise CatalogueError(f"{where} is not a regular file; name a file")
        with path.open("rb") as file:
            return file.read(length)
    except CatalogueError:
        raise
    except (OSError, ValueError) as error:  # ValueError: a null byte
        reason = getattr(error, "strerror", None) or error
        raise CatalogueError(f"cannot read {where}: {reason}; check the path") from None


def read_bytes(path: Path, limit: int = MAX_FILE_BYTES, remedy: str = _REMEDY) -> bytes:
    """Read a regular file of at most `limit` bytes; raises CatalogueError."""
    data = read_head(path, limit + 1)
    if len(data) > limit:
        raise CatalogueError(
            f"{shorten_path(path)} has {path.stat().st_size / 1e6:.1f} MB; files above "
            f"{limit / 1e6:g} MB are refused: {remedy}"
        )
    return data


def read_text(path: Path, limit: int = MAX_FILE_BYTES, remedy: str = _REMEDY) -> str:
    """Read a small text file, with line ends as `\\n`; raises CatalogueError."""
    try:
        text = read_bytes(path, limit, remedy).decode("utf-8")
    except UnicodeDecodeError:
        raise CatalogueError(f"{shorten_path(path)} is not UTF-8 text; save it as UTF-8") from None
    return text.replace("\r\n", "\n").replace("\r", "\n")


def has_endless_keys(text: str) -> bool:
    """True if TOML text has a dotted key of too many parts to parse quickly."""
    return _DOTTED.search(text) is not None


def read_toml(path: Path) -> dict[str, Any]:
    """Read a TOML file; raises CatalogueError with the malformed line."""
    return parse_toml(read_text(path), str(path))


def parse_toml(text: str, where: str) -> dict[str, Any]:
    """Parse TOML text; raises CatalogueError with the malformed line."""
    where = shorten(where)
    nested = CatalogueError(f"{where} is nested too deeply for a description; give a flat one")
    if has_endless_keys(text):
        raise nested
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise nested from None
    except tomllib.TOMLDecodeError as error:
        raise CatalogueError(
            f"{where} is not valid TOML: {shorten(str(error))}; correct that line"
        ) from None
    except ValueError:
        raise _digits(where) from None


def parse_json(text: str, where: str) -> Any:
    """Parse JSON text; raises CatalogueError with the malformed line."""
    try:
        return json.loads(text.removeprefix("\ufeff"))
    except json.JSONDecodeError as error:
        raise CatalogueError(
            f"{where} is not valid JSON: {error.msg} at line {error.lineno}, "
            f"column {error.colno}; correct it there or save the file again"
        ) from None
    except RecursionError:
        raise CatalogueError(f"{where} is nested too deeply; give a flat JSON object") from None
    except ValueError:
        raise _digits(where) from None


def _digits(where: str) -> CatalogueError:
    """Create the error for integers of more than 4300 digits, which Python does not parse."""
    return CatalogueError(f"{where} holds a number with thousands of digits; correct that number")


def write_atomically(path: Path, content: str | bytes | Iterable[bytes]) -> None:
    """Replace a file's content atomically; on failure leave it unchanged and raise WriteError."""
    if os.path.exists(path) and not path.is_file():
        raise WriteError(f"{shorten_path(path)} is not a regular file; name a file")
    temporary = None
    try:
        with tempfile.NamedTemporaryFile(
            "wb", dir=path.parent, prefix=f".{path.name}.", delete=False
        ) as file:
            temporary = file.name
            content = content.encode() if isinstance(content, str) else content
            file.writelines((content,) if isinstance(content, bytes) else content)
            file.flush()
            os.fsync(file.fileno())
            mask = os.umask(0)
            os.umask(mask)
            os.fchmod(file.fileno(), 0o666 & ~mask)  # default permissions, not private ones
        os.replace(temporary, path)
    except (OSError, ValueError) as error:
        if temporary is not None and os.path.exists(temporary):
            os.unlink(temporary)
        why = getattr(error, "strerror", None) or error
        raise WriteError(
            f"cannot write {shorten_path(path)}: {why}; free space or choose another path. What "
            "was there before is unchanged"
        ) from None


def check_description_file(path: Path) -> None:
    """Check, before long work, that a description can be written to a path; raises WriteError."""
    where = shorten_path(path)
    if path.suffix != ".toml" or not path.stem or len(path.stem) > _LONGEST_NAME:
        raise WriteError(
            f"{where} must end in .toml, after a name of at most {_LONGEST_NAME} characters, so "
            "that it can be given by name; choose another file"
        )
    if path.is_dir():
        raise WriteError(f"{where} is a directory; name a file in it")
    try:
        with tempfile.TemporaryFile(dir=path.parent, prefix=f".{path.name}."):
            pass
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise WriteError(f"cannot write {where}: {why}; choose another path") from None
