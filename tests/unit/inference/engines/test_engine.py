"""Embedded engine compared with plain forwards of the same model."""

import random
import time
from pathlib import Path

import pytest
import torch
from engine_helpers import DEADLINE, check_logprobs, generate, plain_logprobs, running, submit, wait_until
from transformers import Lfm2Config, Lfm2ForCausalLM, MistralConfig, MistralForCausalLM

from braidrl.configs.inference import InferenceConfig
from braidrl.configs.model import ModelConfig
from braidrl.inference.engines.sampling import SamplingParams
from braidrl.inference.engines.torch import EngineClosed, TorchEngine


def prompts_of(count: int, longest: int, seed: int = 0) -> list[list[int]]:
    draw = random.Random(seed)
    return [draw.choices(range(250), k=draw.randint(1, longest)) for _ in range(count)]


def test_logprobs_equal_a_plain_forward_while_requests_join_and_leave(tiny_model_dir: Path):
    prompts = prompts_of(24, 90)
    prompts[5] = prompts[0] = prompts[17] = list(range(60))
    with running(tiny_model_dir) as engine:
        requests = [
            submit(
                engine, prompt, max_tokens=1 + 3 * i % 31, temperature=[1.0, 0.5, 0.0][i % 3], logprobs=i % 4
            )
            for i, prompt in enumerate(prompts)
        ]
        for i, request in enumerate(requests):
            request.future.result(DEADLINE)
            assert len(request.completion) == 1 + 3 * i % 31
            assert request.finish_reason == "length"
            check_logprobs(tiny_model_dir, request)
        assert not engine.scheduler.running and not engine.scheduler.waiting


def test_candidates_are_the_most_likely_tokens(tiny_model_dir: Path):
    with running(tiny_model_dir) as engine:
        request = generate(engine, [1, 2, 3], max_tokens=5, logprobs=7)
    best = plain_logprobs(tiny_model_dir, request.tokens)[2:].topk(7)
    for candidates, ids, values in zip(request.candidates, best.indices.tolist(), best.values.tolist()):
        assert candidates.token_ids.tolist() == ids
        assert candidates.logprobs.tolist() == pytest.approx(values, abs=1e-4)


def test_prompt_logprobs_equal_a_plain_forward(tiny_model_dir: Path):
    prompt = random.Random(3).choices(
        range(250), k=300
    )  # longer than one scored chunk and than the first cache
    with running(tiny_model_dir, prefill_tokens=4096) as engine:
        generate(engine, prompt, max_tokens=1)
        request = generate(engine, prompt, max_tokens=2, prompt_logprobs=2, temperature=0.5)
        short = generate(engine, [7], max_tokens=1, prompt_logprobs=0)
    logprobs = plain_logprobs(tiny_model_dir, prompt)
    assert len(request.scores) == len(prompt) - 1
    for row, (target, *best) in enumerate(request.scores):
        assert target[0] == prompt[row + 1]
        assert target[1] == pytest.approx(logprobs[row, prompt[row + 1]].item(), abs=1e-4)
        assert target[2] == int((logprobs[row] > logprobs[row, prompt[row + 1]]).sum()) + 1
        assert [token for token, _, _ in best] == logprobs[row].topk(2).indices.tolist()
    assert short.scores == [] and len(short.completion) == 1


def test_siblings_share_their_prompt(tiny_model_dir: Path):
    prompt = list(range(100))
    with running(tiny_model_dir) as engine:
        siblings = [submit(engine, prompt, max_tokens=20, seed=seed) for seed in range(6)]
        for sibling in siblings:
            check_logprobs(tiny_model_dir, sibling.future.result(DEADLINE))
        assert engine.scheduler.prefix_hits == 5
        assert engine.stats.prompt_tokens == 100 + 5  # the siblings compute only their last prompt token
        salted = engine.request(prompt, SamplingParams(max_tokens=1), id="salted", salt="other")
        engine.submit(salted).result(DEADLINE)
        assert engine.scheduler.prefix_hits == 5, "another salt shares nothing"
        longer = generate(engine, [*prompt, 7, 8, 9], max_tokens=4)
        assert engine.scheduler.prefix_hits == 6, "a common start is shared as well"
        check_logprobs(tiny_model_dir, longer)
    assert len({tuple(sibling.completion) for sibling in siblings}) == 6


def test_prefixes_beyond_the_budget_are_dropped(tiny_model_dir: Path):
    with running(tiny_model_dir, seq_len=128, max_batch_size=8) as engine:  # keeps 128 tokens
        for start in (0, 50, 100):
            generate(engine, list(range(start, start + 50)), max_tokens=1)
        assert engine.scheduler.prefixes.tokens == 100
        generate(engine, list(range(50)), max_tokens=1)
        assert engine.scheduler.prefix_hits == 0, "the first was the least recently used"


