"""A Dask cluster starts only when asked, is as the configuration says, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import pytest
import yaml
from distributed import Client, Security
from jsonschema import ValidationError, validate

from kgqa_core.config import ClusterSection
from kgqa_core.errors import KgqaError
from kgqa_core.run.cluster import fan_out, open_cluster
from tasks.leftovers import process_started
from tests.conftest import PROJECT, Start

MANIFEST = PROJECT / "docs" / "dask-cluster.yaml"


def test_a_scheduler_that_does_not_answer_is_named(tmp_path: Path) -> None:
    section = ClusterSection(address="tcp://127.0.0.1:9")  # port 9 is no scheduler
    with (
        pytest.raises(KgqaError, match=r"cluster\.address: .*tcp://127\.0\.0\.1:9.*dask scheduler"),
        open_cluster(section, home=tmp_path, timeout=0.5),
    ):
        pytest.fail("nobody answers there")


# A local cluster


def about_itself(dask_worker: Any) -> dict[str, Any]:
    """What a worker says of itself."""
    return {
        "pid": os.getpid(),
        "threads": os.environ.get("OMP_NUM_THREADS"),
        "memory": dask_worker.memory_manager.memory_limit,
        "pauses": dask_worker.memory_manager.memory_pause_fraction,
        "scratch": dask_worker.local_directory,
    }


@pytest.mark.slow
def test_local_workers_are_as_the_section_says_and_end_with_the_context(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in ("ours", "theirs/home/run"):
        (tmp_path / folder).mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "theirs")
    section = ClusterSection(workers=2, memory_limit="700MiB", spill_folder=tmp_path / "spilled")
    with open_cluster(section, home=tmp_path / "home") as client:
        workers = client.scheduler_info()["workers"]
        assert [worker["nthreads"] for worker in workers.values()] == [1, 1]
        with pytest.raises(urllib.error.HTTPError):
            urllib.request.urlopen(f"http://127.0.0.1:{client.scheduler_info()['services']['dashboard']}/status")
        answers = list(client.run(about_itself).values())
        for answer in answers:
            assert answer["threads"] == "1"
            assert answer["memory"] == 700 * 2**20
            assert answer["pauses"] is False  # memory that is never given back would keep it waiting for ever
            assert Path(answer["scratch"]).is_relative_to(tmp_path / "spilled")
        pids = [answer["pid"] for answer in answers]
        assert os.getpid() not in pids
        for pid in pids:
            os.kill(pid, signal.SIGINT)  # as a terminal does on Ctrl-C; who started them ends them
        assert client.submit(sum, [2, 3, 5, 7]).result() == 17
        assert {answer["pid"] for answer in client.run(about_itself).values()} == set(pids)
        # A cluster that is already there is used as it is, and goes on when the second client leaves.
        address = client.scheduler_info()["address"]
        assert address.startswith("tls://")
        for stranger in (Security(), Security.temporary()):  # who can send a task runs code here
            with pytest.raises(OSError):
                Client(
                    address.replace("tls:", "tls:" if stranger.tls_ca_file else "tcp:"), security=stranger, timeout=2
                )
        files = {"tls_ca": "tls_ca_file", "tls_cert": "tls_client_cert", "tls_key": "tls_client_key"}
        for name, field in files.items():
            (tmp_path / name).write_text(getattr(client.security, field))
        elsewhere = ClusterSection(address=address, workers=13, **{name: tmp_path / name for name in files})
        with open_cluster(elsewhere, home=tmp_path / "home") as second:
            assert len(second.scheduler_info()["workers"]) == 2
        assert client.submit(sum, [11, 13]).result() == 24
        if Path("/proc/self/cwd").is_dir():  # a path that is another folder for every process
            os.chdir(tmp_path / "ours")
            for place, what in (("home", "another disk"), ("other", "not there")):
                (tmp_path / "ours" / place).mkdir()
                named = rf"worker tls://\S+ on \S+ does not see the run's home: its /proc/self/cwd/{place} is {what}"
                with (
                    pytest.raises(KgqaError, match=named),
                    open_cluster(elsewhere, home=Path("/proc/self/cwd") / place),
                ):
                    pytest.fail("its workers would write elsewhere")
                assert not list((tmp_path / "ours" / place / "run").iterdir())
    assert [process_started(pid) for pid in pids] == [None, None]


def swallow_memory(megabytes: int) -> int:
    held = bytearray(megabytes * 2**20)
    held[::4096] = b"x" * len(held[::4096])  # every page
    time.sleep(60)
    return len(held)


@pytest.mark.slow
def test_a_task_that_outgrows_the_memory_limit_ends_its_worker_and_is_named(tmp_path: Path) -> None:
    import dask

    with (
        dask.config.set({"distributed.scheduler.allowed-failures": 0}),
        open_cluster(ClusterSection(workers=1, memory_limit="400MB"), home=tmp_path) as client,
        pytest.raises(KgqaError, match=r"^1000: every one of the 1 workers .*'swallow_memory'.*cluster\.memory_limit"),
    ):
        fan_out(client)(swallow_memory, [1_000])


def killed_the_first_time(mark: Path) -> int:
    if not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return os.getpid()


@pytest.mark.slow
def test_the_only_worker_comes_back_however_long_its_restart_takes(tmp_path: Path) -> None:
    """Dask gives a worker up that is away for a while; here, for less time than any restart takes."""
    import dask

    with (
        dask.config.set({"distributed.deploy.lost-worker-timeout": "100ms"}),
        open_cluster(ClusterSection(workers=1), home=tmp_path) as client,
    ):
        (before,) = client.run(os.getpid).values()
        assert fan_out(client)(killed_the_first_time, [tmp_path / "mark"]) != [before]


# A remote cluster


DASK = "import sys; from dask.__main__ import main; sys.argv[0] = 'dask'; main()"
QUIET = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
LOCAL = ("--host", "127.0.0.1", "--no-dashboard")


def start_scheduler(start: Start, folder: Path) -> tuple[subprocess.Popen[str], str]:
    """Start a scheduler on a free port, and return it with its address."""
    file = folder / "scheduler.json"
    options = (*LOCAL, "--port", 0, "--dashboard-address", "127.0.0.1:0", "--scheduler-file", file)
    return start(DASK, "scheduler", *options, **QUIET), wait_for(file)


def wait_for(file: Path) -> str:
    """Return the address that a scheduler writes when it listens."""
    until = time.monotonic() + 120
    while time.monotonic() < until:
        with suppress(OSError, ValueError):
            return str(json.loads(file.read_text())["address"])
        time.sleep(0.1)
    raise TimeoutError(file)


def double(number: int) -> tuple[int, int]:
    return 2 * number, os.getpid()


@pytest.mark.slow
def test_a_cluster_elsewhere_is_used_by_its_address_and_its_end_is_noticed(start: Start, tmp_path: Path) -> None:
    scheduler, address = start_scheduler(start, tmp_path)
    section = ClusterSection(address=address)
    with (
        pytest.raises(KgqaError, match=f"{address}.* has had no worker for 0 s. Start some with `dask worker"),
        open_cluster(section, home=tmp_path, timeout=0.4),
    ):
        pytest.fail("it has no worker")
    options = ("--nworkers", 1, "--nthreads", 1, *LOCAL, "--local-directory", tmp_path)
    start(DASK, "worker", address, *options, "--no-nanny", **QUIET)
    with open_cluster(section, home=tmp_path, timeout=120) as client:
        results = fan_out(client)(double, range(5))
        assert [result for result, _ in results] == [0, 2, 4, 6, 8]
        assert os.getpid() not in {pid for _, pid in results}
        with pytest.raises(KgqaError, match="the Dask scheduler went away"):
            fan_out(client)(time.sleep, ending(scheduler))


def ending(process: subprocess.Popen[str]) -> Iterator[int]:
    """Yield one item, and end a process before there is a second one."""
    yield 60
    process.kill()
    process.wait()


@pytest.mark.slow
def test_the_recipe_for_slurm_gives_workers_what_they_need(tmp_path: Path) -> None:
    """The lines of docs/cluster.md, as dask-jobqueue understands them."""
    text = (PROJECT / "docs" / "cluster.md").read_text("utf-8")
    (lines,) = re.findall(r"```python\n(from pathlib.*?)cluster\.scale", text, re.DOTALL)
    (tmp_path / "tls").mkdir()
    here = 'scheduler_options={"host": "127.0.0.1", "dashboard_address": "127.0.0.1:0"}, queue='
    names: dict[str, Any] = {}
    exec(lines.replace("/shared/kgqa", str(tmp_path)).replace("queue=", here), names)
    with names["cluster"] as cluster:
        script = cluster.job_script()
        section = ClusterSection(
            address=cluster.scheduler_address,
            tls_ca=tmp_path / "tls" / "ca_file",
            tls_cert=tmp_path / "tls" / "client_cert",
            tls_key=tmp_path / "tls" / "client_key",
        )
        # It answers to the files that the recipe writes; without a worker nothing more can be had of it.
        with pytest.raises(KgqaError, match="has had no worker"), open_cluster(section, home=tmp_path, timeout=2):
            pytest.fail("there is no worker")
    assert "#SBATCH -p normal" in script and "#SBATCH -t 04:00:00" in script and "--cpus-per-task=8" in script
    assert "export OMP_NUM_THREADS=1" in script and f"export KGQA_HOME={tmp_path}/home" in script
    assert (
        " --nthreads 1 " in script
        and " --nworkers 8 " in script
        and " --tls-key " in script.partition("distributed.cli.dask_worker")[2]
    )


def closed(schema: Any) -> Any:
    """Return a schema that takes no field which it does not name, so that a slip of the pen is one."""
    if isinstance(schema, list):
        return [closed(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    refuses = "properties" in schema and schema.get("type") == "object"
    return {key: closed(value) for key, value in schema.items()} | ({"additionalProperties": False} if refuses else {})


@pytest.mark.slow
def test_the_manifest_for_kubernetes_is_one_that_the_operator_takes() -> None:
    """docs/dask-cluster.yaml against the resource's definition, which the operator installs."""
    package = "dask_kubernetes/operator/deployment/helm/dask-kubernetes-operator/crds/daskcluster.yaml"
    definition = yaml.safe_load(Path(str(distribution("dask-kubernetes").locate_file(package))).read_text("utf-8"))
    (version,) = definition["spec"]["versions"]
    schema = closed(
        {"type": "object", "properties": {"spec": version["schema"]["openAPIV3Schema"]["properties"]["spec"]}}
    )
    manifest = yaml.safe_load(MANIFEST.read_text("utf-8"))
    assert manifest["apiVersion"] == f"{definition['spec']['group']}/{version['name']}"
    assert manifest["kind"] == definition["spec"]["names"]["kind"]
    validate({"spec": manifest["spec"]}, schema)
    with pytest.raises(ValidationError, match="volumeMount"):
        slip = json.loads(json.dumps(manifest["spec"]).replace("volumeMounts", "volumeMount"))
        validate({"spec": slip}, schema)
    for pod in (manifest["spec"]["scheduler"]["spec"], manifest["spec"]["worker"]["spec"]):
        (container,) = pod["containers"]
        assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}


