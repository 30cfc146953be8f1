"""Kubernetes: a PyTorchJob whose pods run the job script from a shared volume."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from planner.emitters.batch_job import BatchJob
from planner.emitters.queue import Slot
from planner.emitters.recipe import File
from planner.emitters.scripts.system import BREAK, BatchSystem, cpus_of
from planner.emitters.text import yaml_text
from planner.errors import EmitError

__all__ = ["CLUSTER", "Kubernetes", "apply_command", "manifest"]

CLUSTER: Mapping[str, str] = {
    "IMAGE": "the container image that holds Python, torch and the framework",
    "CLAIM": "the claim of the shared volume that holds this folder",
    "FOLDER": "the path of this folder in that volume",
}
"""What only the user of a cluster knows."""
_MOUNT = "/job"
_RESOURCES = {"cuda": "nvidia.com/gpu", "rocm": "amd.com/gpu"}
"""Devices as the device plugins of their makers name them."""


class Kubernetes(BatchSystem):
    """The training operator of Kubeflow, which gives each pod `RANK` and `MASTER_ADDR`."""

    folder = '"$(dirname "${BASH_SOURCE[0]}")"'
    hosts = ""
    number = "0"
    submission = None
    meeting = ('--machine_rank "${RANK}"', *BatchSystem.meeting)
    log = ('LOG="run.log"', '[[ "${RANK}" == 0 ]] || LOG="run-${RANK}.log"')

    def directives(self, job: BatchJob, slot: Slot, tasks: int) -> list[str]:
        """None: the manifest asks."""
        return []

    def across(self, job: BatchJob, tasks: int, exported: Iterable[str]) -> str:
        """Nothing: every pod runs the script."""
        return ""

    def torchrun(self, job: BatchJob) -> str:
        """A pod is a node, and the operator has numbered them."""
        return BREAK.join(
            [
                f"--nnodes={job.nodes} --nproc-per-node={job.ranks_per_node}",
                '--node-rank="${RANK}"',
                '--master-addr="${MASTER_ADDR}" --master-port="${MASTER_PORT}"',
            ]
        )


def manifest(job: BatchJob, slot: Slot, handed: Iterable[str]) -> File:
    """`job.yaml`; what stands in it as `${NAME}` is filled in by `submit.sh`."""
    pods = {"Master": 1, "Worker": job.nodes - 1}
    replicas = {
        kind: {
            "replicas": count,
            "restartPolicy": "OnFailure",
            "template": {"spec": _pod(job, handed)},
        }
        for kind, count in pods.items()
        if count
    }
    metadata: dict[str, Any] = {"name": _name(job)}
    if slot.queue is not None:
        metadata["labels"] = {"kueue.x-k8s.io/queue-name": slot.queue.name}
    text = yaml_text(
        {
            "apiVersion": "kubeflow.org/v1",
            "kind": "PyTorchJob",
            "metadata": metadata,
            "spec": {"pytorchReplicaSpecs": replicas},
        }
    )
    return File("job.yaml", "the PyTorchJob, for Kubeflow's training operator", text)


def _name(job: BatchJob) -> str:
    """Letters of a DNS label only."""
    return job.name.lower().replace("_", "-").replace(".", "-")


def _pod(job: BatchJob, handed: Iterable[str]) -> dict[str, Any]:
    runtime = job.machine.device.runtime
    if runtime not in _RESOURCES:
        raise EmitError(
            f"the devices of {job.where} ({runtime}) have no name known to Kubernetes; emit for a "
            "machine with cuda or rocm"
        )
    devices = {_RESOURCES[runtime]: job.ranks_per_node}
    container = {
        # the operator looks for this name
        "name": "pytorch",
        "image": "${IMAGE}",
        "command": ["bash", f"{_MOUNT}/job.sh"],
        "env": [{"name": name, "value": f"${{{name}}}"} for name in handed],
        "resources": {"requests": {"cpu": cpus_of(job), **devices}, "limits": devices},
        "volumeMounts": [
            {"name": "folder", "mountPath": _MOUNT, "subPath": "${FOLDER}"},
            {"name": "memory", "mountPath": "/dev/shm"},
        ],
    }
    volumes = [
        {"name": "folder", "persistentVolumeClaim": {"claimName": "${CLAIM}"}},
        # NCCL and data loaders need more than the 64 MB of a container
        {"name": "memory", "emptyDir": {"medium": "Memory"}},
    ]
    return {"containers": [container], "volumes": volumes}


def apply_command(passed: Iterable[str]) -> str:
    """The command of `submit.sh` that fills in the manifest and applies it."""
    names = [*CLUSTER, *passed]
    fills = BREAK.join(f'-e "s|\\${{{name}}}|${{{name}}}|g"' for name in names)
    return f"sed {fills} job.yaml{BREAK}| kubectl apply -f -"
