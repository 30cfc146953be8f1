"""Folder: write all files or none, and pack them into a reproducible ZIP."""

import io
import os
import shutil
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

from planner.errors import EmitError, shorten_path

_DATE = (1980, 1, 1, 0, 0, 0)
"""The earliest date that a ZIP can hold."""


def _mode(name: str) -> int:
    return 0o755 if name.endswith(".sh") else 0o644


def zip_bytes(files: Mapping[str, str]) -> bytes:
    """Pack files into a ZIP archive; the same files give the same bytes."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for name, text in sorted(files.items()):
            entry = zipfile.ZipInfo(name, _DATE)
            entry.create_system = 3  # Unix
            entry.external_attr = _mode(name) << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, text.encode())
    return packed.getvalue()


def write_folder(files: Mapping[str, str], folder: Path, *, force: bool = False) -> None:
    """Write files into a folder, all or none; raises EmitError for others, unless `force`."""
    where = shorten_path(folder)
    try:
        existing = sorted(name for name, text in files.items() if _is_other(folder / name, text))
        if existing and not force:
            raise EmitError(
                f"{where} already holds {', '.join(existing)}; give another folder with -o, or "
                "overwrite with --force"
            )
        _replace(files, folder)
    except EmitError:
        raise
    except (OSError, ValueError) as error:  # ValueError: a null byte
        why = getattr(error, "strerror", None) or error
        raise EmitError(
            f"cannot write into {where}: {why}; give a folder you may write with -o"
        ) from None


def _is_other(path: Path, text: str) -> bool:
    """True for a file that is not as it would be written, by this run or by one that was killed."""
    return os.path.lexists(path) and not (path.is_file() and path.read_bytes() == text.encode())


def _replace(files: Mapping[str, str], folder: Path) -> None:
    """Write all files as drafts first, then move each, or the whole of a new folder, into place."""
    is_new = not os.path.lexists(folder)
    place = folder.parent if is_new else folder
    place.mkdir(parents=True, exist_ok=True)
    private = Path(tempfile.mkdtemp(prefix=".emit-", dir=place))
    drafts = private / "drafts"  # with the permissions of a usual folder
    try:
        for name, text in files.items():
            draft = drafts / name
            draft.parent.mkdir(parents=True, exist_ok=True)
            draft.write_text(text, encoding="utf-8", newline="\n")
            draft.chmod(_mode(name))
        if is_new:
            drafts.rename(folder)
            return
        for name in files:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            os.replace(drafts / name, folder / name)
    finally:
        shutil.rmtree(private, ignore_errors=True)
