"""Training run: data, checkpoints, evaluation, start-up, failures and charges around the steps."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from planner.describe.base import Description, Quantity
from planner.errors import DescriptionError


class Samples(Quantity, ge=1e-6, le=1e16):
    """Samples; below 1 per file if a sample is spread over several files."""


class SampleBytes(Quantity, ge=0, le=1e13):
    """Size of one sample [B]."""


class CoreTime(Quantity, ge=0, le=1e5):
    """CPU time of one core of the host [s]."""


class Dataset(Description):
    """The samples that a training reads, as stored in files."""

    name: str
    """Name on the command line."""
    title: str
    """Full name, and the benchmark that uses it."""
    unit: Literal["sample", "token"] = "sample"
    """Unit of the counts below: samples, or tokens, which `of_sequences` groups."""
    num_samples: Samples
    """Samples of one epoch."""
    sample_bytes: SampleBytes
    """Mean size of a sample in its file [B]."""
    spread_bytes: SampleBytes | None = None
    """Standard deviation of the size; None: all samples are equal [B]."""
    samples_per_file: Samples
    """Samples per file; below 1 if a sample is spread over several files."""
    order: Literal["random", "sequential"] = "random"
    """Access pattern that the files suit: random, or sequential as TFRecord and WebDataset."""
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
            raise ValueError("sample_bytes = 0 must be above 0; give the mean size of a sample")
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
        """Convert a dataset of tokens to one of sequences of `length` tokens."""
        if self.unit == "sample":
            return self
        if not 1 <= length <= self.num_samples.value:
            raise DescriptionError(
                f"sequence_length = {length} cannot be cut from the {self.num_samples.value:g} "
                f"tokens of {self.name}; use 1 to {self.num_samples.value:g}"
            )
        fields = self.model_dump() | {"unit": "sample"}
        factors = dict.fromkeys(("num_samples", "samples_per_file"), 1 / length)
        factors |= dict.fromkeys(("sample_bytes", "decoded_bytes", "decode_s"), float(length))
        for name, factor in factors.items():
            if fields[name]:
                fields[name]["value"] *= factor
        return Dataset.described(fields)


Staging = Literal["none", "local-disk", "memory"]


class Loader(Description):
    """Data loader; by default torch's, with four workers and files that are not striped."""

    workers: int = Field(default=4, ge=0, le=1024)
    """Loader processes or threads per rank; 0: the rank itself reads between its steps."""
    prefetch: int = Field(default=2, ge=0, le=10_000)
    """Batches that every worker prefetches; 0: every step waits for its batch."""
    order: Literal["random", "sequential"] | None = None
    """Access pattern inside a file; None: the one that the dataset's files suit."""
    sharded: bool = False
    """Whether a node reads the same part of the dataset in every epoch."""
    staging: Staging = "none"
    """Copy of the data on a node; memory: kept once read, local-disk: before the first step."""
    stripe_count: int = Field(default=1, ge=1, le=100_000)
    """Storage targets over which every file is striped."""
    file_system: str = Field(default="", max_length=100)
    """Shared file system of the dataset; empty: the machine's first one."""


Contents = Literal["states", "weights"]
Storage = Literal["file-system", "local-disk"]


class Checkpoints(Description):
    """Checkpoints of a training: contents, writers, place and interval."""

    contents: Contents = "states"
    """states: weights and optimizer states, from which training resumes; weights: weights only, in
    the compute precision."""
    full: bool = False
    """Whether one rank gathers and writes everything (full state dict); else each its shard."""
    asynchronous: bool = False
    """Whether ranks copy to host memory and write in the background, while training goes on."""
    storage: Storage = "file-system"
    """Storage that ranks wait for: the shared file system, or the local disks of the nodes."""
    file_system: str = Field(default="", max_length=100)
    """Shared file system; empty: the machine's first one with a known rate."""
    share: float = Field(default=1.0, gt=0, le=1)
    """Share of the file system's bandwidth that the job gets."""
    interval_s: Annotated[float, Field(gt=0, le=1e9)] | None = None
    """Training time between two checkpoints; None: the optimum by Daly's formula [s]."""
    every_steps: int = Field(default=0, ge=0, le=10**9)
    """Steps between two checkpoints; 0: use interval_s."""

    @model_validator(mode="after")
    def _one_interval(self) -> Checkpoints:
        if self.interval_s is not None and self.every_steps:
            raise ValueError(
                f"interval_s = {self.interval_s:g} and every_steps = {self.every_steps} both "
                "set the interval; give one of them"
            )
        return self


