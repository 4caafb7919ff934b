"""References: scores that fit, servers that do not, tokenizers that differ."""

import asyncio
import math
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from verifiers.v1 import TaskData
from verifiers.v1.semantic import ParentLink
from verifiers.v1.trace import TraceTask

from braidrl.configs.algorithm import FrozenModelConfig, OPDConfig, OPSDConfig, SFTDistillConfig
from braidrl.configs.loss import IPOLossConfig
from braidrl.configs.orchestrator import GatewayConfig
from braidrl.orchestrator.gateway import Gateway
from braidrl.orchestrator.replicas import Replicas
from braidrl.orchestrator.train.algo import make_algorithm
from braidrl.orchestrator.train.algo.reference import Reference, ScoringError
from braidrl.orchestrator.train.algo.routing import assign_reference_logprobs
from braidrl.orchestrator.train.samples import drop_zero_signal, flatten_trace
from braidrl.packing import Normalisers, pack
from braidrl.trainer.forward import to_device
from braidrl.trainer.rl.components import component_loss
from braidrl.trainer.rl.losses import make_loss
from tests.unit.episodes import episode, node, trace
from tests.unit.fake_teacher import FakeTeacher
from tests.unit.server_helpers import running

ROLES = [("user", 2), ("assistant", 2), ("tool", 1), ("assistant", 2)]


def reference(*urls: str, **settings: Any) -> Reference:
    return Reference("teacher", urls, **{"timeout": 5.0, **settings})


def policy(path: Path, url: str = "") -> SimpleNamespace:
    """What an algorithm sees of the live policy."""
    return SimpleNamespace(url=url, api_key=None, policy=str(path))


def opd(url: str | list[str], **settings: Any) -> OPDConfig:
    return OPDConfig.model_validate(
        {"teacher": {"name": "teacher", "base_url": url}, "timeout": 5.0, **settings}
    )


# -- scores


async def test_scores_are_those_of_the_tokens_that_were_sent() -> None:
    teacher = FakeTeacher()
    async with teacher.serving() as url, reference(url) as model:
        first, *rest = await model.score([3, 8, 4])
    assert math.isnan(first) and rest == [-2.0, -1.0]
    ((route, body),) = teacher.requests
    assert route == "/inference/v1/generate"
    assert (body["model"], body["token_ids"]) == ("teacher", [3, 8, 4])
    assert "cache_salt" not in body  # a frozen model's prefixes stay valid


async def test_a_server_without_the_token_route_scores_through_completions() -> None:
    teacher = FakeTeacher(has_generate=False)
    async with teacher.serving() as url, reference(url) as model:
        assert (await model.score([3, 8]))[1:] == [-2.0]
        assert (await model.score([3, 4]))[1:] == [-1.0]
    routes = [route for route, _ in teacher.requests]
    assert routes == ["/inference/v1/generate", "/v1/completions", "/v1/completions"]
    assert teacher.requests[-1][1]["prompt"] == [3, 4]


async def test_the_key_goes_along(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEACHER_KEY", "secret")
    teacher = FakeTeacher()
    async with teacher.serving() as url:
        config = FrozenModelConfig(name="teacher", base_url=url, api_key_var="TEACHER_KEY")
        async with Reference.frozen(config) as model:
            await model.score([3, 4])
    assert teacher.headers[0]["Authorization"] == "Bearer secret"
    monkeypatch.delenv("TEACHER_KEY")
    with pytest.raises(ValueError, match=r"'teacher'.*'TEACHER_KEY', which is not set"):
        Reference.frozen(config)


async def test_concurrency_is_bounded_and_replicas_share_the_work() -> None:
    teachers = [FakeTeacher(latency=0.02) for _ in range(2)]
    async with (
        teachers[0].serving() as a,
        teachers[1].serving() as b,
        reference(a, b, max_concurrent=4) as model,
    ):
        await asyncio.gather(*(model.score([3, 4]) for _ in range(12)))
    assert [teacher.most_at_once for teacher in teachers] == [2, 2]
    assert [len(teacher.requests) for teacher in teachers] == [6, 6]


# -- servers that do not score


async def test_what_passes_is_tried_again() -> None:
    teacher = FakeTeacher(failures=[503, 429])
    async with teacher.serving() as url, reference(url) as model:
        assert (await model.score([3, 4]))[1:] == [-1.0]
    assert len(teacher.requests) == 3


async def test_a_replica_that_is_down_is_passed_over() -> None:
    async with FakeTeacher().serving() as url, reference("http://127.0.0.1:9/v1", url) as model:
        assert (await model.score([3, 4]))[1:] == [-1.0]


async def test_a_server_that_is_down_is_an_error_at_the_deadline() -> None:
    async with reference("http://127.0.0.1:9/v1", timeout=0.3) as model:
        with pytest.raises(
            ScoringError, match=r"'teacher' at http://127.0.0.1:9 gave no answer within 0.3 s"
        ):
            await model.score([3, 4])


async def test_a_server_that_is_slow_is_an_error_at_the_deadline() -> None:
    async with FakeTeacher(latency=5.0).serving() as url, reference(url, timeout=0.2) as model:
        with pytest.raises(ScoringError, match=r"within 0.2 s .*still working on the request"):
            await model.score([3, 4])


async def test_a_refusal_is_passed_on_at_once() -> None:
    teacher = FakeTeacher(vocabulary=4)
    async with teacher.serving() as url, reference(url) as model:
        with pytest.raises(
            ScoringError, match=r"refused to score 2 tokens: status 400.*outside the vocabulary"
        ):
            await model.score([3, 4])
    assert len(teacher.requests) == 1


def without_scores(answer: dict[str, Any]) -> Any:
    return {**answer, "prompt_logprobs": None}


def one_short(answer: dict[str, Any]) -> Any:
    return {**answer, "prompt_logprobs": answer["prompt_logprobs"][:-1]}


def of_other_tokens(answer: dict[str, Any]) -> Any:
    return {**answer, "prompt_logprobs": [None, {"5": {"logprob": -1.0}}]}


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda answer: "<html>It works!</html>", "cannot be read .*<html>It works"),
        (lambda answer: {**answer, "prompt_logprobs": "many"}, "cannot be read"),
        (without_scores, "cannot score prompts: its answer has no prompt_logprobs"),
        (one_short, "scored 1 tokens, 0 of them those that were asked for, where 2 were sent"),
        (of_other_tokens, "scored 2 tokens, 0 of them"),
    ],
)
async def test_garbage_is_an_error_that_says_what_came(edit: Callable[[Any], Any], message: str) -> None:
    async with FakeTeacher(edit=edit).serving() as url, reference(url) as model:
        with pytest.raises(ScoringError, match=message):
            await model.score([3, 4])


