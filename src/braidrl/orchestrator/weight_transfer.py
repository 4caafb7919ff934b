"""vLLM's weight transfer, coordinated: the workers of a server receive what the trainer has offered."""

import asyncio
from dataclasses import replace

import msgspec

from braidrl.orchestrator.server import Server
from braidrl.transport.transfer import Join, Joined, Offer, Send
from braidrl.utils.http import bearer


async def receive_weights(server: Server, offer: Offer, version: int, *, fresh: bool) -> None:
    """Let the workers of a paused server load an offered version in place.

    `fresh`: whether the server has taken no weights since it started. Raises `UnavailableError` and `RefusedError`.
    """
    trainer = replace(server, url=offer.url, headers=bearer(offer.token))
    _, answer = await server.get("/get_world_size")
    workers = msgspec.json.decode(answer)["world_size"]
    joined = await trainer.post("/join", Join(server.url, workers, fresh))
    if (place := msgspec.json.decode(joined, type=Joined).place) is not None:
        await server.post("/init_weight_transfer_engine", {"init_info": place})
    await server.post("/start_weight_update")
    try:
        async with asyncio.TaskGroup() as both:  # they meet in the broadcasts
            both.create_task(server.post("/update_weights", {"update_info": offer.update_info}))
            both.create_task(trainer.post("/send", Send(server.url, version)))
    except ExceptionGroup as failed:
        raise failed.exceptions[0] from None
    await server.post("/finish_weight_update")
