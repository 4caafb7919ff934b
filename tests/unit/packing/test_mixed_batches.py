"""Three environments with different algorithms in one micro batch, trained by the real step."""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from verifiers.v1 import Episode

from braidrl.configs.algorithm import BaseAlgorithmConfig, EchoConfig, GRPOConfig
from braidrl.configs.loss import IPOLossConfig
from braidrl.orchestrator.train.algo import make_algorithm
from braidrl.orchestrator.train.samples import drop_zero_signal, flatten_trace
from braidrl.packing import COMPONENTS, Normalisers, pack
from braidrl.trainer.model.forward import TokenOutputs, to_device
from braidrl.trainer.parallel import Parallel
from braidrl.trainer.rl.components import component_loss
from braidrl.trainer.rl.losses import make_loss
from braidrl.trainer.rl.step import Learner
from braidrl.transport.types import TrainingSample
from tests.support.episodes import episode, trace
from tests.support.fake_teacher import FakeTeacher, opd, policy
from tests.support.trainer_batches import trainer_config

ALONE = Parallel(0, 1, torch.device("cpu"))
ROLES = [("user", 3), ("assistant", 3), ("tool", 5), ("assistant", 2)]
MEMBERS = {"math": ("rl",), "shell": ("rl", "ce"), "tutor": ("ref_kl",)}
"""Components in which each environment of a mixed batch has members."""


class Batches(NamedTuple):
    math: list[TrainingSample]
    """Samples of GRPO."""
    shell: list[TrainingSample]
    """Samples of ECHO with different rewards: actions and observations train."""
    silent: list[TrainingSample]
    """Samples of ECHO with equal rewards: only observations train."""
    tutor: list[TrainingSample]
    """Samples of OPD."""

    @property
    def mixed(self) -> list[TrainingSample]:
        return [*self.math, *self.shell, *self.tutor]


def played(rewards: list[float], seed: int) -> list[Episode]:
    """Return a group of siblings whose tokens have about the log-probs of a random model."""
    rng = np.random.default_rng(seed)
    episodes = [episode(trace(reward, [*ROLES, ("tool", 1 + n)])) for n, reward in enumerate(rewards)]
    for place, node in (
        (place, node) for played in episodes for place, node in enumerate(played.traces[0].nodes)
    ):
        if place:  # only prompts are shared
            node.token_ids = rng.integers(0, 256, len(node.token_ids)).tolist()
        node.logprobs = rng.normal(-5.6, 0.1, sum(node.mask)).tolist()
    return episodes


async def samples_of(
    env: str, config: BaseAlgorithmConfig, rewards: list[float], seed: int, clients: Any = None
) -> list[TrainingSample]:
    """Return the samples that the orchestrator would send."""
    algorithm, episodes = make_algorithm(config, clients), played(rewards, seed)
    await algorithm.setup()
    for item in episodes:
        await algorithm.finalize_episode(item)
    await algorithm.score_group(episodes)
    await algorithm.close()
    flat = (flatten_trace(item.traces[0], seq_len=64, env=env).samples for item in episodes)
    kept = [drop_zero_signal(sample) for samples in flat for sample in samples]
    return [sample for sample in kept if sample is not None]


@pytest.fixture
async def batches(tiny_model_dir: Path) -> Batches:
    teacher = FakeTeacher(scores=lambda token_ids: [-5.0 - 0.01 * token for token in token_ids])
    async with teacher.serving() as url:
        tutor = await samples_of("tutor", opd(url), [1.0, 1.0], 3, policy(tiny_model_dir))
    return Batches(
        math=await samples_of("math", GRPOConfig(), [1.0, 0.0, 0.25], 0),
        shell=await samples_of("shell", EchoConfig(), [1.0, 0.5], 1),
        silent=await samples_of("shell", EchoConfig(), [1.0, 1.0], 2),
        tutor=tutor,
    )


def step(model: Path, folder: Path, samples: list[TrainingSample], tokens: int = 512) -> dict[str, float]:
    """Return the metrics of a first step. `tokens` is the size of a micro batch."""
    learner = Learner.load(trainer_config(model, folder, micro_batch_tokens=tokens), ALONE)
    return learner.step(1, samples)


def gradient(model: Path, folder: Path, samples: list[TrainingSample]) -> torch.Tensor:
    """Return the flat gradient in float64, computed from AdamW's first moment (a tenth of it) after a step without
    clipping."""
    config = trainer_config(model, folder, micro_batch_tokens=512, optim={"max_norm": 1e9})
    learner = Learner.load(config, ALONE)
    learner.model.double()
    learner.step(1, samples)
    states = [learner.optimizer.state[parameter] for parameter in learner.model.parameters()]
    return 10 * torch.cat([state["exp_avg"].flatten() for state in states])