def test_a_seed_reproduces_whatever_else_runs(tiny_model_dir: Path):
    prompt = [5, 6, 7]
    with running(tiny_model_dir) as engine:
        alone = generate(engine, prompt, max_tokens=30, seed=11)
        others = [submit(engine, p, max_tokens=40) for p in prompts_of(7, 60, seed=1)]
        crowded = generate(engine, prompt, max_tokens=30, seed=11)
        different = generate(engine, prompt, max_tokens=30, seed=12)
        for other in others:
            other.future.result(DEADLINE)
    assert alone.completion == crowded.completion != different.completion


def test_requests_without_a_seed_differ_and_a_server_seed_reproduces_them(tiny_model_dir: Path):
    def completions(seed: int) -> list[list[int]]:
        with running(tiny_model_dir, seed=seed) as engine:
            siblings = [submit(engine, list(range(20)), max_tokens=12) for _ in range(4)]
            return [sibling.future.result(DEADLINE).completion for sibling in siblings]

    first, again, other = completions(1), completions(1), completions(2)
    assert len({tuple(tokens) for tokens in first}) == 4
    assert first == again != other


def test_no_token_is_generated_while_paused(tiny_model_dir: Path):
    with running(tiny_model_dir) as engine:
        request = submit(engine, [1, 2, 3], max_tokens=300)
        wait_until(lambda: len(request.logprobs) > 0, "the first token")
        engine.pause().result(DEADLINE)
        generated = engine.stats.generated_tokens
        queued = submit(engine, [4], max_tokens=2)
        time.sleep(0.1)
        assert engine.stats.generated_tokens == generated < 300
        engine.resume().result(DEADLINE)
        assert len(request.future.result(DEADLINE).completion) == 300
        assert len(queued.future.result(DEADLINE).completion) == 2


@pytest.mark.parametrize("paused", [False, True])
def test_a_cancelled_request_frees_its_slot(tiny_model_dir: Path, paused: bool):
    with running(tiny_model_dir, max_batch_size=2) as engine:
        first, second, third = (submit(engine, [i], max_tokens=400) for i in range(3))
        wait_until(lambda: engine.stats.generated_tokens > 0, "the first token")
        if paused:
            engine.pause().result(DEADLINE)
        assert first.future.cancel() and third.future.cancel()
        wait_until(
            lambda: engine.scheduler.running == [second] and not engine.scheduler.waiting, "the free slot"
        )
        engine.resume().result(DEADLINE)
        check_logprobs(tiny_model_dir, second.future.result(DEADLINE))


def test_closing_fails_what_is_unfinished(tiny_model_dir: Path):
    with running(tiny_model_dir) as engine:
        request = submit(engine, [1], max_tokens=500)
    for future in (request.future, engine.pause(), submit(engine, [1]).future):
        with pytest.raises(EngineClosed):
            future.result(DEADLINE)
    assert engine.ended.done()


def test_a_model_that_cannot_be_loaded_says_so(tmp_path: Path):
    engine = TorchEngine(InferenceConfig(model=ModelConfig(path=str(tmp_path / "nowhere"))))
    engine.start()
    for future in (engine.loaded, engine.ended):
        with pytest.raises(Exception, match="nowhere"):
            future.result(DEADLINE)


def test_sliding_windows_and_untied_heads(tmp_path: Path):
    config = MistralConfig(
        vocab_size=256,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=1,
        sliding_window=8,
        eos_token_id=255,
    )
    torch.manual_seed(0)
    MistralForCausalLM(config).save_pretrained(tmp_path)
    with running(tmp_path, prefill_tokens=20) as engine:
        requests = [submit(engine, prompt, max_tokens=20) for prompt in prompts_of(6, 50)]
        for request in requests:
            check_logprobs(tmp_path, request.future.result(DEADLINE))
        assert engine.model.eos_ids == {255}


def test_layers_that_are_not_attention_are_refused(tmp_path: Path):
    config = Lfm2Config(
        vocab_size=256,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        layer_types=["conv", "full_attention"],
    )
    Lfm2ForCausalLM(config).save_pretrained(tmp_path)
    engine = TorchEngine(InferenceConfig(model=ModelConfig(path=str(tmp_path)), threads=1))
    engine.start()
    with pytest.raises(
        ValueError, match=r"1 of 2 layers store keys and values, unsupported layer types: \['conv'\]"
    ):
        engine.loaded.result(DEADLINE)
