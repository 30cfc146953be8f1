"""Emitted: the planner's own files: a layout, and the modules for FSDP2 and Horovod."""

from collections.abc import Mapping
from typing import Any

from planner.describe.configurations.configuration import Configuration
from planner.describe.configurations.document import Document, Table
from planner.describe.configurations.readers.torchtitan import fsdp2_stage
from planner.describe.configurations.stated_job import DTYPES, Reader, StatedJob, has_all
from planner.describe.layout import Layout
from planner.describe.workload import Workload
from planner.errors import CatalogueError

_BATCH = {"micro_batch": "MICRO_BATCH", "grad_accumulation": "GRAD_ACCUMULATION"}
_COMPRESSION_BYTES = {"hvd.compression.none": 4, "hvd.compression.fp16": 2}


def _fully_shard(job: StatedJob, table: Table) -> None:
    replicate, shard = table.number("REPLICATE") or 1, table.number("SHARD") or 1
    options = table.table("options")
    gathers_again = bool(options.flag("reshard_after_forward"))
    job.layout(
        dp=replicate * shard,
        zero_stage=fsdp2_stage(shard, replicate, gathers_again=gathers_again),
        **table.numbers(_BATCH),
        offload="all-cpu" if "offload_policy" in options else "none",
    )
    job.set_single(replicas=replicate if shard > 1 else 0)
    dtype = options.table("mp_policy").word("param_dtype") or ""
    job.workload(precision=DTYPES.get(dtype.removeprefix("torch."), "fp32"))


def _horovod(job: StatedJob, table: Table) -> None:
    job.layout(zero_stage=0, **table.numbers(_BATCH))
    dtype = (table.word("DTYPE") or "").removeprefix("torch.")
    job.workload(precision=DTYPES.get(dtype))
    sent_bytes = job.named(table, "COMPRESSION", _COMPRESSION_BYTES)
    job.changes({"states.reduce_bytes": sent_bytes})


FULLY_SHARD = Reader(
    "FSDP2 module of planner emit",
    has_all("REPLICATE", "SHARD"),
    _fully_shard,
    "fsdp2",
    harmless=(".*",),
)
HOROVOD = Reader(
    "Horovod module of planner emit",
    has_all("COMPRESSION", "GRAD_ACCUMULATION"),
    _horovod,
    "horovod",
    harmless=(".*",),
)


def _is_layout(document: Document) -> bool:
    """True for a bare layout, or one inside the planner's JSON output."""
    content = document.tables
    best = content.get("best")
    inner = best if isinstance(best, Mapping) else content
    return "layout" in inner or ("dp" in content and set(content) <= set(Layout.model_fields))


class _LayoutReader(Reader):
    """Reader of the planner's own layouts: `layout.json` or the output of `--json`."""

    def read(self, document: Document) -> Configuration:
        """Read the layout, and its workload, model and framework if stated."""
        data: Mapping[str, Any] = document.tables
        best = data.get("best")
        if isinstance(best, Mapping):
            data = {**best, "model": data.get("model"), "workload": data.get("workload")}
        layout = data.get("layout") if "layout" in data else data
        workload = data.get("workload") or {}
        if not isinstance(layout, Mapping) or not isinstance(workload, Mapping):
            raise CatalogueError(
                f'{document.name}: "layout" and "workload" must be objects, such as {{"dp": 4}}'
            )
        fields = {key: value for key, value in layout.items() if key != "world"}
        stated_layout = Layout.described(fields, where=document.name)
        if workload:
            workload = dict(Workload.described(dict(workload), where=document.name))
        return Configuration(
            (document.name,),
            (self.kind,),
            framework=str(data.get("framework") or ""),
            layout={key: getattr(stated_layout, key) for key in fields},
            workload=workload,
            model=str(data.get("model") or ""),
        )


PLANNED = _LayoutReader("layout of the planner", _is_layout, lambda job, table: None)
