"""Start-up: what a job does before its first step."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from planner.describe.base import Description

__all__ = ["Environment", "Loading", "StartUp"]

Environment = Literal["file-system", "local-disk", "nfs"]
Loading = Literal["none", "sharded", "rank-0", "every-rank"]

_Seconds = Annotated[float, Field(ge=0, le=1e6)]


class StartUp(Description):
    """What a job does before its first step."""

    environment: Environment = "file-system"
    """Where the Python environment lies: on the parallel file system; on the nodes' own disks or in
    their memory, brought there before as one file (sbcast, an image, a container); on NFS."""
    loading: Loading = "none"
    """How it gets weights: made at random and, without sharding, broadcast from rank 0; each rank
    reads what it owns of a checkpoint; rank 0 reads all of it and broadcasts; every rank reads all
    of it."""
    ordered_groups: bool = True
    """Whether a process group is made by its own ranks alone; if not, all ranks of the job wait for
    each other at every group (torch's new_group without use_local_synchronization)."""
    compile_s: _Seconds = 0.0
    """What compiling the model takes, of torch.compile or of kernels built at first use [s]."""
    data_index_s: _Seconds = 0.0
    """What building or reading the index of the dataset takes [s]."""
    warm_up_s: _Seconds = 0.0
    """What the first steps take longer than others [s]."""
