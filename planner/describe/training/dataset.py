"""Dataset: the samples that a training reads, their files, and the loader that reads them."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from planner.describe.base import Description, Quantity
from planner.errors import DescriptionError

__all__ = ["CoreTime", "Dataset", "Loader", "SampleBytes", "Samples", "Staging"]


class Samples(Quantity):
    """A number of samples."""

    value: float = Field(ge=1e-6, le=1e16)
    """Samples; below 1 per file if a sample is spread over several files."""


class SampleBytes(Quantity):
    """Size of one sample."""

    value: float = Field(ge=0, le=1e13)
    """Bytes [B]."""


class CoreTime(Quantity):
    """Processor time of one core of the host."""

    value: float = Field(ge=0, le=1e5)
    """Core time [s]."""


class Dataset(Description):
    """The samples that a training reads, as stored in files."""

    name: str
    """Name on the command line."""
    title: str
    """Full name, and the benchmark that uses it."""
    unit: Literal["sample", "token"] = "sample"
    """Unit of the counts below: samples, or tokens, which `of_sequences` joins."""
    num_samples: Samples
    """Samples of one epoch."""
    sample_bytes: SampleBytes
    """Mean size of a sample in its file [B]."""
    spread_bytes: SampleBytes | None = None
    """Standard deviation of the size; None: all samples are equal [B]."""
    samples_per_file: Samples
    """Samples per file; below 1 if a sample is spread over several files."""
    order: Literal["random", "sequential"] = "random"
    """Access that the files are made for: random, or sequential as in TFRecord and WebDataset."""
    decoded_bytes: SampleBytes | None = None
    """Size of a decoded sample, as copied to the device; None: as in the file [B]."""
    compressed: bool = False
    """Whether the host must decompress samples (JPEG, gzip)."""
    decode_s: CoreTime
    """Core time to decode and augment one sample [s]."""
    sources: dict[str, str] = Field(default_factory=dict)
    """Full references of the source ids used in the quantities."""
    notes: tuple[str, ...] = ()
    """Doubts and disagreements between sources."""

    @model_validator(mode="after")
    def _not_empty(self) -> Dataset:
        if not self.sample_bytes.value:
            raise ValueError("sample_bytes = 0: a sample takes some bytes; give its mean")
        return self

    @property
    def total_bytes(self) -> float:
        """Size of all files [B]."""
        return self.num_samples.value * self.sample_bytes.value

    @property
    def num_files(self) -> float:
        """Number of files."""
        return max(self.num_samples.value / self.samples_per_file.value, 1.0)

    @property
    def host_bytes(self) -> float:
        """Size of one decoded sample [B]."""
        return (self.decoded_bytes or self.sample_bytes).value

    def of_sequences(self, length: int) -> Dataset:
        """Convert a dataset of tokens to sequences of `length` tokens; keep one of samples.

        Raises DescriptionError if the dataset has fewer tokens than one sequence.
        """
        if self.unit == "sample":
            return self
        if not 1 <= length <= self.num_samples.value:
            raise DescriptionError(
                f"sequence_length = {length} cannot be cut from the {self.num_samples.value:g} "
                f"tokens of {self.name}; use 1 to {self.num_samples.value:g}"
            )
        fields = self.model_dump() | {"unit": "sample"}
        for name, factor in (
            ("num_samples", 1 / length),
            ("samples_per_file", 1 / length),
            ("sample_bytes", length),
            ("decoded_bytes", length),
            ("decode_s", length),
        ):
            if fields[name]:
                fields[name]["value"] *= factor
        return Dataset.described(fields)


Staging = Literal["none", "local-disk", "memory"]


class Loader(Description):
    """Data loader of a training. Defaults are those of torch's DataLoader, with four workers and
    unstriped files."""

    workers: int = Field(default=4, ge=0, le=1024)
    """Loader processes or threads per rank; 0: the rank itself reads between its steps."""
    prefetch: int = Field(default=2, ge=0, le=10_000)
    """Batches that every worker prefetches; 0: every step waits for its batch."""
    order: Literal["random", "sequential"] | None = None
    """Access inside a file; None: the access that the dataset's files are made for."""
    sharded: bool = False
    """Whether a node reads the same part of the dataset in every epoch."""
    staging: Staging = "none"
    """Copy of the data on a node. none: no copy; local-disk: copied there before the first step;
    memory: kept once read, as in the page cache."""
    stripe_count: int = Field(default=1, ge=1, le=100_000)
    """Storage targets over which every file is striped."""
    file_system: str = Field(default="", max_length=100)
    """Shared file system of the dataset; empty: the machine's first one."""