# -- tokenizers


def toy(path: Path, shift: int = 0) -> Callable[[int], str]:
    """Reads ids as the policy does, or with its letters moved on by `shift`."""
    tokenizer = AutoTokenizer.from_pretrained(path)
    return lambda token: tokenizer.decode([token + shift if 64 <= token < 80 else token])


@pytest.mark.parametrize("kind", [opd, lambda url: SFTDistillConfig.model_validate(frozen_source(url))])
async def test_a_reference_of_another_tokenizer_is_refused_at_the_start(kind, tiny_model_dir: Path) -> None:
    """Both vocabularies have the same size; only some letters have other ids."""
    teacher = FakeTeacher(decode=toy(tiny_model_dir, shift=1))
    async with teacher.serving() as url:
        algorithm = make_algorithm(kind(url), policy(tiny_model_dir))
        with pytest.raises(
            ScoringError, match=r"another tokenizer than the policy .*: token \d+ is '\w' there and"
        ):
            await algorithm.setup()
        await algorithm.close()


def frozen_source(url: str) -> dict[str, Any]:
    return {"sampling": {"source": {"name": "teacher", "base_url": url}}}


async def test_ids_of_the_tokenize_route_must_agree(tiny_model_dir: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(tiny_model_dir)
    ids = lambda text: tokenizer.encode(text, add_special_tokens=False)
    teacher = FakeTeacher(tokenize=ids)
    async with teacher.serving() as url, reference(url) as model:
        await model.check_tokenizer(str(tiny_model_dir))
        teacher.tokenize = lambda text: ids(text)[::-1]
        with pytest.raises(ScoringError, match=r"for 'Hello, world! \d+' it gives the ids \["):
            await model.check_tokenizer(str(tiny_model_dir))


async def test_a_smaller_vocabulary_is_refused(tiny_model_dir: Path) -> None:
    size = len(AutoTokenizer.from_pretrained(tiny_model_dir))
    teacher = FakeTeacher(decode=toy(tiny_model_dir), vocabulary=size - 1)
    async with teacher.serving() as url, reference(url) as model:
        with pytest.raises(ScoringError, match=f"token id {size - 1} is outside the vocabulary"):
            await model.check_tokenizer(str(tiny_model_dir))
        teacher.vocabulary = size
        await model.check_tokenizer(str(tiny_model_dir))


# -- what becomes of the scores


async def test_opd_vectors(vectors, tiny_model_dir: Path) -> None:
    case = next(c for c in vectors["reference_stream"]["cases"] if c["inputs"]["prefix_len"] == 0)
    item = trace(roles=ROLES)
    await score(opd, FakeTeacher(), case, item, tiny_model_dir)
    assert item.branches[0].reference_logprobs == case["expected"]["ref_logprobs"]


async def test_opsd_vectors(vectors, tiny_model_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for case in vectors["reference_stream"]["cases"]:
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
    """Run an episode of this trace past a teacher that gives the case's scores."""
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
        ValueError, match=f"scored {length + 2} tokens where 9 were sent \\(2 in front of 7\\)"
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
        (micro,) = pack([sample], max_tokens=64)
        x = torch.full((int(sample.mask.sum()),), -0.75, requires_grad=True)
        loss, _ = component_loss(
            x, to_device(micro, torch.device("cpu")), make_loss(IPOLossConfig()), Normalisers.of([sample])
        )
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
    """log p of every token but the first."""
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
