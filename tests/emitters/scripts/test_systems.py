"""Batch systems: what each machine's script asks for, and what its ranks get."""

from __future__ import annotations

import re
import shutil

import pytest
import yaml

from planner.describe.catalogue import load_machine, names
from planner.describe.machine import Machine
from planner.describe.machine.machine import Launch, Queue, Scheduler
from planner.errors import EmitError
from tests.emitters.emitted import Files, place_files, run_on, scripts

SLURM = [name for name in names("machine") if load_machine(name).scheduler.kind == "slurm"]

FLUX = Scheduler(
    kind="flux",
    queues=(Queue(name="pbatch", max_nodes=64, max_hours=1),),
    launch=Launch(
        tasks="device",
        account=True,
        cpus=96,
        rank_variables=("FLUX_TASK_RANK", "FLUX_TASK_LOCAL_ID"),
        source="a test",
    ),
)


def own(kind: str, scheduler: Scheduler) -> Machine:
    """A machine of the catalogue under another batch system."""
    return load_machine(kind).replaced(scheduler=scheduler.model_dump())


def number(text: str, option: str) -> list[int]:
    return [int(found) for found in re.findall(rf"{option}[= ](\d+)", text)]


# accelerate has one process a node everywhere
@pytest.mark.parametrize(
    ("name", "framework"),
    [*((name, "deepspeed") for name in SLURM), ("alps", "accelerate"), ("lumi-g", "accelerate")],
)
def test_ranks_of_every_slurm_machine_get_their_cpus(name: str, framework: str) -> None:
    """Without a number a task gets one CPU, and srun does not take it from the directives."""
    text = place_files(name, framework, nodes=1)["job.sh"]
    directives, _, rest = text.partition("\n\n")
    (start,) = re.findall(r"^srun (?:.*\\\n)*", rest, re.MULTILINE)
    tasks = number(start, "--ntasks-per-node")
    each = number(start, "--cpus-per-task")
    assert (tasks, each) == (
        number(directives, "--ntasks-per-node"),
        number(directives, "--cpus-per-task"),
    )
    machine = load_machine(name)
    launch = machine.scheduler.launch
    cpus = (launch and launch.cpus) or machine.node.num_cores.value
    assert cpus - tasks[0] < tasks[0] * each[0] <= cpus
    assert start.count("--cpu-bind=") == 1


def test_lumi_binds_each_rank_to_the_cores_beside_its_device() -> None:
    """Seven of the eight cores of a chiplet; the first of each is the system's."""
    text = place_files("lumi-g", "ddp")["job.sh"]
    (masks,) = re.findall(r"--cpu-bind=mask_cpu:(\S+)", text)
    cores = [[core for core in range(64) if int(mask, 16) >> core & 1] for mask in masks.split(",")]
    # the order of the site's own map_cpu, one core a rank
    assert [ranks[0] for ranks in cores] == [49, 57, 17, 25, 1, 9, 33, 41]
    assert all(ranks == list(range(ranks[0], ranks[0] + 7)) for ranks in cores)
    assert "export NCCL_SOCKET_IFNAME=hsn\n" in text
    assert "module load aws-ofi-rccl" in text


def test_marenostrum_tells_partition_and_qos_apart() -> None:
    short, long = (place_files("mn5-acc", steps=steps)["job.sh"] for steps in (1, 10**7))
    for text, qos in ((short, "acc_debug"), (long, "acc_ehpc")):
        assert f"#SBATCH --partition=acc\n#SBATCH --qos={qos}\n" in text
        assert "#SBATCH --gres=gpu:4\n" in text
    assert ': "${PROJECT:?' in place_files("mn5-acc")["submit.sh"]


def test_perlmutter_finds_its_network() -> None:
    for name in ("perlmutter", "perlmutter-80gb"):
        text = place_files(name)["job.sh"]
        assert re.search(r"^module load .*\bnccl\b", text, re.MULTILINE)
        assert "export NCCL_NET='AWS Libfabric'\n" in text


