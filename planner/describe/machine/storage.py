"""Storage: node-local disks and shared file systems."""

from __future__ import annotations

from pydantic import Field

from planner.describe.base import Count, Description, Quantity, Rate, Storage

__all__ = ["FileSystem", "LocalDisk", "OperationRate"]


class OperationRate(Quantity):
    """Operations in a second."""

    value: float = Field(ge=1, le=1e12)
    """Rate [1/s]."""


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
    """Aggregate bandwidth, the slower of reading and writing [B/s]."""
    read_bytes_per_s: Rate | None = None
    """Aggregate bandwidth of reading, where a source tells it from writing [B/s]."""
    client_bytes_per_s: Rate | None = None
    """What one node reads at most; all that its interfaces carry where it is not known [B/s]."""
    num_targets: Count | None = None
    """Storage targets (OSTs of Lustre) over which files are spread."""
    opens_per_s: OperationRate | None = None
    """Files of one directory that are opened in a second, by all nodes together; a directory lies
    on one metadata server unless it was spread [1/s]."""

    @property
    def reading(self) -> Rate | None:
        """Aggregate bandwidth of reading; None where no source states any [B/s]."""
        return self.read_bytes_per_s or self.bytes_per_s
