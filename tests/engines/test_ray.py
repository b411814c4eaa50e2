"""The Ray engine on a cluster of two nodes on this machine: the same bits as serial, also when a node is lost.

Other clusters of this machine, of other versions too, are none of our business: ours has its own folder, is joined by
its address, never by `auto`, and what is killed is found from its own processes.
"""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import surface
from processes import children, command
from same import OPTIONS, SMALL, assert_equal, assert_same_run

import fedetf
from fedetf.cli import main
from fedetf.federation import Listener
from fedetf.methods import METHODS

ray = pytest.importorskip("ray", reason="the extra fedetf[ray] is not installed")


pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.xdist_group("ray"),  # one cluster at a time
    pytest.mark.filterwarnings("ignore::ResourceWarning"),  # Ray leaves files open
]


# How soon a node that does not answer counts as lost: within seconds, not a minute.
QUICK = {"health_check_period_ms": 1000, "health_check_timeout_ms": 1000, "health_check_failure_threshold": 2}


@pytest.fixture(scope="module", autouse=True)
def _own_folder() -> Iterator[None]:
    """Ray's sockets and the file with the address of the latest cluster; a short name, for sockets have a limit."""
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory(prefix="ray-") as folder:
        patch.setenv("RAY_TMPDIR", folder)
        patch.delenv("RAY_ADDRESS", raising=False)
        yield


@pytest.fixture(scope="module")
def cluster(_own_folder):
    """Two nodes with one core each: a driver's own, which lasts, and another."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    from ray.cluster_utils import Cluster

    one_core = {"num_cpus": 1, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args={**one_core, "_system_config": QUICK})
    cluster.add_node(num_cpus=1)
    cluster.wait_for_nodes()
    yield cluster
    ray.shutdown()
    cluster.shutdown()


@pytest.fixture
def run_at(capfd: pytest.CaptureFixture[str], tmp_path) -> Callable[[str | None], str]:
    """What the command says, Ray's own processes and libraries included: one error line and nothing else."""

    def run(address: str | None) -> str:
        ray.shutdown()  # of the test before
        where = () if address is None else ("--set", f"engine.address={address}")
        flags = ("--engine", "ray", "--clients", "2", "--rounds", "1", "--set", "data.limit=50", *where)
        assert main(["run", *flags, "--out", str(tmp_path / "run")]) == 2
        said = capfd.readouterr().err
        assert said.count("\n") == 1, said
        return said

    return run


def test_nobody_at_the_address(run_at) -> None:
    with socket.socket() as probe:  # bound, so that nobody else gets the port, but not listening
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
        for where in (address, f"ray://{address}"):
            assert run_at(where).startswith(f"error: no Ray cluster to work with at '{where}': ")


def test_ray_that_cannot_start(run_at, monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path / ("long" * 30)))  # too long for the name of a socket
    said = run_at(None)
    assert said.startswith("error: Ray does not start here: ")
    assert "AF_UNIX" in said


def test_a_cluster_of_another_version(cluster, run_at) -> None:
    """What the cluster says of itself is all that a driver goes by."""
    from ray._private.ray_constants import KV_NAMESPACE_CLUSTER
    from ray._raylet import GcsClient

    store, key = GcsClient(address=cluster.address), b"CLUSTER_METADATA"
    truth = store.internal_kv_get(key, namespace=KV_NAMESPACE_CLUSTER)
    other = json.dumps({**json.loads(truth), "ray_version": "2.9.3"}).encode()
    store.internal_kv_put(key, other, True, namespace=KV_NAMESPACE_CLUSTER)
    try:
        said = run_at(cluster.address)
    finally:
        store.internal_kv_put(key, truth, True, namespace=KV_NAMESPACE_CLUSTER)
    assert said.startswith(f"error: no Ray cluster to work with at '{cluster.address}': Version mismatch: ")
    assert "Ray: 2.9.3" in said
    assert f"Ray: {ray.__version__}" in said
    assert said.endswith("; install the cluster's versions here\n")


def on_cluster(cluster, **options) -> fedetf.Result:
    settings = {**SMALL, "engine.address": cluster.address}
    return fedetf.run(engine="ray", settings=settings, **{**OPTIONS, **options})


@pytest.mark.parametrize("method", ["fedetf", "feddyn", "fedrep"])
def test_a_cluster_gives_the_same_bits_as_serial(cluster, method: str) -> None:
    alone = fedetf.run(engine="serial", method=method, settings=SMALL, **OPTIONS)
    assert_equal(alone, on_cluster(cluster, method=method))


# One actor each, to be cheap: that two give the same bits is tested above, and they do not depend on the method.
ONE = {"engine": "ray", "workers": 1}