class Evaluation(Description):
    """Evaluation between steps: forward passes and generated text."""

    every_steps: int = Field(default=0, ge=0, le=10**9)
    """Steps between two evaluations; 0: no evaluation."""
    sequences: int = Field(default=0, ge=0, le=10**12)
    """Sequences (samples) of one evaluation, over all its data sets."""
    ranks: Literal["all", "first"] = "all"
    """all: replicas share the sequences; first: one computes, others wait (nanoGPT, wordplay)."""
    generated_tokens: int = Field(default=0, ge=0, le=10**9)
    """Tokens that one rank generates at each evaluation, one by one; 0: none."""


_FailureSeconds = Annotated[float, Field(ge=0, le=1e7)]


class Failures(Description):
    """Interruptions of a training; defaults come from published trainings."""

    per_device_hour: float | None = Field(default=None, ge=0, le=1)
    """Interruptions of the job per device-hour; None: the rate of Llama 3 405B."""
    detection_s: _FailureSeconds | None = None
    """Time until a failure is detected and the job ended; None: torch's collective timeout [s]."""
    queue_s: _FailureSeconds = 0.0
    """Time until nodes are available again: repair, spare nodes, queue [s]."""


Environment = Literal["file-system", "local-disk", "nfs"]
Loading = Literal["none", "sharded", "rank-0", "every-rank"]

_StartUpSeconds = Annotated[float, Field(ge=0, le=1e6)]


class StartUp(Description):
    """Start-up of a job, before its first step."""

    environment: Environment = "file-system"
    """Where the Python environment is stored: parallel file system; local disk or memory of nodes,
    copied there as one file (sbcast, an image, a container); NFS."""
    loading: Loading = "none"
    """Origin of the weights. none: random, broadcast from rank 0 if not sharded; sharded: each rank
    reads its shard; rank-0: rank 0 reads everything and broadcasts; every-rank: every rank reads
    everything."""
    compile_s: _StartUpSeconds = 0.0
    """Compile time: torch.compile, kernels built at first use [s]."""
    data_index_s: _StartUpSeconds = 0.0
    """Time to build or read the index of the dataset [s]."""
    warm_up_s: _StartUpSeconds = 0.0
    """Extra time of the first steps [s]."""


class Charges(Description):
    """Power, price and emissions of a node-hour."""

    node_power_watts: float | None = Field(default=None, gt=0, le=1e6)
    """Power of a node in training [W]; None: estimated from the machine's rated power."""
    pue: float = Field(default=1.0, ge=1, le=10)
    """Power usage effectiveness: power of the whole centre / power of its nodes."""
    carbon_g_per_kwh: float | None = Field(default=None, ge=0, le=10_000)
    """Carbon intensity of the electricity [g CO2e/kWh]; None: unknown."""
    price_per_node_hour: float | None = Field(default=None, ge=0, le=1e9)
    """Price of a node-hour, in the user's currency; None: unknown."""
    price_per_kwh: float | None = Field(default=None, ge=0, le=1e6)
    """Price of a kWh, in the same currency; None: unknown."""


class Training(Description):
    """A training run: data, evaluation, checkpoints, failures, start-up and charges."""

    dataset: Dataset | None = None
    """Dataset; None: steps never wait for data."""
    loader: Loader = Loader()
    """Data loader."""
    evaluation: Evaluation = Evaluation()
    """Evaluation between steps."""
    checkpoints: Checkpoints = Checkpoints()
    """Checkpoints."""
    failures: Failures = Failures()
    """Failures."""
    start_up: StartUp = StartUp()
    """Start-up of every job."""
    charges: Charges = Charges()
    """Power, price and emissions of a node-hour."""
