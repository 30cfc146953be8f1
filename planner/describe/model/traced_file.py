"""Traced modules: a user's Python function as a model, run and traced in a separate process."""

from __future__ import annotations

import functools
import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from planner.describe.base import Description
from planner.describe.model.block import Block, Part, Weight
from planner.errors import DescriptionError, shorten, shorten_path

WORKER = ("-m", "planner.validate.trace.tracer")
"""Arguments of the tracing process: it reads a request and writes an answer, one JSON line each."""
_SPELLED = re.compile(r"(?P<path>.+\.py)(?::(?P<function>[^:/\\]*))?", re.DOTALL)
_LIMIT_S = 900.0


def is_python_file(name: str) -> bool:
    """True for FILE.py and FILE.py:FUNCTION."""
    return _SPELLED.fullmatch(name) is not None


def split_name(name: str) -> tuple[str, str]:
    """Path and function of FILE.py:FUNCTION; empty for other names."""
    match = _SPELLED.fullmatch(name)
    return (os.path.expanduser(match["path"]), match["function"] or "") if match else ("", "")


def traced_fields(name: str, *, run: bool) -> dict[str, Any]:
    """Run FILE.py:FUNCTION (if `run`) and return its model's fields; raises DescriptionError."""
    if not run:
        raise DescriptionError(
            f"{shorten_path(name)} is a Python file, which is not run here; "
            f"write its numbers with `planner show {shorten_path(name)} --toml > net.toml`, and "
            "name that file"
        )
    path, function = split_name(name)
    if not function:
        raise DescriptionError(
            f"{shorten_path(name)} names no function; write for example "
            f"{shorten_path(Path(path).name)}:build, whose build() returns (module, sample)"
        )
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        raise DescriptionError(
            f"cannot read {shorten_path(path)}: there is no such file; check the path"
        ) from None
    traced = _traced(str(Path(path).resolve()), path, function, status.st_mtime_ns, status.st_size)
    layers = sum(block["count"] for block in traced["blocks"] if block["role"] == "repeated")
    is_split = traced["splits"] or traced["units"]
    width = max(block["width"] for block in traced["blocks"]) if is_split else 0
    return {
        "name": f"{Path(path).name}:{function}",
        "family": "traced",
        "kind": "traced",
        "source": f"traced from {Path(path).name}:{function} with torch {traced['torch']}",
        "num_layers": layers,
        "hidden_size": width,
        "traced": traced,
    }


