"""Storage: node-local disks and shared file systems."""

from __future__ import annotations

from planner.describe.base import Description, Rate, Storage

__all__ = ["FileSystem", "LocalDisk"]


class LocalDisk(Description):
    """Node-local NVMe."""

    capacity_bytes: Storage
    """Capacity per node [B]."""
    read_bytes_per_s: Rate
    """Sequential read per node [B/s]."""
    write_bytes_per_s: Rate
    """Sequential write per node [B/s]."""


class FileSystem(Description):
    """A shared file system."""

    name: str
    """Name as used in job scripts."""
    kind: str
    """Lustre, GPFS, DAOS, ..."""
    capacity_bytes: Storage | None = None
    """Capacity [B]."""
    bytes_per_s: Rate | None = None
    """Aggregate bandwidth [B/s]."""
