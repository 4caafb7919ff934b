"""HTTP server of `braid watch`: the live report of a running job, on the loopback interface."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

from aiohttp import web

from braidrl.report.page.changes import START, changes, cursor_of
from braidrl.report.page.facts import facts, find_tokenizer, resolved
from braidrl.report.page.html import packed, page
from braidrl.report.page.index import Index
from braidrl.report.page.rollout import rollout, token_ids
from braidrl.utils.run_folder import RunFolder

HOST = "127.0.0.1"
LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Watch:
    """Request handlers of the live report."""

    def __init__(self, run: RunFolder, tokenizer: Path | None = None) -> None:
        self.run = run
        self.tokenizer = tokenizer
        self.index = Index(run)
        self.reading = asyncio.Lock()

    def app(self) -> web.Application:
        """Create the application with its routes: page, changes, one rollout."""
        app = web.Application(middlewares=[loopback_only])
        app.router.add_get("/", self.page)
        app.router.add_get("/changes", self.changes)
        app.router.add_get("/rollouts/{id}", self.rollout)
        return app

    async def page(self, _: web.Request) -> web.Response:
        """Return the page without rows."""
        known = facts(self.run) | {"tokenizer": find_tokenizer(self.run, self.tokenizer) is not None}
        text = page(f"{self.run.root.absolute().name} · Braid", {"facts": known}, {}, live=True)
        return web.Response(text=text, content_type="text/html", headers={"Cache-Control": "no-store"})

    async def changes(self, request: web.Request) -> web.Response:
        """Return the rows after `?since=`, the `cursor` of the previous response.

        `more` is true if further rows can be requested immediately. `restarted` is true if the run was resumed from an
        earlier checkpoint; the page must then reload, because it has rows that no longer exist.
        """
        try:
            since = tuple(int(each) for each in request.query.get("since", "").split(",") if each) or START
        except ValueError:
            since = ()
        if len(since) != len(START):
            raise web.HTTPBadRequest(text=f"since: expected the {len(START)} numbers of the last `cursor`")
        async with self.reading:
            if await asyncio.to_thread(self.index.rewritten):
                self.index = Index(self.run)
            more = await asyncio.to_thread(self.index.read)
        if any(has > there for has, there in zip(since, cursor_of(self.index), strict=True)):
            return web.json_response({"restarted": True})
        answer = await asyncio.to_thread(lambda: packed(changes(self.index, since) | {"more": more}))
        return _packed(answer)

    async def rollout(self, request: web.Request) -> web.Response:
        """Return one rollout with all its tokens and their texts."""
        episode = request.match_info["id"]
        if episode not in self.index.places:
            raise web.HTTPNotFound(text=f"no episode {episode!r} in {self.run.root}")
        return _packed(await asyncio.to_thread(self._opened, episode))

    def _opened(self, episode: str) -> bytes:
        found = rollout(self.index, episode, resolved(self.run).get("seq_len"))
        pieces = find_tokenizer(self.run, self.tokenizer)
        known = {} if pieces is None else pieces.of(token_ids([found]))
        return packed({"rollouts": {episode: found}, "pieces": known})


@web.middleware
async def loopback_only(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Reject requests with another host name, which could come from another site by DNS rebinding."""
    if request.host.rpartition(":")[0] not in LOOPBACK and request.host not in LOOPBACK:
        raise web.HTTPForbidden(
            text=f"host {request.host!r} is not allowed; open http://{HOST}:PORT/ instead"
        )
    return await handler(request)


async def serve(watch: Watch, port: int, ready: Callable[[str], None]) -> None:
    """Serve until cancelled, calling `ready(url)` once listening. Raises `OSError` if the port is in use.

    Port 0 selects a free port.
    """
    runner = web.AppRunner(watch.app())
    await runner.setup()
    try:
        site = web.TCPSite(runner, HOST, port)
        await site.start()
        ready(f"http://{HOST}:{runner.addresses[0][1]}/")
        await asyncio.Event().wait()
    finally:
        await runner.cleanup()


def _packed(body: bytes) -> web.Response:
    headers = {"Content-Encoding": "gzip", "Cache-Control": "no-store"}
    return web.Response(body=body, content_type="application/json", headers=headers)