@functools.lru_cache(maxsize=64)
def _traced(resolved: str, path: str, function: str, *version: int) -> dict[str, Any]:
    """Trace a function in a worker process; cached until the file changes."""
    del version
    request = json.dumps({"module": resolved, "said": path, "function": function})
    try:
        process = subprocess.run(
            [sys.executable, *WORKER],
            input=request + "\n",
            capture_output=True,
            text=True,
            timeout=_LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise DescriptionError(
            f"{shorten_path(path)}:{shorten(function)} took longer than {_LIMIT_S:.0f} s to trace; "
            "build a smaller module"
        ) from None
    line = process.stdout.strip()
    if not line:
        messages = process.stderr.strip().splitlines()[-1:] or ["no message"]
        raise DescriptionError(
            f"{shorten_path(path)}:{shorten(function)} ended the process that traces it "
            f"({shorten(messages[0], 200)}); let the file only build its module"
        )
    answer: dict[str, Any] = json.loads(line)
    if "error" in answer:
        raise DescriptionError(answer["error"])
    return answer


_Size = Annotated[int, Field(ge=0, le=10**15)]
_Share = Annotated[float, Field(ge=0, le=1)]
_Bytes = Annotated[float, Field(ge=0, le=1e18)]


class InPrecisions(Description):
    """A number for each precision mode: bytes of one sample, or kernels."""

    fp32: _Bytes = 0.0
    """With everything in fp32."""
    autocast: _Bytes = 0.0
    """With autocast: GEMMs in 16 bits, sensitive operations in fp32."""
    cast: _Bytes = 0.0
    """With 16-bit weights and inputs."""


class Divided(Description):
    """Shares of a block's bytes, each from 0 to 1."""

    forward: _Share = 0.0
    backward: _Share = 0.0
    saved: _Share = 0.0
    working: _Share = 0.0


class TracedWeight(Description):
    """`count` parameter tensors of one shape."""

    rows: _Size
    """First dimension, along which it is sharded."""
    columns: _Size = 1
    """Product of the other dimensions."""
    count: int = Field(default=1, ge=1, le=10**6)
    """Number of these tensors."""
    split: Literal["column", "row", "replicated"] = "replicated"
    """How tensor parallelism divides it: by its rows (outputs) or its columns (inputs)."""
    trainable: bool = True
    """Whether it has a gradient."""
    shared: bool = False
    """Whether another block owns and counts it."""


class TracedOperation(Description):
    """`count` equal GEMMs, convolutions or fused attentions of one sample."""

    kind: Literal["product", "batched", "convolution", "attention"]
    """product: (rows, k) x (k, n); batched: `copies`; convolution: rows share inputs; attention."""
    rows: _Size
    """Rows per sample."""
    n: _Size
    """Columns of the result, or keys."""
    k: _Size
    """Length of the sum, or width of a query."""
    copies: int = Field(default=1, ge=1, le=10**9)
    """Batched products, or attention heads, per sample."""
    inputs: _Size = 0
    """Elements of a sample that the rows share; 0: none."""
    values: _Size = 0
    """Width of a value (attention)."""
    causal: bool = False
    """Whether attention is causal."""
    input_gradient: bool = True
    """Whether backward computes the gradient of the first operand."""
    weight_gradient: bool = True
    """Whether backward computes the gradient of the second operand."""
    small_kernel: bool = False
    """Whether it is a 3 x 3 convolution with stride 1."""
    split: Literal["column", "row", "gathered", "replicated"] = "replicated"
    """How tensor parallelism divides it; gathered: by columns, with its result gathered."""
    count: int = Field(default=1, ge=1, le=10**6)
    """Number of these operations."""

    @property
    def flop(self) -> int:
        """Operations of the forward passes for one sample, masked halves included [FLOP]."""
        width = self.k + self.values if self.kind == "attention" else self.k
        return 2 * self.count * self.copies * self.rows * self.n * width


class SplitLinear(Description):
    """A Linear layer that tensor parallelism divides."""

    name: str
    """Name in the module."""
    kind: Literal["column", "row", "gathered"]
    """By outputs, by inputs, or by outputs with its result gathered."""


class TracedBlock(Description):
    """`count` equal blocks; numbers are for one block and one sample."""

    name: str = Field(min_length=1, max_length=300)
    """Name of the first of these blocks in the module."""
    role: Literal["first", "repeated", "last"]
    """first: runs before the repeated blocks; repeated; last: runs between and after them."""
    count: int = Field(default=1, ge=1, le=100_000)
    """Number of equal blocks."""
    width: _Size = 0
    """Floating-point elements of the input."""
    weights: tuple[TracedWeight, ...] = ()
    """Parameter tensors."""
    operations: tuple[TracedOperation, ...] = ()
    """GEMMs, convolutions and attentions."""
    forward: InPrecisions = InPrecisions()
    """Bytes moved by memory-bound kernels in forward."""
    backward: InPrecisions = InPrecisions()
    """Bytes moved by memory-bound kernels in backward."""
    kernels: InPrecisions = InPrecisions()
    """Memory-bound kernels of the forward pass."""
    saved: InPrecisions = InPrecisions()
    """Bytes saved for backward."""
    working: InPrecisions = InPrecisions()
    """Peak bytes of backward, without those saved by this and earlier blocks."""
    divided: Divided = Divided()
    """Shares of these bytes that tensor parallelism divides."""
    places: tuple[_Size, ...] = ()
    """Positions among the repeated blocks; empty: one after another."""

    @property
    def num_params(self) -> int:
        """Parameters of one block, without shared ones."""
        owned = (weight for weight in self.weights if not weight.shared)
        return sum(weight.rows * weight.columns * weight.count for weight in owned)


class Traced(Description):
    """A module as blocks, with their computation and memory for one sample."""

    blocks: tuple[TracedBlock, ...] = Field(min_length=2, max_length=10_000)
    """The first block, the repeated blocks, the last block."""
    results: InPrecisions = InPrecisions()
    """Bytes per sample that forward returns and backward does not need."""
    buffer_bytes: _Bytes = 0.0
    """Buffers besides the parameters, not part of estimates [B]."""
    constant_bytes: _Bytes = 0.0
    """Bytes saved once per batch of any size, not part of estimates [B]."""
    splits: tuple[SplitLinear, ...] = ()
    """Linear layers that tensor parallelism divides, in the order of forward."""
    split_width: _Size = 0
    """Number that the tensor-parallel degree must divide."""
    units: tuple[str, ...] = ()
    """Submodules before which pipeline stages can begin, the first one included."""
    no_tp: str = ""
    """Why tensor parallelism divides nothing."""
    no_pp: str = ""
    """Why it has no pipeline stages."""
    cast_by_half: bool = False
    """Whether 16-bit numbers are half of fp32, as the module does not run with 16-bit weights."""
    torch: str = ""
    """Version of torch that traced it."""

    @model_validator(mode="after")
    def _check(self) -> Traced:
        roles = [block.role for block in self.blocks]
        if roles != ["first", *["repeated"] * (len(roles) - 2), "last"]:
            raise ValueError("blocks must be one first block, repeated blocks and one last block")
        return self

    def is_split(self, axis: str) -> bool:
        """True if tp divides its Linear layers, or pp cuts it into stages."""
        return bool({"tp": self.splits, "pp": self.units}.get(axis))

    @property
    def num_params(self) -> int:
        """Parameters, shared ones once."""
        return sum(block.count * block.num_params for block in self.blocks)

    @property
    def flop(self) -> int:
        """Operations of the GEMMs of one forward pass of a sample [FLOP]."""
        return sum(
            block.count * operation.flop for block in self.blocks for operation in block.operations
        )


_KINDS: Mapping[str, tuple[Literal["embedding", "layer", "head"], Part]] = {
    "first": ("embedding", "embedding"),
    "repeated": ("layer", "feed_forward"),
    "last": ("head", "head"),
}
"""Block kind and part for each role."""


def traced_weights(traced: Traced) -> tuple[Block, ...]:
    """Blocks of a traced module with weights only."""
    return tuple(_weights(block) for block in traced.blocks)


def _weights(block: TracedBlock) -> Block:
    kind, part = _KINDS[block.role]
    weights = tuple(
        Weight(
            f"{block.name}.{number}",
            weight.rows,
            weight.columns,
            copies=weight.count,
            split=weight.split,
            trainable=weight.trainable,
            tied=weight.shared,
            part=part,
        )
        for number, weight in enumerate(block.weights)
    )
    return Block(block.name, kind, block.count, weights, width=block.width, places=block.places)
