"""The Ray engine on a cluster of two nodes on this machine: the same bits as serial, also when a node is lost."""

import os
import signal
import subprocess

import pytest

import fedetf
from fedetf.errors import UserError
from fedetf.federation import Listener

ray = pytest.importorskip("ray", reason="the extra fedetf[ray] is not installed")

from test_engines import OPTIONS, SMALL, assert_equal  # noqa: E402  # after the skip

pytestmark = [
    pytest.mark.slow,
    pytest.mark.xdist_group("ray"),  # one cluster at a time
    pytest.mark.filterwarnings("ignore::ResourceWarning"),  # Ray leaves files open
]


def test_no_cluster_is_said() -> None:
    with pytest.raises(UserError, match=r"no Ray cluster at 'auto'"):
        fedetf.run(engine="ray", settings={**SMALL, "engine.address": "auto"}, **OPTIONS)


# How soon a node that does not answer counts as lost: within seconds, not a minute.
QUICK = {"health_check_period_ms": 1000, "health_check_timeout_ms": 1000, "health_check_failure_threshold": 2}


@pytest.fixture(scope="module")
def cluster():
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


def on_cluster(cluster, **options) -> fedetf.Result:
    settings = {**SMALL, "engine.address": cluster.address}
    return fedetf.run(engine="ray", settings=settings, **{**OPTIONS, **options})


@pytest.mark.parametrize("method", ["fedetf", "feddyn", "fedrep"])
def test_a_cluster_gives_the_same_bits_as_serial(cluster, method: str) -> None:
    alone = fedetf.run(engine="serial", method=method, settings=SMALL, **OPTIONS)
    assert_equal(alone, on_cluster(cluster, method=method))


def test_an_error_reaches_the_user(cluster) -> None:
    from test_engines import Fails

    with pytest.raises(fedetf.RunError, match=r"^client 2, round 2: ValueError: boom$"):
        on_cluster(cluster, method=Fails, participation=1.0)


class Kill(Listener):
    """Kills an actor in the first round and a whole node in the second."""

    def __init__(self, cluster):
        self.cluster, self.seen, self.lost = cluster, 0, []

    def client_done(self, record) -> None:
        self.seen += 1
        if self.seen == 2:
            os.kill(worker_pids()[0], signal.SIGKILL)
            self.lost.append("actor")
        if self.seen == 7:
            node = self.cluster.list_all_nodes()[-1]
            self.cluster.remove_node(node, allow_graceful=False)
            self.lost.append("node")


def worker_pids() -> list[int]:
    """The processes of the actors."""
    lines = subprocess.run(["ps", "-eo", "pid,args"], capture_output=True, text=True, check=True).stdout.splitlines()
    return [int(line.split()[0]) for line in lines if "ray::_Actor" in line]


def test_a_lost_actor_and_a_lost_node_change_nothing(cluster) -> None:
    options = {"method": "ditto", "participation": 1.0, "rounds": 3}
    alone = fedetf.run(engine="serial", settings=SMALL, **{**OPTIONS, **options})
    kill = Kill(cluster)
    assert_equal(alone, on_cluster(cluster, listeners=[kill], **options))
    assert kill.lost == ["actor", "node"]
