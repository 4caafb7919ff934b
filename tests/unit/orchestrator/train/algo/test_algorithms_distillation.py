"""Distillation: effect of a teacher's scores and tokens."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from verifiers.v1 import TaskData
from verifiers.v1.semantic import ParentLink
from verifiers.v1.trace import TraceTask

from braidrl.configs.algorithm import OPDConfig, OPSDConfig, SFTDistillConfig
from braidrl.configs.loss import IPOLossConfig
from braidrl.configs.orchestrator import GatewayConfig
from braidrl.orchestrator.engines.pool import Replicas
from braidrl.orchestrator.gateway.server import Gateway
from braidrl.orchestrator.train.algo import make_algorithm
from braidrl.orchestrator.train.algo.reference import Reference
from braidrl.orchestrator.train.algo.routing import assign_reference_logprobs
from braidrl.orchestrator.train.samples import drop_zero_signal, flatten_trace
from braidrl.packing import Normalisers, pack
from braidrl.trainer.model.forward import TokenOutputs, to_device
from braidrl.trainer.rl.components import component_loss
from braidrl.trainer.rl.losses import make_loss
from braidrl.transport.types import TrainingBatch, decode_batch, encode
from tests.support.episodes import episode, node, trace
from tests.support.fake_teacher import FakeTeacher, frozen_source, opd, policy, toy
from tests.support.server_helpers import running

ROLES = [("user", 2), ("assistant", 2), ("tool", 1), ("assistant", 2)]


async def test_opd_vectors(worked_cases, tiny_model_dir: Path) -> None:
    case = next(c for c in worked_cases["reference_stream"] if c["inputs"]["prefix_len"] == 0)
    item = trace(roles=ROLES)
    await score(opd, FakeTeacher(), case, item, tiny_model_dir)
    assert item.branches[0].reference_logprobs == case["expected"]["ref_logprobs"]


async def test_opsd_vectors(worked_cases, tiny_model_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for case in worked_cases["reference_stream"]:
        item = trace(roles=ROLES)
        prefix = list(range(50, 50 + case["inputs"]["prefix_len"]))
        monkeypatch.setattr(
            "braidrl.orchestrator.train.algo.opsd.OPSDAlgorithm.hint", lambda *_, prefix=prefix: prefix
        )
        monkeypatch.setattr("braidrl.orchestrator.train.algo.opsd.demonstration_of", lambda *_: "shown")
        monkeypatch.setattr("braidrl.orchestrator.train.algo.opsd.OPSDAlgorithm.setup", connect_only)
        teacher = FakeTeacher()
        await score(lambda url: OPSDConfig(), teacher, case, item, tiny_model_dir)
        assert item.branches[0].reference_logprobs == case["expected"]["ref_logprobs"]
        assert teacher.requests[-1][1]["token_ids"] == prefix + item.branches[0].token_ids


async def connect_only(self: Any) -> None:
    live = Reference.live(self.clients, max_concurrent=1, timeout=5.0)
    self.policy = await self.resources.enter_async_context(live)


async def score(kind: Any, teacher: FakeTeacher, case: Any, item: Any, tiny: Path) -> None:
    """Score an episode of this trace with a teacher that returns the scores of the case."""
    async with teacher.serving() as url:
        algorithm = make_algorithm(kind(url), policy(tiny, url))
        await algorithm.setup()
        teacher.scores = lambda token_ids: case["inputs"]["scored"]
        await algorithm.finalize_episode(episode(item))
        await algorithm.close()


@pytest.mark.parametrize("length", [6, 8])
def test_a_score_too_few_or_too_many_is_an_error(length: int) -> None:
    item = trace(roles=ROLES)
    with pytest.raises(
        ValueError, match=f"scored {length + 2} tokens, but 9 were sent \\(a prefix of 2 and 7 "
    ):
        assign_reference_logprobs(item.branches[0], [-1.0] * (length + 2), prefix=2)


def test_a_sampled_token_without_context_has_no_score() -> None:
    with pytest.raises(ValueError, match="no finite log-prob"):
        assign_reference_logprobs(trace(roles=[("assistant", 2)]).branches[0], [math.nan, -1.0])


async def test_a_changed_score_changes_the_gradient(tiny_model_dir: Path) -> None:
    async def gradient(change: float) -> torch.Tensor:
        teacher, item = FakeTeacher(), trace(roles=ROLES)
        async with teacher.serving() as url:
            algorithm = make_algorithm(opd(url), policy(tiny_model_dir))
            await algorithm.setup()
            teacher.scores = lambda ids: [-0.5 + change * (place == 3) for place in range(len(ids))]
            await algorithm.finalize_episode(episode(item))
            await algorithm.close()
        (flat,) = flatten_trace(item, seq_len=64).samples
        sample = drop_zero_signal(flat)
        assert sample is not None
        assert not sample.rl_weights.any() and sample.advantages is None
        assert sample.ref_kl_weights.tolist() == sample.mask.tolist()
        (sample,) = decode_batch(encode(TrainingBatch(step=1, samples=[sample]))).samples
        (micro,) = pack([sample], max_tokens=64)
        x = torch.full((int(sample.mask.sum()),), -0.75, requires_grad=True)
        device = to_device(micro, torch.device("cpu"))
        outputs = TokenOutputs(x, x.detach())
        loss, _ = component_loss(outputs, device, make_loss(IPOLossConfig()), Normalisers.of([sample]))
        loss.backward()
        return x.grad

    before, after = await gradient(0.0), await gradient(-0.3)
    changed = (before != after).tolist()
    assert changed == [False, True, False, False]


async def test_a_branch_that_does_not_train_does_not_cost_its_trace(tiny_model_dir: Path) -> None:
    item = trace(roles=ROLES)
    item.nodes += [node("tool", 2, 1), node("assistant", 1, 4)]
    item.nodes[5].semantic_parents.append(ParentLink(node=1, type="compaction_attempt"))
    async with FakeTeacher().serving() as url:
        algorithm = make_algorithm(opd(url), policy(tiny_model_dir))
        await algorithm.setup()
        await algorithm.finalize_episode(episode(item))
        await algorithm.close()
    flat = flatten_trace(item, seq_len=64)
    assert (len(flat.samples), flat.refused) == (1, {})


async def test_sft_trains_every_sampled_token_and_needs_no_log_probs(tiny_model_dir: Path) -> None:
    item = trace(roles=ROLES)
    for graph_node in item.nodes:
        graph_node.logprobs = []
    async with FakeTeacher(decode=toy(tiny_model_dir)).serving() as url:
        algorithm = make_algorithm(
            SFTDistillConfig.model_validate(frozen_source(url)), policy(tiny_model_dir)
        )
        await algorithm.setup()
        await algorithm.finalize_episode(episode(item))
        await algorithm.score_group([episode(item)])
        await algorithm.close()
    (flat,) = flatten_trace(item, seq_len=64).samples
    sample = drop_zero_signal(flat)
    assert sample is not None
    assert sample.ce_weights.tolist() == sample.mask.tolist() == [0, 0, 1, 1, 0, 1, 1]
    assert not sample.rl_weights.any() and sample.advantages is None


async def test_only_eligible_traces_cost_a_score(tiny_model_dir: Path) -> None:
    teacher = FakeTeacher()
    async with teacher.serving() as url:
        algorithm = make_algorithm(opd(url), policy(tiny_model_dir))
        await algorithm.setup()
        asked = len(teacher.requests)
        good, failed, frozen = trace(), trace(ok=False), trace(trainable=False)
        await algorithm.finalize_episode(episode(good, failed, frozen, ok=True))
        await algorithm.close()
    assert len(teacher.requests) - asked == 1
    assert good.nodes[1].reference_logprobs is not None
    assert failed.nodes[1].reference_logprobs is None


# -- the real engine


def logprobs_of(path: Path, token_ids: list[int]) -> list[float]:
    """Return log p of every token except the first."""
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    with torch.no_grad():
        logits = model(torch.tensor([token_ids])).logits[0, :-1]
    chosen = torch.tensor(token_ids[1:])[:, None]
    return logits.log_softmax(-1).gather(1, chosen)[:, 0].tolist()


async def test_opd_against_the_embedded_engine(tiny_model_dir: Path) -> None:
    item = trace(roles=ROLES)
    async with running(tiny_model_dir) as session:
        url = str(session._base_url)
        config = OPDConfig.model_validate(
            {"teacher": {"name": str(tiny_model_dir), "base_url": url + "/v1"}, "timeout": 30}
        )
        algorithm = make_algorithm(config, policy(tiny_model_dir))
        await algorithm.setup()
        await algorithm.finalize_episode(episode(item))
        await algorithm.close()
    (sample,) = flatten_trace(item, seq_len=64).samples
    expected = np.array([0.0, *logprobs_of(tiny_model_dir, item.branches[0].token_ids)])
    np.testing.assert_allclose(sample.ref_logprobs, np.where(sample.mask, expected, 0), rtol=1e-4, atol=1e-4)


class Row(TaskData):
    answer: str


async def test_opsd_scores_behind_its_hint_through_the_gateway(tiny_model_dir: Path) -> None:
    name, item = str(tiny_model_dir), trace(roles=ROLES)
    item.task = TraceTask(type="Task", data=Row(idx=0, answer="42"))
    config = OPSDConfig.model_validate(
        {"demo_key": "answer", "template": "Say {demonstration}.", "renderer": "qwen3"}
    )
    async with running(tiny_model_dir) as session:
        pool = Replicas([f"{session._base_url}/v1"], live=True)
        await pool.connect(30.0)
        async with Gateway(GatewayConfig(), {name: pool}, seed=0, context=512) as gateway:
            algorithm = make_algorithm(config, gateway)
            await algorithm.setup()
            await algorithm.finalize_episode(episode(item))
            hint = algorithm.hint("42")
            await algorithm.close()
        await pool.close()
    text = AutoTokenizer.from_pretrained(tiny_model_dir).decode(hint)
    assert "Say 42." in text and text.startswith("<|im_start|>system")
    expected = logprobs_of(tiny_model_dir, hint + item.branches[0].token_ids)[len(hint) - 1 :]
    mask = np.array(item.branches[0].sampled_mask)
    found = np.array(item.branches[0].reference_logprobs)
    np.testing.assert_allclose(found, np.where(mask, expected, 0), rtol=1e-4, atol=1e-4)


async def test_a_task_without_a_demonstration_says_which_fields_it_has(tiny_model_dir: Path) -> None:
    teacher = FakeTeacher()
    async with teacher.serving() as url:
        algorithm = make_algorithm(
            OPSDConfig.model_validate({"renderer": "qwen3"}), policy(tiny_model_dir, url)
        )
        await algorithm.setup()
        with pytest.raises(
            ValueError, match=r"no demonstration 'demonstration'.*it has idx, .*set algo\.demo_key"
        ):
            await algorithm.finalize_episode(episode(trace()))
        await algorithm.close()
