"""Transfer of policy versions from memory to the workers of inference servers, in threads of the training process.

The collective is vLLM's NCCL weight transfer, with the trainer's first process as rank 0. Each server has its own
group, so that one can restart without the others. The orchestrator decides when a server joins and receives
(`POST /join`, `POST /send`).
"""

import hmac
import importlib.util
import secrets
import socket
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Protocol

import msgspec
import torch
from torch import Tensor

from braidrl.transport.transfer import Join, Joined, Offer, Rendezvous, Send

MEETING_SECONDS = 300.0
"""Longest wait for the workers of a server to come to the meeting place."""


class BroadcastGroup(Protocol):
    """The trainer and the workers of one server."""

    def broadcast(self, tensors: Iterable[Tensor]) -> None:
        """Send each, in order; return when all have been."""


class NCCLGroup:
    """vLLM's communicator, which requires vLLM in the environment of Braid. Blocks until all workers have joined."""

    def __init__(self, place: Rendezvous, device: torch.device) -> None:
        from vllm.distributed.weight_transfer.nccl_common import trainer_init

        self.device = device
        torch.cuda.set_device(device)  # of this thread
        self.communicator = trainer_init(msgspec.to_builtins(place))

    def broadcast(self, tensors: Iterable[Tensor]) -> None:
        stream = torch.cuda.Stream(self.device)
        with torch.cuda.stream(stream):
            for tensor in tensors:
                sent = tensor.to(self.device).contiguous()
                self.communicator.broadcast(sent, src=0, stream=stream)
        stream.synchronize()


def open_sender(host: str, device: torch.device) -> "WeightSender":
    """Send over NCCL from `device`. Raises `ValueError` where that cannot be."""
    if device.type != "cuda":
        raise ValueError(
            f'trainer.weights.transfer = "nccl" sends from a GPU, and the trainer is on {device}; use "filesystem"'
        )
    if importlib.util.find_spec("vllm") is None:
        raise ValueError(
            'trainer.weights.transfer = "nccl" uses vLLM\'s communicator, but vLLM is not installed in the environment '
            'of Braid; install it there, or use "filesystem"'
        )
    return WeightSender(host, partial(NCCLGroup, device=device))


class WeightSender:
    """Offers versions at `host`, the address at which workers and the orchestrator reach this process."""

    def __init__(self, host: str, open_group: Callable[[Rendezvous], BroadcastGroup]) -> None:
        self.host = host
        self.open_group = open_group
        self.versions: dict[int, dict[str, Tensor]] = {}
        self.groups: dict[str, Future[BroadcastGroup]] = {}
        self._token = secrets.token_urlsafe()
        self._one_at_a_time = threading.Lock()
        self._server = ThreadingHTTPServer((host, 0), partial(_Handler, self))
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, name="weights", daemon=True).start()

    def close(self) -> None:
        """Take no more requests."""
        self._server.shutdown()
        self._server.server_close()

    def offer(self, version: int, tensors: dict[str, Tensor]) -> Offer:
        """Keep a version, on the CPU and in the published type, until a later one has been sent."""
        self.versions[version] = tensors
        return Offer(
            f"http://{self.host}:{self._server.server_address[1]}",
            self._token,
            list(tensors),
            [str(tensor.dtype).removeprefix("torch.") for tensor in tensors.values()],
            [list(tensor.shape) for tensor in tensors.values()],
        )

    def join(self, request: Join) -> Joined:
        """Go and wait at a meeting place for the workers of a server, unless its group stands."""
        group = self.groups.get(request.replica)
        stands = group is not None and not (group.done() and group.exception())
        if stands and not request.fresh:
            return Joined(None)
        with socket.socket() as probe:
            probe.bind((self.host, 0))
            place = Rendezvous(self.host, probe.getsockname()[1], request.workers + 1)
        future: Future[BroadcastGroup] = Future()
        self.groups[request.replica] = future
        threading.Thread(target=self._meet, args=(place, future), daemon=True).start()
        return Joined(place)

    def _meet(self, place: Rendezvous, future: Future[BroadcastGroup]) -> None:
        try:
            future.set_result(self.open_group(place))
        except BaseException as error:  # for whoever wants to send
            future.set_exception(error)

    def send(self, request: Send) -> None:
        """Broadcast a version to the workers of a server. Raises `LookupError` for a version that is not kept, and
        what went wrong at the meeting place."""
        if request.replica not in self.groups:
            raise LookupError(f"{request.replica} has not joined")
        if request.version not in self.versions:
            raise LookupError(f"v{request.version} is not offered, {sorted(self.versions)} are")
        group = self.groups[request.replica].result(MEETING_SECONDS)
        with self._one_at_a_time:
            group.broadcast(self.versions[request.version].values())
        for older in [version for version in self.versions if version < request.version]:
            self.versions.pop(older, None)

    def knows(self, header: str) -> bool:
        """True if the caller presents the token of the offers."""
        return hmac.compare_digest(header.encode(), f"Bearer {self._token}".encode())


class _Handler(BaseHTTPRequestHandler):
    """`POST /join` and `POST /send`."""

    def __init__(self, sender: WeightSender, *args: object) -> None:
        self.sender = sender
        super().__init__(*args)  # type: ignore[arg-type]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        try:
            if not self.sender.knows(self.headers.get("Authorization", "")):
                self._answer(401, {"error": "the token of the offer is missing"})
            elif self.path == "/join":
                self._answer(200, self.sender.join(msgspec.json.decode(body, type=Join)))
            elif self.path == "/send":
                self.sender.send(msgspec.json.decode(body, type=Send))
                self._answer(200, {})
            else:
                self._answer(404, {"error": f"no route {self.path}"})
        except Exception as error:  # the caller says it aloud
            self._answer(500, {"error": f"{type(error).__name__}: {error}"})

    def _answer(self, status: int, answer: object) -> None:
        body = msgspec.json.encode(answer)
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Quiet: the orchestrator's log tells of updates."""