@pytest.mark.slow
def test_the_commands_of_the_manifest_make_a_cluster(start: Start, tmp_path: Path) -> None:
    """As they stand there, but for what one machine has otherwise: host, ports, folders and the worker's name."""
    manifest, security = yaml.safe_load(MANIFEST.read_text("utf-8")), Security.temporary()
    files = {name: tmp_path / name for name in ("ca_file", "client_cert", "client_key")}
    for name, file in files.items():
        file.write_text(getattr(security, f"tls_{name}"))

    def launch(role: str, here: dict[str, str], *more: object) -> None:
        (container,) = manifest["spec"][role]["spec"]["containers"]
        words = [*container["command"], *container["args"]]
        for there, mine in {"/tls/": f"{tmp_path}/", **here}.items():
            assert any(there in word for word in words), there
            words = [word.replace(there, mine) for word in words]
        assert words[0] == "dask"
        start(DASK, *words[1:], "--host", "127.0.0.1", *more, **QUIET)

    noted = tmp_path / "scheduler.json"
    launch("scheduler", {"8786": "0", ":8787": "127.0.0.1:0"}, "--scheduler-file", noted)
    address = wait_for(noted)
    assert address.startswith("tls://")
    here = {"tls://kgqa-scheduler:8786": address, "$(DASK_WORKER_NAME)": "kgqa-0"}
    launch("worker", here, "--local-directory", tmp_path)
    section = ClusterSection(
        address=address, tls_ca=files["ca_file"], tls_cert=files["client_cert"], tls_key=files["client_key"]
    )
    with open_cluster(section, home=tmp_path, timeout=120) as client:
        assert [one["name"] for one in client.scheduler_info()["workers"].values()] == ["kgqa-0"]
        assert [result for result, _ in fan_out(client)(double, range(3))] == [0, 2, 4]
