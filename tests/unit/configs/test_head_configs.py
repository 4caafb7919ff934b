"""Requirements of score centering on the whole run, checked before anything starts."""

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from braidrl.configs.core.errors import ConfigError, ConfigErrors
from braidrl.configs.core.load import load_config, to_toml
from braidrl.configs.resolve import resolve_environments
from braidrl.configs.rl import RLConfig

CENTERED = {"type": "icepop", "score_centering": True}


def run_config(loss: dict[str, Any] | None = None, **processes: dict[str, Any]) -> RLConfig:
    train = {"source": [{"env": {"taskset": {"id": "reverse-text"}}}]}
    orchestrator = {"train": train | processes.get("train", {})}
    return RLConfig.model_validate(
        {
            "model": {"path": "m"},
            "trainer": {"loss": loss} if loss else {},
            "orchestrator": orchestrator,
            "inference": processes.get("inference", {}),
        }
    )


@pytest.mark.parametrize(
    ("loss", "head", "limit"),
    [
        (None, None, 200),
        ({"type": "icepop"}, None, 200),
        (CENTERED, 128, 200),
        (CENTERED | {"score_centering_topk": 300}, 300, 302),
    ],
)
def test_capture_follows_from_the_loss(loss: dict[str, Any] | None, head: int | None, limit: int) -> None:
    config = run_config(loss)
    assert (config.orchestrator.train.capture_head, config.inference.max_logprobs) == (head, limit)
    assert ("capture_head" in to_toml(config)) == (head is not None)
    again = RLConfig.model_validate(config.model_dump(mode="json", exclude_none=True))
    assert again == config


@pytest.mark.parametrize(
    ("loss", "process", "message"),
    [
        (
            CENTERED,
            {"train": {"capture_head": 64}},
            "capture_head is 64, but trainer.loss needs heads of 128 tokens",
        ),
        (
            CENTERED,
            {"train": {"capture_head": None}},
            "capture_head is None, but trainer.loss needs heads of 128",
        ),
        (
            None,
            {"train": {"capture_head": 64}},
            "capture_head is 64, but trainer.loss needs no heads; remove it",
        ),
        (
            CENTERED,
            {"inference": {"max_logprobs": 129}},
            "max_logprobs is 129, but heads of 128 .* need 130 candidates",
        ),
    ],
)
def test_nothing_else_may_be_set(loss: Any, process: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        run_config(loss, **process)


@pytest.mark.parametrize(
    ("key", "value", "neutral"),
    [("top_p", "0.9", "1"), ("top_k", "50", "-1"), ("min_p", "0.1", "0"), ("repetition_penalty", "1.1", "1")],
)
def test_training_draws_from_the_whole_vocabulary(key: str, value: str, neutral: str, tmp_path: Path) -> None:
    """With every loss, the error names the source, the value and the remedy."""
    file = tmp_path / "run.toml"
    for source, group in ((f"{key} = {value}", ""), ("", f"{key} = {value}")):
        file.write_text(
            f"model.path = 'm'\n[orchestrator.train.sampling]\n{group}\n[[orchestrator.train.source]]\n"
            f"env.taskset.id = 'reverse-text'\n[orchestrator.train.source.sampling]\n{source}\n"
        )
        with pytest.raises(ConfigErrors) as caught:
            load_config(RLConfig, ["@", str(file)])
        (error,) = caught.value.errors
        assert error.path == f"orchestrator.train.{'source[0].' if source else ''}sampling"
        assert error.message.startswith(f"{key} = {value} cannot be used in training")
        assert f"remove it or set {key} = {neutral} (evaluations may use it)" in error.message
    file.write_text("model.path = 'm'\n[[orchestrator.train.source]]\nenv.taskset.id = 'reverse-text'")
    flag = f"--orchestrator.train.sampling.{key}"
    load_config(RLConfig, ["@", str(file), flag, neutral])
    with pytest.raises(ConfigErrors, match=f"{key} = {value} cannot be used"):
        load_config(RLConfig, ["@", str(file), flag, value])


def test_a_sampler_that_bends_nothing_is_written_in_many_ways() -> None:
    config = run_config(CENTERED, train={"sampling": {"top_p": 1, "top_k": -1, "min_p": 0.0}})
    assert config.orchestrator.train.source[0].sampling.model_dump() == {
        "temperature": 1.0,
        "max_tokens": 1024,
    }
    with pytest.raises(ValidationError, match="greater than 0"):
        run_config(CENTERED, train={"sampling": {"temperature": 0}})


def test_an_only_agent_may_not_truncate_either() -> None:
    env = {"taskset": {"id": "reverse-text"}, "agent": {"sampling": {"top_p": 0.9}}}
    config = run_config(CENTERED, train={"source": [{"env": env}]})
    with pytest.raises(
        ConfigError, match=r"orchestrator\.train\.source\[0\]\.env\.agent\.sampling: top_p = 0\.9"
    ):
        resolve_environments(config.orchestrator, "orchestrator.")
