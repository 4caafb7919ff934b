"""Fixtures shared by all tests."""

import json
import os
import signal
from pathlib import Path

import pytest

WORKED_CASES = Path(__file__).parent / "data" / "worked_cases"

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
# One thread per process: two workers run tests, and tests start further processes.
os.environ.setdefault("OMP_NUM_THREADS", "1")
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # Shells start background jobs with SIGINT ignored. Processes that tests start and interrupt would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def worked_cases() -> dict[str, list[dict]]:
    """Worked cases of each file in `tests/data/worked_cases`, by file stem (see `tests/data/README.md`)."""
    return {path.stem: json.loads(path.read_text())["cases"] for path in sorted(WORKED_CASES.glob("*.json"))}


@pytest.fixture(scope="session")
def tiny_model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Randomly initialised model of the Qwen3 architecture with a byte-level tokenizer; read only."""
    from braidrl.utils.tiny_model import create_tiny_model

    return create_tiny_model(tmp_path_factory.mktemp("models") / "tiny")
