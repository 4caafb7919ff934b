"""Checks of a user's loss and algorithm, from the config to the trainer."""

from pathlib import Path
from typing import Any, Literal

import pytest
import torch

from braidrl.configs.algorithm import BaseAlgorithmConfig
from braidrl.orchestrator.train.algo import ALGORITHM_CLASSES, Algorithm, make_algorithm
from braidrl.orchestrator.train.samples import flatten_trace
from braidrl.trainer.parallel import Parallel
from braidrl.trainer.rl.step import Learner
from tests.support.episodes import episode, trace
from tests.support.trainer_batches import make_batch, trainer_config


def check_clipped_ppo(model: Path, loss: dict[str, Any]) -> None:
    """Assert that the custom loss of the block `loss` is clipped PPO with a range of 0.2: one step equals a step of
    `grpo` with the same bounds and the sampler's log-probs."""

    def learner(**changes: Any) -> Learner:
        config = trainer_config(model, Path("unused"), **changes)
        return Learner.load(config, Parallel(0, 1, torch.device("cpu")))

    samples = make_batch(3, "rl")
    custom = learner(loss=loss).step(1, samples)
    grpo = {"type": "grpo", "clip_ratio_low": 0.2, "clip_ratio_high": 0.2, "clip_ratio_c": 1e9}
    built_in = learner(loss=grpo, use_rollout_log_probs=True).step(1, samples)
    for name in ("loss", "loss/rl", "grad_norm", "tokens/rl"):
        assert custom[name] == pytest.approx(built_in[name], rel=1e-5)
    assert custom["stepped"] == 1 and custom["loss/rl"] != 0
    assert 0 < custom["clip_frac"] == custom["clip_frac/env/rl-env"] < 1


async def check_centred_algorithm(cls: type[Algorithm], monkeypatch: pytest.MonkeyPatch) -> None:
    """Assert that the credit of the algorithm, reward minus group mean, reaches the samples."""

    class MyAlgoConfig(BaseAlgorithmConfig):
        type: Literal["my_algo"] = "my_algo"

    monkeypatch.setitem(ALGORITHM_CLASSES, "my_algo", cls)
    algorithm = make_algorithm(MyAlgoConfig())
    assert issubclass(cls, Algorithm) and algorithm.action_loss_type == "rl"
    episodes = [episode(trace(1.0)), episode(trace(0.0))]
    for played in episodes:
        await algorithm.finalize_episode(played)
    await algorithm.score_group(episodes)
    samples = [
        sample for played in episodes for sample in flatten_trace(played.traces[0], seq_len=99).samples
    ]
    assert [sample.advantages.tolist() for sample in samples] == [[0, 0, *[0.5] * 3], [0, 0, *[-0.5] * 3]]
