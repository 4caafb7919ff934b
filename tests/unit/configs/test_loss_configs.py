"""Losses and off-policy protections in [trainer]: invalid combinations are errors before anything starts."""

import logging

import pytest
from pydantic import ValidationError

from braidrl.configs.rl import RLConfig
from braidrl.configs.trainer.config import TrainerConfig

GRPO = {"type": "grpo"}


def trainer(**keys) -> TrainerConfig:
    return TrainerConfig.model_validate({"model": {"path": "m"}, **keys})


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"loss": GRPO, "is_correction": {}, "use_rollout_log_probs": True}, "remove is_correction, or set"),
        (
            {"loss": GRPO, "m2po": {}, "use_rollout_log_probs": True},
            "remove m2po, or set use_rollout_log_probs",
        ),
        ({"is_correction": {}}, r"the ratio pi / mu of loss ipo already contains; remove is_correction"),
        (
            {"loss": {"type": "icepop"}, "is_correction": {}},
            "the ratio pi / mu of loss icepop already contains",
        ),
        ({"loss": {"type": "icepop", "ratio_low": 2, "ratio_high": 1}}, "no token would train"),
        ({"loss": GRPO, "is_correction": {"lower_bound": 3}}, "lower_bound .3.0. is above upper_bound"),
        (
            {"loss": {"type": "custom", "import_path": "nothing"}},
            "'nothing' is not the import path of a function",
        ),
        ({"loss": {"type": "grpo", "clip_ratio_c": 1}}, "greater than 1"),
    ],
)
def test_exclusions_say_what_to_switch_off(keys, message):
    with pytest.raises(ValidationError, match=message):
        trainer(**keys)


@pytest.mark.parametrize(
    ("keys", "needed"),
    [
        ({}, False),
        ({"mini_batches": 2}, False),
        ({"loss": GRPO}, False),
        ({"loss": GRPO, "mini_batches": 2}, True),
        ({"loss": GRPO, "mini_batches": 2, "use_rollout_log_probs": True}, False),
        ({"loss": GRPO, "is_correction": {}}, True),
        ({"m2po": {}}, True),
        ({"opsm": {}, "mini_batches": 2}, True),
        ({"opsm": {"reference": "rollout"}, "mini_batches": 2}, False),
        ({"reference_kl": {"path": "r", "use_unbiased_kl": True}, "mini_batches": 2}, True),
    ],
)
def test_the_batch_is_run_twice_only_where_it_must_be(keys, needed):
    assert trainer(**keys).needs_old_logprobs is needed


def test_a_loss_without_a_type_is_ipo():
    assert trainer(loss={"type": "ipo", "eps": 0.1}).loss.eps == 0.1


def test_opsm_that_can_do_nothing_warns(caplog):
    with caplog.at_level(logging.WARNING):
        trainer(opsm={}, mini_batches=2)
        trainer(opsm={"reference": "rollout"})
        trainer(opsm={}, use_rollout_log_probs=True)
        assert not caplog.records
        trainer(opsm={})
    assert "opsm has no effect with one mini batch" in caplog.text


def test_k1_without_the_ratio_warns(caplog):
    with caplog.at_level(logging.WARNING):
        trainer(reference_kl={"path": "r", "kl_type": "k1"})
    assert 'expected gradient of kl_type = "k1" is 0' in caplog.text


def test_two_means_at_once_are_refused():
    source = {
        "env": {"taskset": {"id": "reverse-text"}},
        "algo": {"type": "grpo", "loss_aggregation": "prompt"},
    }
    run = {
        "model": {"path": "m"},
        "trainer": {"loss_agg_mode": "seq-mean-token-mean"},
        "orchestrator": {"train": {"source": [source]}},
    }
    with pytest.raises(ValidationError, match=r"but source .* has algo\.loss_aggregation = \"prompt\""):
        RLConfig.model_validate(run)
