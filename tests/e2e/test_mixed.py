"""Three environments with three algorithms in one run: every component trains, in the same micro batch."""

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from braidrl.utils.tiny_model import create_tiny_model
from commands import serving
from tests.support.runs import Launch

pytestmark = pytest.mark.slow

MICRO_BATCH_TOKENS = 32768
CONFIG = """\
max_steps = 2
seq_len = 160
[model]
path = "{model}"
[trainer]
micro_batch_tokens = {tokens}
[orchestrator]
batch_size = 48
max_off_policy_steps = 0
constant_trainer_batch_size = false
[orchestrator.renderer]
name = "qwen3"
enable_thinking = false
[orchestrator.train]
group_size = 2
[orchestrator.train.sampling]
max_tokens = 6
[[orchestrator.train.source]]
env.taskset.id = "reverse-text"
[[orchestrator.train.source]]
env.taskset.id = "guess-number"
algo.type = "echo"
algo.roles.user.alpha = 0.5
[[orchestrator.train.source]]
env.taskset.id = "arithmetic"
algo.type = "opd"
algo.teacher.name = "{teacher}"
algo.teacher.base_url = "{url}"
"""
MEMBERS = {
    "rl": {"reverse-text", "guess-number"},
    "ce": {"guess-number"},
    "ref_kl": {"arithmetic"},
}


@pytest.fixture
def teacher(tmp_path: Path) -> Iterator[tuple[Path, str]]:
    """A frozen model with other weights, and its address."""
    model = create_tiny_model(tmp_path / "teacher", seed=1)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    words = ["inference", "--model.path", str(model), "--port", str(port), "--seq-len", "160"]
    with serving(
        [*words, "--output-dir", str(tmp_path / "served")], tmp_path, tmp_path / "teacher.log"
    ) as url:
        yield model, url


def test_three_algorithms_share_a_micro_batch(teacher, tmp_path: Path, tiny_model_dir: Path) -> None:
    launch = Launch(tmp_path / "run", tiny_model_dir)
    model, url = teacher
    text = CONFIG.format(model=tiny_model_dir, tokens=MICRO_BATCH_TOKENS, teacher=model, url=url)
    launch.config.write_text(text)
    launch.finish()
    rows = launch.rows("trainer")
    assert len(rows) == 2
    for row in rows:
        # whatever the forward saw fits into one row, so all of it was one micro batch
        assert row["tokens/packed"] < MICRO_BATCH_TOKENS
        for component, sources in MEMBERS.items():
            prefix = f"tokens/{component}/env/"
            listed = {key.removeprefix(prefix) for key in row if key.startswith(prefix)}
            assert listed and listed <= sources
            assert 0 < row[f"tokens/{component}"] == sum(row[prefix + source] for source in listed)
            shares = [row[f"loss/{component}/env/{source}"] for source in listed]
            assert row[f"loss/{component}"] == pytest.approx(sum(shares), rel=1e-5, abs=1e-8)
        assert row["loss"] == pytest.approx(sum(row[f"loss/{name}"] for name in MEMBERS), rel=1e-5, abs=1e-8)
