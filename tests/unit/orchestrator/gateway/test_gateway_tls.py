"""Replicas behind TLS, with a certificate that only these tests trust."""

import asyncio
import os
import re
import shutil
import ssl
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from braidrl.utils.process import free_port
from tests.support.paths import DOCS

KEY = """\
-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgZJdgjoc70zaeOFcl
8kTzMI1wX2nooa2Ya7UgMrXBFoihRANCAARG5WmSTjiwy6NxXDDlIEkDUJOVR/j8
Hj80wpBoIt55tb5qCPFnTUJ+9+gQb9QJpNItNwANAPJRdesE5mAuXljP
-----END PRIVATE KEY-----
"""
CERTIFICATE = """\
-----BEGIN CERTIFICATE-----
MIIBkDCCATagAwIBAgIUHqBhPvfZfVqM0xtqOe9LN2n4n2kwCgYIKoZIzj0EAwIw
FDESMBAGA1UEAwwJMTI3LjAuMC4xMCAXDTI2MTEzMDA4MzYwOVoYDzIxMjYxMTA2
MDgzNjA5WjAUMRIwEAYDVQQDDAkxMjcuMC4wLjEwWTATBgcqhkjOPQIBBggqhkjO
PQMBBwNCAARG5WmSTjiwy6NxXDDlIEkDUJOVR/j8Hj80wpBoIt55tb5qCPFnTUJ+
9+gQb9QJpNItNwANAPJRdesE5mAuXljPo2QwYjAdBgNVHQ4EFgQUmOyhwiXSL5Nw
cQ75VnJ3ao3gfEAwHwYDVR0jBBgwFoAUmOyhwiXSL5NwcQ75VnJ3ao3gfEAwDwYD
VR0RBAgwBocEfwAAATAPBgNVHRMBAf8EBTADAQH/MAoGCCqGSM49BAMCA0gAMEUC
IQCz0RYE1B+3UQ4ak1A0hVq6U6KmbgHJEm3IYCa3GE/OGQIgGcuF0xpojSVja+n2
rwBVmunz4R/yDnL7S8hkNWroCBc=
-----END CERTIFICATE-----
"""
"""Self-signed test certificate of 127.0.0.1, valid until 2126. `KEY` is not a secret."""

CALLER = """
import asyncio, sys
from braidrl.orchestrator.engines.pool import Replicas

async def main():
    pool = Replicas([sys.argv[1]], live=True, headers={"Authorization": f"Bearer {sys.argv[2]}"})
    try:
        await pool.connect(float(sys.argv[3]))
        print(pool.models)
    finally:
        await pool.close()

asyncio.run(main())
"""
SERVED = "[{'id': 'policy'}]\n"

GATEWAY = DOCS / "gateway.md"
NGINX = """\
daemon off;
pid {folder}/nginx.pid;
error_log stderr;
events {{}}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    {server}
}}
"""
KEYED = "Aa0-_" * 16
"""An API key that exceeds the default size of nginx's hash tables."""


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[Path, Path]:
    """Return the files of the certificate and its key."""
    paths = tmp_path / "gpu1.pem", tmp_path / "gpu1.key"
    for path, text in zip(paths, (CERTIFICATE, KEY), strict=True):
        path.write_text(text)
    return paths


@asynccontextmanager
async def server(secrets: list[str], tls: tuple[Path, Path] | None = None) -> AsyncIterator[int]:
    """Yield the port of a stub server that appends each `Authorization` header to `secrets`."""

    async def answer(request: web.Request) -> web.Response:
        secrets.append(request.headers["Authorization"])
        return web.json_response({"data": [{"id": "policy"}]})

    app = web.Application()
    app.router.add_get("/health", answer)
    app.router.add_get("/v1/models", answer)
    context = None
    if tls is not None:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(*tls)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


async def call(port: int, key: str, trusted: Path | None, patience: float = 20.0) -> tuple[str, str]:
    """Return stdout and stderr of a process that connects to a replica on this port."""
    env = os.environ | ({"SSL_CERT_FILE": str(trusted)} if trusted else {})
    pipe = asyncio.subprocess.PIPE
    words = ["-c", CALLER, f"https://127.0.0.1:{port}/v1", key, str(patience)]
    caller = await asyncio.create_subprocess_exec(sys.executable, *words, env=env, stdout=pipe, stderr=pipe)
    output, errors = await asyncio.wait_for(caller.communicate(), 60.0)
    return output.decode(), errors.decode()


@pytest.mark.parametrize("trusts", [True, False])
async def test_https_base_urls_require_a_trusted_certificate(
    certificate: tuple[Path, Path], trusts: bool
) -> None:
    """A server without a certificate of the authorities in `SSL_CERT_FILE` receives no request."""
    secrets: list[str] = []
    async with server(secrets, tls=certificate) as port:
        output, errors = await call(port, "key", certificate[0] if trusts else None, 20.0 if trusts else 0.5)
    if trusts:
        assert output == SERVED, errors
        assert set(secrets) == {"Bearer key"}
    else:
        assert "CERTIFICATE_VERIFY_FAILED" in errors
        assert secrets == []


@asynccontextmanager
async def nginx(folder: Path, upstream: int) -> AsyncIterator[int]:
    """Yield the port of an nginx configured as in the docs, in front of a server on port `upstream`."""
    port = free_port("127.0.0.1")
    (text,) = re.findall(r"```nginx\n(.*?)```", GATEWAY.read_text(), re.DOTALL)
    for written, real in (
        ("THE-KEY", KEYED),
        ("/etc/ssl", str(folder)),
        ("listen 8443", f"listen 127.0.0.1:{port}"),
        ("127.0.0.1:8000", f"127.0.0.1:{upstream}"),
    ):
        assert written in text
        text = text.replace(written, real)
    config = folder / "nginx.conf"
    config.write_text(NGINX.format(folder=folder, server=text))
    process = await asyncio.create_subprocess_exec("nginx", "-e", "stderr", "-c", str(config))
    try:
        yield port
    finally:
        process.terminate()
        await asyncio.wait_for(process.wait(), 20.0)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("nginx") is None, reason="no nginx on this machine")
async def test_nginx_as_documented_requires_the_key(certificate: tuple[Path, Path], tmp_path: Path) -> None:
    secrets: list[str] = []
    trusting = ssl.create_default_context(cafile=certificate[0])
    async with server(secrets) as upstream, nginx(tmp_path, upstream) as port:
        output, errors = await call(port, KEYED, certificate[0])
        assert output == SERVED, errors
        async with aiohttp.ClientSession() as http:
            for key in ("", KEYED.lower(), f"{KEYED}x", KEYED[:-1]):
                headers = {"Authorization": f"Bearer {key}"}
                async with http.get(
                    f"https://127.0.0.1:{port}/v1/models", headers=headers, ssl=trusting
                ) as response:
                    assert response.status == 401
    assert set(secrets) == {f"Bearer {KEYED}"}