@pytest.fixture(scope="class")
def same_actor(cluster) -> Iterator[None]:
    """An actor made anew in its process for each run: a new process would import torch for longer than it runs."""
    from fedetf.engines.ray import RayEngine

    actors, start = [], RayEngine._new_actor

    def again(engine: RayEngine) -> Any:
        if actors:
            ray.get(actors[0].__ray_call__.remote(lambda it, *job: it.__init__(*job), sys.path, engine._job, "cpu"))
        else:
            actors.append(start(engine))
        return actors[0]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RayEngine, "_new_actor", again)
        patch.setattr(RayEngine, "close", lambda engine: None)
        yield
    for actor in actors:
        ray.kill(actor)


@pytest.mark.usefixtures("same_actor")
class TestOneActor:
    @pytest.mark.parametrize("method", METHODS)
    def test_every_method(self, cluster, method: str) -> None:
        """With full participation clients come back: what some methods keep is used from the second round on."""
        options = {"method": method, "clients": 3, "alpha": 0.5, "rounds": 2, "epochs": 1, "model": "mlp"}
        settings = {**SMALL, "data.limit": 90}
        alone = fedetf.run(engine="serial", settings=settings, **options)
        assert_equal(alone, fedetf.run(settings={**settings, "engine.address": cluster.address}, **ONE, **options))

    @pytest.mark.parametrize("method", surface.FOUR)
    def test_methods_that_need_more_than_features(self, cluster, method: str) -> None:
        options = {**surface.OPTIONS, "method": method}
        alone = fedetf.run(engine="serial", settings=surface.SMALL, **options)
        there = fedetf.run(settings={**surface.SMALL, "engine.address": cluster.address}, **ONE, **options)
        assert_equal(alone, there)

    @pytest.mark.parametrize("name", surface.PIPELINES)
    def test_pipelines(self, cluster, name: str) -> None:
        options = {**surface.OPTIONS, "method": "fedetf", "model": "mlp"}
        settings = {**surface.SMALL, **surface.PIPELINES[name]}
        alone = fedetf.run(engine="serial", settings=settings, **options)
        there = fedetf.run(settings={**settings, "engine.address": cluster.address}, **ONE, **options)
        assert_equal(alone, there)
        for cost in ("bytes_up", "bytes_down", "epsilon"):
            assert there.summary[cost] == alone.summary[cost]


DRIVER = """
import json, sys
import fedetf
from surface import KillAfter
fedetf.run(listeners=[KillAfter(3)], **json.loads(sys.argv[1]))
"""


def test_a_killed_driver_goes_on_to_the_same_bits(cluster, tmp_path: Path) -> None:
    """With something to remember at both ends: Adam's moments, and what top-k has left out."""
    stages = {**surface.PIPELINES["adam"], **surface.PIPELINES["top_k"]}
    options = {**surface.OPTIONS, "method": "fedetf", "model": "mlp", "settings": {**surface.SMALL, **stages}}
    fedetf.run(engine="serial", out=tmp_path / "whole", **options)
    options["settings"] = {**options["settings"], "engine.address": cluster.address}
    given = json.dumps({**options, **ONE, "out": str(tmp_path / "broken")})
    here = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    ended = subprocess.run([sys.executable, "-c", DRIVER, given], env=here, capture_output=True, text=True, check=False)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    fedetf.resume(tmp_path / "broken", settings={"engine.address": cluster.address})
    assert_same_run(tmp_path / "whole", tmp_path / "broken")


def test_an_error_reaches_the_user(cluster) -> None:
    from test_engines import Fails

    with pytest.raises(fedetf.RunError, match=r"^client 2, round 2: ValueError: boom \(.*, line \d+\)$"):
        on_cluster(cluster, method=Fails, participation=1.0)


class Kill(Listener):
    """Kills an actor in the first round and a whole node in the second."""

    def __init__(self, cluster):
        self.cluster, self.seen, self.lost = cluster, 0, []

    def client_done(self, record) -> None:
        self.seen += 1
        if self.seen == 2:
            os.kill(worker_pids(self.cluster)[0], signal.SIGKILL)
            self.lost.append("actor")
        if self.seen == 7:
            node = self.cluster.list_all_nodes()[-1]
            self.cluster.remove_node(node, allow_graceful=False)
            self.lost.append("node")


def worker_pids(cluster) -> list[int]:
    """The processes of the actors of this cluster: its nodes have started them."""
    nodes = [node.all_processes["raylet"][0].process.pid for node in cluster.list_all_nodes()]
    return [pid for node in nodes for pid in children(node) if "ray::_Actor" in command(pid)]


def test_another_programs_actors_are_left_alone(cluster) -> None:
    with subprocess.Popen(["ray::_Actor", "600"], executable=shutil.which("sleep")) as stranger:
        try:
            assert "ray::_Actor" in command(stranger.pid)
            assert stranger.pid not in worker_pids(cluster)
        finally:
            stranger.kill()


def test_a_lost_actor_and_a_lost_node_change_nothing(cluster) -> None:
    options = {"method": "ditto", "participation": 1.0, "rounds": 3}
    alone = fedetf.run(engine="serial", settings=SMALL, **{**OPTIONS, **options})
    kill = Kill(cluster)
    assert_equal(alone, on_cluster(cluster, listeners=[kill], **options))
    assert kill.lost == ["actor", "node"]