def test_the_rl_gradient_does_not_change_with_other_components_beside_it(batches, tiny_model_dir, tmp_path):
    """Gradients of different components add up, although all samples share a micro batch and their prompt."""
    beside = [*batches.silent, *batches.tutor]
    (row,) = pack([*batches.math, *beside], max_tokens=512)
    assert row.segments[0].length == 3 and len({segment.parent for segment in row.segments}) > 1
    assert {name: list(envs) for name, envs in row.members.items()} == {
        "rl": ["math"],
        "ce": ["shell"],
        "ref_kl": ["tutor"],
    }
    alone, others, together = (
        gradient(tiny_model_dir, tmp_path, samples)
        for samples in (batches.math, beside, [*batches.math, *beside])
    )
    scale = float(alone.abs().max())
    assert scale > 0 and float(others.abs().max()) > scale / 100
    # transformers computes norms and rotary embeddings in float32, even in a float64 model
    torch.testing.assert_close(together - others, alone, rtol=0, atol=1e-6 * scale)


def test_a_micro_batch_holds_every_component_and_its_members_by_environment(batches: Batches) -> None:
    (row,) = pack(batches.mixed, max_tokens=512)
    for name in COMPONENTS:
        assert list(row.members[name]) == [env for env, components in MEMBERS.items() if name in components]
        everybody = np.sort(np.concatenate(list(row.members[name].values())))
        assert everybody.tolist() == np.flatnonzero(getattr(row, f"{name}_weights")).tolist()
        for env, members in row.members[name].items():
            assert len(members) and {batches.mixed[index].env for index in row.sample_index[members]} == {env}


def test_every_row_of_every_rank_reports_the_same_metrics(batches: Batches) -> None:
    rows = [row for rank in (0, 1) for row in pack(batches.mixed, max_tokens=16, rank=rank, world_size=2)]
    assert any(not len(members) for row in rows for envs in row.members.values() for members in envs.values())
    reported = []
    for row in rows:
        x = torch.zeros(len(row.targets), requires_grad=True)
        outputs = TokenOutputs(x, x.detach())
        parts = (make_loss(IPOLossConfig()), Normalisers.of(batches.mixed))
        reported.append(component_loss(outputs, to_device(row, "cpu"), *parts)[1].keys())
    assert len(reported) > 2 and all(keys == reported[0] for keys in reported)
    assert {"is_masked/env/math", "nll/env/shell", "ref_kl/env/tutor"} < reported[0]


def test_environments_share_the_loss_and_report_what_they_would_alone(batches, tiny_model_dir, tmp_path):
    row = step(tiny_model_dir, tmp_path, batches.mixed)
    alone = {env: step(tiny_model_dir, tmp_path, getattr(batches, env)) for env in MEMBERS}
    for name in COMPONENTS:
        envs = [env for env, components in MEMBERS.items() if name in components]
        assert sorted(key for key in row if key.startswith(f"loss/{name}/")) == [
            f"loss/{name}/env/{env}" for env in envs
        ]
        for key in (f"loss/{name}", f"tokens/{name}"):
            assert sum(row[f"{key}/env/{env}"] for env in envs) == pytest.approx(row[key], rel=1e-5)
        for env in envs:
            share = row[f"tokens/{name}/env/{env}"] / row[f"tokens/{name}"]
            assert row[f"tokens/{name}/env/{env}"] == alone[env][f"tokens/{name}"] > 0
            assert row[f"loss/{name}/env/{env}"] == pytest.approx(
                share * alone[env][f"loss/{name}"], rel=1e-5
            )
    for key, env in (
        ("mismatch_kl", "math"),
        ("mismatch_kl", "shell"),
        ("nll", "shell"),
        ("ref_kl", "tutor"),
    ):
        assert row[f"{key}/env/{env}"] == pytest.approx(alone[env][key], rel=1e-4)
    assert row["mismatch_kl/env/math"] != row["mismatch_kl/env/shell"] and "nll/env/math" not in row


def test_no_metric_depends_on_how_a_mixed_batch_is_split(batches, tiny_model_dir, tmp_path):
    whole, split = (step(tiny_model_dir, tmp_path, batches.mixed, tokens) for tokens in (512, 48))
    assert len(pack(batches.mixed, max_tokens=512)) == 1 and len(pack(batches.mixed, max_tokens=48)) == 2
    assert whole.keys() == split.keys()
    for key in whole.keys() - {"tokens/packed", "tokens_per_second", "time/step", "memory/peak_gib"}:
        assert split[key] == pytest.approx(whole[key], rel=1e-4, abs=1e-6), key