def test_a_job_sets_up_the_network_that_its_estimate_is_of() -> None:
    """Megatron-DeepSpeed's jobs on Polaris exported a variable that hangs them there."""
    plain = place_files("polaris", "ddp")["job.sh"]
    assert "export NCCL_NET='AWS Libfabric'\n" in plain
    assert "export NCCL_NET_GDR_LEVEL=PHB\n" in plain
    assert "/soft/libraries/aws-ofi-nccl" in plain
    # as argonne-lcf/Megatron-DeepSpeed, ALCF/aws_ofi_nccl_plugin.sh; the conda module may set more
    staged = place_files("polaris", "megatron-deepspeed")
    assert "export NCCL_NET='AWS Libfabric'\n" in staged["job.sh"]
    assert "/soft/libraries/aws-ofi-nccl" in staged["job.sh"]
    assert re.search(r"^unset .*NCCL_NET_GDR_LEVEL\b", staged["job.sh"], re.MULTILINE)
    # the machine is still that of the catalogue, whatever the framework
    assert "--machine polaris" in staged["README.md"]
    slow = place_files(load_machine("polaris", ("network=sockets",)), "megatron-deepspeed")[
        "job.sh"
    ]
    assert "aws-ofi" not in slow
    (unset,) = re.findall(r"^unset (.*)$", slow, re.MULTILINE)
    # the site's own line, and what else the plugin had set
    site = {"NCCL_NET_GDR_LEVEL", "NCCL_CROSS_NIC", "NCCL_COLLNET_ENABLE", "NCCL_NET"}
    assert site < set(unset.split())


@pytest.mark.parametrize("framework", ["ddp", "accelerate", "ezpz"])
def test_a_benchmark_runs_on_the_nodes_and_the_network_of_its_job(framework: str) -> None:
    """What it prints is what `planner calibrate --from-collectives` reads."""
    for network in ("plugin", "sockets"):
        polaris = load_machine("polaris", (f"network={network}",))
        files = place_files(polaris, framework, benchmark=True)
        text = files["collectives.sh"]
        assert run_on(text, "bash", "-n").returncode == 0
        assert "#PBS -l select=2\n" in text
        assert "#PBS -l walltime=00:30:00\n" in text
        assert text.endswith(" > collectives.csv\n")
        assert "-n 8 --ppn 4 " in text
        assert "rank.sh" in files
        # one rank a device asks torch, whatever launches the job itself
        assert "bash rank.sh python3 -u -m planner validate" in text
        assert ("export NCCL_NET='AWS Libfabric'\n" in text) == (network == "plugin")
        assert "finished" not in text
        assert "calibrate --from-collectives collectives.csv -m polaris" in files["README.md"]
    assert "collectives.sh" not in place_files("polaris", framework)


@pytest.mark.parametrize("name", ["polaris", "aurora"])
def test_compute_nodes_that_need_a_proxy_get_it(name: str) -> None:
    text = place_files(name, "ddp")["job.sh"]
    for scheme in ("http", "https"):
        assert f"export {scheme}_proxy=http://proxy.alcf.anl.gov:3128\n" in text


def test_what_mpi_starts_and_what_one_process_forks_need_other_variables() -> None:
    """A process that mpiexec did not start cannot ask its pmix for a rank."""
    started = place_files("aurora", "ddp")["job.sh"]
    forked = place_files("aurora", "accelerate")["job.sh"]
    assert "export CCL_PROCESS_LAUNCHER=pmix\n" in started
    assert "export CCL_KVS_MODE=mpi\n" in started
    assert "pmix" not in forked
    assert "export CCL_PROCESS_LAUNCHER=torchrun\n" in forked
    assert "export CCL_ATL_TRANSPORT=ofi\n" in forked
    # a module may have set it
    assert "unset CCL_KVS_MODE\n" in forked


def test_open_mpi_hands_on_what_is_named() -> None:
    text = place_files("sophia", "accelerate")["job.sh"]
    exported = set(re.findall(r"^export (\w+)=", text, re.MULTILINE)) - {"MASTER_ADDR"}
    assert {"PATH", "LD_LIBRARY_PATH", *exported} == set(re.findall(r" -x (\w+)", text))


def test_lsf_gives_each_node_one_resource_set() -> None:
    files = place_files("summit", nodes=4, steps=10**7)
    text = files["job.sh"]
    assert re.search(r"^#BSUB -nnodes 4\n#BSUB -W 2:00\n", text, re.MULTILINE)
    assert "#BSUB -q batch\n" in text
    found = {
        key: number(text, key)[0]
        for key in ("--nrs", "--rs_per_host", "--tasks_per_rs", "--cpu_per_rs", "--gpu_per_rs")
    }
    assert list(found.values()) == [4, 1, 6, 42, 6]
    assert "--bind=packed:7" in text
    assert "JSM_NAMESPACE_RANK" in files["rank.sh"]


