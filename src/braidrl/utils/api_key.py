"""API keys come from environment variables, never from files."""

import os


def read_api_key(variable: str | None, owner: str) -> str | None:
    """The key that `variable` holds; None where none is named.

    Raises `ValueError` when it is named but not set; `owner` says whose `api_key_var` it is.
    """
    if variable is None:
        return None
    if not os.environ.get(variable):
        raise ValueError(
            f"api_key_var of {owner} names {variable!r}, which is not set; export it or remove the key"
        )
    return os.environ[variable]


def bearer(key: str | None) -> dict[str, str]:
    """The header that carries a key; none without one."""
    return {"Authorization": f"Bearer {key}"} if key else {}
