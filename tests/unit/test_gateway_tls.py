"""Replicas behind TLS, by a certificate that only this test trusts."""

import asyncio
import os
import ssl
import sys
from pathlib import Path

import pytest
from aiohttp import web

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
"""Of 127.0.0.1, signed by itself, valid until 2126. It protects nothing."""

CALLER = """
import asyncio, sys
from braidrl.orchestrator.replicas import Replicas

async def main():
    pool = Replicas([sys.argv[1]], live=True, headers={"Authorization": "Bearer key"})
    try:
        await pool.connect(0.5)
        print(pool.models)
    finally:
        await pool.close()

asyncio.run(main())
"""


@pytest.mark.parametrize("trusts", [True, False])
async def test_a_base_url_may_be_https_by_a_certificate_that_is_trusted(tmp_path: Path, trusts: bool) -> None:
    """`SSL_CERT_FILE` names the authorities; a server that none of them vouches for is not called."""
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    key.write_text(KEY)
    certificate.write_text(CERTIFICATE)
    secrets: list[str] = []

    async def answer(request: web.Request) -> web.Response:
        secrets.append(request.headers["Authorization"])
        return web.json_response({"data": [{"id": "policy"}]})

    app = web.Application()
    app.router.add_get("/health", answer)
    app.router.add_get("/v1/models", answer)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
    url = f"https://127.0.0.1:{runner.addresses[0][1]}/v1"
    env = os.environ | ({"SSL_CERT_FILE": str(certificate)} if trusts else {})
    pipe = asyncio.subprocess.PIPE
    caller = await asyncio.create_subprocess_exec(
        sys.executable, "-c", CALLER, url, env=env, stdout=pipe, stderr=pipe
    )
    output, errors = await asyncio.wait_for(caller.communicate(), 60.0)
    await runner.cleanup()
    if trusts:
        assert output.decode() == "[{'id': 'policy'}]\n", errors.decode()
        assert set(secrets) == {"Bearer key"}
    else:
        assert "CERTIFICATE_VERIFY_FAILED" in errors.decode()
        assert secrets == []