def test_flux_binds_tasks_to_cores_of_their_own() -> None:
    text = place_files(own("mi300x-node", FLUX), nodes=2)["job.sh"]
    asked = dict(re.findall(r"^#FLUX: --([\w-]+)=?(\S*)$", text, re.MULTILINE))
    assert asked.keys() >= {"exclusive", "job-name", "output"}
    assert (asked["nodes"], asked["queue"]) == ("2", "pbatch")
    assert re.fullmatch(r"[1-9]\d?m", asked["time-limit"])
    (start,) = re.findall(r"^flux run (?:.*\\\n)*", text, re.MULTILINE)
    assert "--nodes=2 --ntasks=16 --cores-per-task=12 --gpus-per-task=1" in start
    assert "-o cpu-affinity=per-task" in start
    assert 'cd "' not in text


# --- Kubernetes ------------------------------------------------------------------------------

CLUSTER = Scheduler(kind="kubernetes")


def cluster(nodes: int, framework: str = "deepspeed", **options: str) -> Files:
    return place_files(own("dgx-h100", CLUSTER), framework, nodes=nodes, **options)


@pytest.mark.parametrize("nodes", [1, 4])
def test_a_pod_is_a_node(nodes: int) -> None:
    job = yaml.safe_load(cluster(nodes)["job.yaml"])
    assert (job["apiVersion"], job["kind"]) == ("kubeflow.org/v1", "PyTorchJob")
    replicas = job["spec"]["pytorchReplicaSpecs"]
    assert {kind: r["replicas"] for kind, r in replicas.items()} == (
        {"Master": 1} if nodes == 1 else {"Master": 1, "Worker": nodes - 1}
    )
    for replica in replicas.values():
        spec = replica["template"]["spec"]
        (container,) = spec["containers"]
        # the operator finds the container by this name
        assert container["name"] == "pytorch"
        assert container["resources"]["limits"] == {"nvidia.com/gpu": 8}
        assert container["resources"]["requests"] == {"cpu": 112, "nvidia.com/gpu": 8}
        mounted = {mount["name"] for mount in container["volumeMounts"]}
        assert mounted == {volume["name"] for volume in spec["volumes"]}


def test_pods_find_each_other_by_what_the_operator_sets() -> None:
    text = cluster(2)["job.sh"]
    assert '--node-rank="${RANK}"' in text
    assert '--master-addr="${MASTER_ADDR}"' in text
    assert "srun" not in text
    assert '--machine_rank "${RANK}"' in cluster(2, "accelerate")["job.sh"]
    # all pods write into one folder
    assert 'LOG="run-${RANK}.log"' in text


def test_the_manifest_is_filled_in() -> None:
    files = cluster(2, queue="team-a")
    submit = files["submit.sh"].replace("kubectl apply -f -", "cat")
    given = 'IMAGE="reg.io/a/b:1|2" CLAIM=data FOLDER=runs/x PROGRAM=main.py\n'.replace("|", "-")
    lines = submit.replace('cd "$(dirname "${BASH_SOURCE[0]}")"', given)
    lines = lines.replace("job.yaml", "<(cat <<'END'\n" + files["job.yaml"] + "END\n)")
    done = run_on(lines, "bash")
    assert done.returncode == 0, done.stderr
    assert "${" not in done.stdout
    job = yaml.safe_load(done.stdout)
    (container,) = job["spec"]["pytorchReplicaSpecs"]["Master"]["template"]["spec"]["containers"]
    assert container["image"] == "reg.io/a/b:1-2"
    assert {"name": "PROGRAM", "value": "main.py"} in container["env"]
    assert job["metadata"]["labels"] == {"kueue.x-k8s.io/queue-name": "team-a"}


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="shellcheck is not installed")
@pytest.mark.parametrize("scheduler", [FLUX, CLUSTER], ids=["flux", "kubernetes"])
@pytest.mark.parametrize("framework", ["deepspeed", "accelerate"])
def test_their_scripts_are_clean(scheduler: Scheduler, framework: str) -> None:
    for text in scripts(place_files(own("dgx-h100", scheduler), framework)).values():
        assert run_on(text, "bash", "-n").returncode == 0
        done = run_on(text, "shellcheck", "-S", "info", "-")
        assert (done.returncode, done.stdout) == (0, "")


def test_devices_that_kubernetes_has_no_name_for() -> None:
    with pytest.raises(EmitError, match="have no name known to Kubernetes"):
        place_files(own("aurora", CLUSTER), nodes=1)


def test_cpus_without_a_word_of_the_site() -> None:
    """The cores of the node, which the README says where they are assumed."""
    readme = place_files("grand-teton")["README.md"]
    assert "112 CPUs per node, an assumed number" in readme
    assert "an assumed number" not in place_files("dgx-h100")["README.md"]
