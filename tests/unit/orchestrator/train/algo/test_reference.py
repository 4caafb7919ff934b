"""References: valid scores, failing servers, different tokenizers."""

import asyncio
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from braidrl.configs.algorithm import FrozenModelConfig, SFTDistillConfig
from braidrl.orchestrator.train.algo import make_algorithm
from braidrl.orchestrator.train.algo.reference import Reference, ScoringError
from tests.support.fake_teacher import FakeTeacher, frozen_source, opd, policy, toy


def reference(*urls: str, **settings: Any) -> Reference:
    return Reference("teacher", urls, **{"timeout": 5.0, **settings})


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


async def test_requests_carry_the_api_key(monkeypatch: pytest.MonkeyPatch) -> None:
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


async def test_temporary_failures_are_retried() -> None:
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
            ScoringError, match=r"'teacher' at http://127.0.0.1:9 did not answer within 0.3 s"
        ):
            await model.score([3, 4])


async def test_a_server_that_is_slow_is_an_error_at_the_deadline() -> None:
    async with FakeTeacher(latency=5.0).serving() as url, reference(url, timeout=0.2) as model:
        with pytest.raises(ScoringError, match=r"within 0.2 s .*still processing the request"):
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
        (lambda answer: "<html>It works!</html>", "cannot be decoded .*<html>It works"),
        (lambda answer: {**answer, "prompt_logprobs": "many"}, "cannot be decoded"),
        (without_scores, "cannot score prompts: its response has no prompt_logprobs"),
        (one_short, "scores of 1 tokens, 0 of them matching, but 2 tokens were sent"),
        (of_other_tokens, "scores of 2 tokens, 0 of them"),
    ],
)
async def test_an_invalid_response_is_an_error_with_its_text(
    edit: Callable[[Any], Any], message: str
) -> None:
    async with FakeTeacher(edit=edit).serving() as url, reference(url) as model:
        with pytest.raises(ScoringError, match=message):
            await model.score([3, 4])


# -- tokenizers


@pytest.mark.parametrize("kind", [opd, lambda url: SFTDistillConfig.model_validate(frozen_source(url))])
async def test_a_reference_of_another_tokenizer_is_refused_at_the_start(kind, tiny_model_dir: Path) -> None:
    """Both vocabularies have the same size, but some letters have other ids."""
    teacher = FakeTeacher(decode=toy(tiny_model_dir, shift=1))
    async with teacher.serving() as url:
        algorithm = make_algorithm(kind(url), policy(tiny_model_dir))
        with pytest.raises(
            ScoringError, match=r"a different tokenizer from the policy .*: token \d+ is '\w', in the policy"
        ):
            await algorithm.setup()
        await algorithm.close()


async def test_every_replica_is_asked(tiny_model_dir: Path) -> None:
    teachers = [FakeTeacher(decode=toy(tiny_model_dir, shift)) for shift in (0, 1)]
    async with teachers[0].serving() as a, teachers[1].serving() as b, reference(a, b) as model:
        with pytest.raises(ScoringError, match="a different tokenizer"):
            await model.check_tokenizer(str(tiny_model_dir))


async def test_ids_of_the_tokenize_route_must_agree(tiny_model_dir: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(tiny_model_dir)
    ids = lambda text: tokenizer.encode(text, add_special_tokens=False)
    teacher = FakeTeacher(tokenize=ids)
    async with teacher.serving() as url, reference(url) as model:
        await model.check_tokenizer(str(tiny_model_dir))
        teacher.tokenize = lambda text: ids(text)[::-1]
        with pytest.raises(ScoringError, match=r"for 'Hello, world! \d+' it returns the ids \["):
            await model.check_tokenizer(str(tiny_model_dir))


async def test_a_smaller_vocabulary_is_refused(tiny_model_dir: Path) -> None:
    size = len(AutoTokenizer.from_pretrained(tiny_model_dir))
    teacher = FakeTeacher(decode=toy(tiny_model_dir), vocabulary=size - 1)
    async with teacher.serving() as url, reference(url) as model:
        with pytest.raises(ScoringError, match=f"token id {size - 1} is outside the vocabulary"):
            await model.check_tokenizer(str(tiny_model_dir))
        teacher.vocabulary = size
        await model.check_tokenizer(str(tiny_model_dir))
