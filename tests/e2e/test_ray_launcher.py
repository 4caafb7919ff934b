"""The quickstart's recipe on a Ray cluster of two simulated nodes, with actors that are killed."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.accounts import check_accounts
from tests.support.paths import EXAMPLES
from tests.support.runs import Launch, wait_until

ray = pytest.importorskip("ray")

pytestmark = pytest.mark.slow

RECIPE = EXAMPLES / "grpo" / "rl.toml"
MEMORY = 80 * 2**20
"""Size of a node's object store in bytes; nothing large is stored in it."""
START = 240.0
"""Maximum time until the first step in seconds: five processes and Ray start on few cores."""
STEPS = 30
SERVERS = ("inference_0", "inference_1")


@pytest.fixture
def cluster() -> Iterator[str]:
    """Address of a cluster of two nodes with room for two servers, an orchestrator and a trainer."""
    from ray.cluster_utils import Cluster

    head = {"num_cpus": 2, "object_store_memory": MEMORY, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    cluster.add_node(num_cpus=2, object_store_memory=MEMORY)
    yield cluster.address
    ray.shutdown()
    cluster.shutdown()


def kill_actor(cluster: str, launch: Launch, name: str) -> list[str]:
    """Kill one actor of the run. Return the names of all actors before."""
    ray.init(cluster, namespace=str(launch.run.root.absolute()), log_to_driver=False)
    names = sorted(ray.util.list_named_actors())
    ray.kill(ray.get_actor(name))
    ray.shutdown()
    return names


def ports(launch: Launch, server: str) -> list[str]:
    """Return the ports on which a server became ready, in order."""
    path = launch.run.log(server)
    return re.findall(r"inference ready at http://0.0.0.0:(\d+)", path.read_text()) if path.exists() else []


def test_the_quickstart_on_two_nodes_survives_the_loss_of_actors(
    cluster: str, tmp_path: Path, tiny_model_dir: Path
) -> None:
    """The run continues without one server. Without both, it waits until one has been placed again, at another address.
    If the trainer dies as well, the run restarts from its checkpoint. No episode is lost."""
    launch = Launch(tmp_path, tiny_model_dir)
    launch.config = RECIPE
    size = ("--orchestrator.batch_size", "32", "--max_steps", str(STEPS), "--inference.replicas", "2")
    place = ("--launcher", "ray", "--ray.address", cluster, "--ray.max_resumes", "1")
    launcher = launch.start("--model.path", str(tiny_model_dir), "--checkpoint.interval", "1", *size, *place)

    def reach(condition: Callable[[], bool], what: str) -> None:
        wait_until(lambda: condition() or launcher.poll() is not None, what, START)
        assert launcher.poll() is None, launch.report()

    reach(lambda: len(launch.rows("trainer")) >= 1, "the first step")
    assert kill_actor(cluster, launch, SERVERS[1]) == [*SERVERS, "orchestrator", "trainer"]
    reach(lambda: len(launch.rows("trainer")) >= 4, "steps with one server")
    kill_actor(cluster, launch, SERVERS[0])
    reach(lambda: any(len(ports(launch, server)) == 2 for server in SERVERS), "a server that was placed anew")
    back = next(server for server in SERVERS if len(ports(launch, server)) == 2)
    here, there = ports(launch, back)
    assert here != there
    addresses = (launch.run.configs / "addresses").read_text().splitlines()
    assert addresses[SERVERS.index(back)].endswith(f":{there}/v1")
    kill_actor(cluster, launch, "trainer")

    assert launcher.wait(START) == 0, launch.report()
    output = launch.output.read_text()
    for name in (*SERVERS, "trainer"):
        assert f"{name} was lost with its actor" in output
    assert "resuming after step" in output
    for process in ("trainer", "orchestrator"):
        assert [row["step"] for row in launch.rows(process)] == list(range(1, STEPS + 1))
    assert check_accounts(launch.run)["trained"] > 0
