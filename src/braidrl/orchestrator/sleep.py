"""How an inference server frees its device for the trainer, and takes it again: the embedded engine as vLLM does."""

from braidrl.orchestrator.server import RefusedError, Server


async def put_to_sleep(server: Server) -> None:
    """Free the memory of weights and caches; requests under way are kept, and computed anew later.

    Level 1: the weights wait in the memory of the host. Raises `UnavailableError` and `RefusedError`.
    """
    try:
        await server.post("/sleep?level=1&mode=keep")
    except RefusedError as error:
        raise RefusedError(
            f"{error}; start vLLM with --enable-sleep-mode and VLLM_SERVER_DEV_MODE=1 (braid inference does so with "
            "share_device)"
        ) from error


async def wake_up(server: Server) -> None:
    """Take the device again; nothing where it is awake. Raises `UnavailableError` and `RefusedError`."""
    await server.post("/wake_up")
