"""Responses of `braid watch`, and rejected requests."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp.test_utils import TestClient, TestServer

from braidrl.cli import main
from braidrl.report.page.server import Watch, serve
from braidrl.utils.run_folder import RunFolder

METRICS = {"step": 1, "loss": 0.5}


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    """Run with one line of metrics."""
    found = RunFolder(tmp_path / "run")
    found.metrics("trainer").parent.mkdir(parents=True)
    found.metrics("trainer").write_text(json.dumps(METRICS) + "\n")
    return found


@pytest.fixture
async def client(run: RunFolder) -> AsyncIterator[TestClient]:
    async with TestClient(TestServer(Watch(run).app())) as client:
        yield client


async def test_the_page_may_ask_its_own_server_alone(client: TestClient) -> None:
    answer = await client.get("/")
    text = await answer.text()
    assert answer.status == 200 and "connect-src 'self'" in text and 'id="table"' not in text


async def test_a_page_is_told_what_is_new_and_when_to_start_over(client: TestClient, run: RunFolder) -> None:
    first = await (await client.get("/changes")).json()
    assert first["metrics"]["trainer"] == {"step": [1], "loss": [0.5]} and first["more"]
    again = await (await client.get("/changes", params={"since": ",".join(map(str, first["cursor"]))})).json()
    assert again["metrics"]["trainer"] == {} and not again["more"]
    run.metrics("trainer").write_text("")
    over = await (await client.get("/changes", params={"since": ",".join(map(str, first["cursor"]))})).json()
    assert over == {"restarted": True}


@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [
        ("/changes?since=1,2", {}, 400),
        ("/changes?since=a", {}, 400),
        ("/rollouts/0123456789abcdef", {}, 404),
        ("/", {"Host": "evil.example"}, 403),
        ("/", {"Host": "evil.example:80"}, 403),
        ("/", {"Host": "localhost:80"}, 200),
    ],
)
async def test_what_is_refused(client: TestClient, path: str, headers: dict[str, str], status: int) -> None:
    assert (await client.get(path, headers=headers)).status == status


async def test_it_listens_on_loopback_and_stops_when_it_is_told(run: RunFolder) -> None:
    addresses: asyncio.Queue[str] = asyncio.Queue()
    serving = asyncio.create_task(serve(Watch(run), 0, addresses.put_nowait))
    address = await asyncio.wait_for(addresses.get(), 10)
    assert address.startswith("http://127.0.0.1:")
    with pytest.raises(OSError):
        await serve(Watch(run), int(address.rstrip("/").rpartition(":")[2]), addresses.put_nowait)
    serving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await serving


def test_a_port_that_is_taken_is_named(run: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        assert main(["watch", str(run.root), "--port", str(taken.getsockname()[1])]) == 2
    assert "choose another" in capsys.readouterr().err
