"""Supervised fine-tuning: exactly the assistant's tokens train, with the trainer's step."""

import json
import sys
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from renderers import Renderer
from transformers import AutoModelForCausalLM

from braidrl.configs.model import RendererConfig
from braidrl.configs.sft import SFTConfig, SFTDataConfig
from braidrl.monitors.metrics import read_metrics
from braidrl.trainer.sft.conversations import Conversation, load_conversations
from braidrl.trainer.sft.data import Demonstrations, to_sample
from braidrl.trainer.sft.train import train_sft
from braidrl.utils.renderer import load_renderer
from braidrl.utils.run_folder import RunFolder

TURNS = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "one?"},
    {"role": "assistant", "content": "eins"},
    {"role": "user", "content": "two?"},
    {"role": "assistant", "content": "zwei"},
]


@pytest.fixture(params=["qwen3", "default"])
def renderer(request: pytest.FixtureRequest, tiny_model_dir: Path) -> Renderer:
    """Renderers: one of a model family, and the default one that uses the chat template."""
    options = {"enable_thinking": False} if request.param == "qwen3" else {}
    return load_renderer(str(tiny_model_dir), RendererConfig(name=request.param, **options))


def decode(renderer: Any, ids: np.ndarray) -> str:
    return renderer._tokenizer.decode(ids.tolist(), skip_special_tokens=False)


def learnt(
    renderer: Any, messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None = None
) -> list[str]:
    """Return the text of each contiguous span of trained tokens."""
    sample = to_sample(renderer, Conversation("test", messages, tools))
    assert sample.ce_weights is not None and not sample.mask.any()
    chosen = sample.ce_weights == 1
    assert (sample.ce_weights[~chosen] == 0).all()
    edges = np.flatnonzero(np.diff(np.concatenate([[0], chosen.astype(int), [0]])))
    return [decode(renderer, sample.token_ids[a:b]) for a, b in zip(edges[::2], edges[1::2], strict=True)]


def test_the_assistants_tokens_and_the_end_of_its_turns_are_learnt(renderer: Renderer) -> None:
    assert learnt(renderer, TURNS) == ["eins<|im_end|>", "zwei<|im_end|>"]


def test_the_end_of_a_turn_is_learnt_when_it_is_the_padding_token_too(renderer: Any) -> None:
    renderer._tokenizer.pad_token = "<|im_end|>"
    assert learnt(renderer, TURNS[1:3]) == ["eins<|im_end|>"]


def test_an_answer_that_looks_like_the_end_of_a_turn_is_learnt_to_its_last_token(renderer: Renderer) -> None:
    assert learnt(renderer, [TURNS[1], {"role": "assistant", "content": "user\n"}])[0].startswith("user\n")


def test_a_conversation_without_an_answer_is_refused(renderer: Renderer) -> None:
    with pytest.raises(ValueError, match="line 7 has no assistant message to learn"):
        to_sample(renderer, Conversation("line 7", TURNS[:2]))


def test_thoughts_are_learnt_when_the_model_would_sample_them(tiny_model_dir: Path) -> None:
    thinking = load_renderer(str(tiny_model_dir), RendererConfig(name="qwen3"))
    answer = {"role": "assistant", "content": "eins", "reasoning_content": "German"}
    assert learnt(thinking, [TURNS[1], answer]) == ["<think>\nGerman\n</think>\n\neins<|im_end|>"]


def test_tool_calls_are_learnt_and_their_results_are_not(tiny_model_dir: Path) -> None:
    qwen = load_renderer(str(tiny_model_dir), RendererConfig(name="qwen3", enable_thinking=False))
    call = {"id": "c", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
    messages: list[dict[str, Any]] = [
        TURNS[1],
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "RESULT"},
        {"role": "assistant", "content": "done"},
    ]
    tools = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]
    first, second = learnt(qwen, messages, tools)
    assert '"name": "add"' in first and first.endswith("<|im_end|>") and second == "done<|im_end|>"


def test_the_content_of_every_role_can_be_learnt(tiny_model_dir: Path) -> None:
    qwen = load_renderer(str(tiny_model_dir), RendererConfig(name="qwen3", enable_thinking=False))
    alone, whole = (to_sample(qwen, Conversation("test", TURNS), all_roles=roles) for roles in (False, True))
    assert alone.token_ids.tolist() == whole.token_ids.tolist()
    added = whole.token_ids[whole.ce_weights > alone.ce_weights]
    assert decode(qwen, added) == "Be brief.one?two?"
    assert (whole.ce_weights >= alone.ce_weights).all() and whole.ce_weights[0] == 0
    opaque = load_renderer(str(tiny_model_dir), RendererConfig(name="default"))
    with pytest.raises(ValueError, match="does not tell content from layout"):
        to_sample(opaque, Conversation("test", TURNS), all_roles=True)


def test_a_template_that_rewrites_earlier_turns_is_refused(tiny_model_dir: Path) -> None:
    opaque: Any = load_renderer(str(tiny_model_dir), RendererConfig(name="default"))
    opaque._tokenizer.chat_template = (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n"
        "{{ m.content if loop.last or m.role == 'user' else '' }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    assert learnt(opaque, TURNS[1:3]) == ["eins<|im_end|>"]
    with pytest.raises(ValueError, match="test: the chat template writes message 2 otherwise"):
        learnt(opaque, TURNS)


def sft_config(model: Path, output_dir: Path, data: Any, **changes: Any) -> SFTConfig:
    defaults: dict[str, Any] = {
        "model": {"path": str(model)},
        "renderer": {"name": "qwen3", "enable_thinking": False},
        "seq_len": 64,
        "batch_size": 4,
        "threads": 1,
    }
    return SFTConfig.model_validate({**defaults, "output_dir": output_dir, "data": data, **changes})


def demonstrations(config: SFTConfig) -> Demonstrations:
    return Demonstrations(config, load_renderer(config.model.path, config.renderer))


def write_conversations(path: Path, answers: list[str]) -> Path:
    lines = ({"messages": [TURNS[1], {"role": "assistant", "content": answer}]} for answer in answers)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def names(data: Demonstrations, count: int) -> list[str]:
    samples = (sample for _ in range(-(-count // data.batch_size)) for sample in data.next_batch())
    return [sample.trace_id.rsplit(" ", 1)[1] for sample in islice(samples, count)]


def test_every_epoch_has_each_conversation_once_in_an_order_of_its_own(tiny_model_dir, tmp_path) -> None:
    path = write_conversations(tmp_path / "data.jsonl", [f"answer {index}" for index in range(10)])
    config = sft_config(tiny_model_dir, tmp_path, {"path": path})
    order = names(demonstrations(config), 30)
    epochs = [order[start : start + 10] for start in (0, 10, 20)]
    assert all(sorted(epoch, key=int) == [str(line) for line in range(1, 11)] for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2]
    assert names(demonstrations(config), 30) == order
    assert names(demonstrations(config.model_copy(update={"seed": 1})), 30) != order


def test_sources_are_mixed_by_their_weights(tiny_model_dir, tmp_path) -> None:
    many = write_conversations(tmp_path / "many.jsonl", [f"answer {index}" for index in range(8)])
    sources = [{"path": many, "weight": 3.0}, {"taskset": {"id": "reverse-text", "num_tasks": 5}}]
    config = sft_config(tiny_model_dir, tmp_path, sources, batch_size=400)
    samples = demonstrations(config).next_batch()
    share = sum(sample.env == "many" for sample in samples) / 400
    assert {sample.env for sample in samples} == {"many", "reverse-text"}
    assert abs(share - 0.75) < 0.075  # 3.5 standard deviations
    again = demonstrations(config).next_batch()
    assert [sample.trace_id for sample in again] == [sample.trace_id for sample in samples]


def test_long_conversations_are_dropped_and_each_is_rendered_once(
    tiny_model_dir, tmp_path, monkeypatch
) -> None:
    path = write_conversations(tmp_path / "data.jsonl", ["a", "b" * 200, "c"])
    data = demonstrations(sft_config(tiny_model_dir, tmp_path, {"path": path}))
    rendered: list[str] = []
    render = data.sources[0].renderer.render

    def counting(messages: list[dict[str, Any]], **options: Any) -> Any:
        rendered.append(messages[-1]["content"])
        return render(messages, **options)

    monkeypatch.setattr(data.sources[0].renderer, "render", counting)
    assert sorted(set(names(data, 20))) == ["1", "3"]
    assert data.dropped == 1
    assert sorted(content for content in rendered if content != "?") == ["a", "b" * 200, "c"]


def test_nothing_that_fits_is_an_error(tiny_model_dir: Path, tmp_path: Path) -> None:
    path = write_conversations(tmp_path / "data.jsonl", ["b" * 200])
    with pytest.raises(ValueError, match=r"none of 1 conversations of data fits into seq_len \(64 tokens\)"):
        demonstrations(sft_config(tiny_model_dir, tmp_path, {"path": path})).next_batch()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("not json", "line 1 is not JSON"),
        ('{"prompt": "a"}', "line 1 has no messages"),
        ('{"messages": [{"role": "robot", "content": "a"}]}', "role 'robot'"),
        ("", "holds no conversation"),
    ],
)
def test_a_bad_file_is_named(tmp_path: Path, text: str, problem: str) -> None:
    (tmp_path / "data.jsonl").write_text(text)
    with pytest.raises(ValueError, match=rf"data\.jsonl.*{problem}"):
        load_conversations(SFTDataConfig(path=tmp_path / "data.jsonl"))
    with pytest.raises(FileNotFoundError, match="does not exist"):
        load_conversations(SFTDataConfig(path=tmp_path / "nothing.jsonl"))


ENDLESS = """
import itertools
import verifiers.v1 as vf

__all__ = ["EndlessTaskset"]

class EndlessData(vf.TaskData):
    answer: list[vf.AssistantMessage]

class EndlessTaskset(vf.Taskset[vf.Task, vf.TasksetConfig]):
    INFINITE = True

    def load(self):
        for number in itertools.count():
            prompt = [vf.UserMessage(content=f"after {number}?")]
            answer = [vf.AssistantMessage(content=str(number + 1))]
            yield vf.Task(EndlessData(system_prompt="Count.", prompt=prompt, answer=answer), self.config.task)
"""


def test_an_endless_taskset_is_read_on(tiny_model_dir, tmp_path, monkeypatch) -> None:
    (tmp_path / "endless_count.py").write_text(ENDLESS)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "endless_count", raising=False)
    block = {"taskset": {"id": "endless-count"}, "demo_key": "answer"}
    data = demonstrations(sft_config(tiny_model_dir, tmp_path, block))
    samples = data.next_batch() + data.next_batch()
    assert [sample.trace_id for sample in samples] == [f"endless-count, task {index}" for index in range(8)]
    text = decode(data.sources[0].renderer, samples[5].token_ids)
    assert "<|im_start|>system\nCount." in text and "after 5?" in text and "6<|im_end|>" in text


def test_a_taskset_without_the_demonstration_says_what_it_has() -> None:
    with pytest.raises(ValueError, match=r"reverse-text, task 0 has no 'solution'.*'demonstration'"):
        load_conversations(SFTDataConfig(taskset={"id": "reverse-text"}, demo_key="solution"))


def test_a_tiny_model_learns_demonstrations(tiny_model_dir: Path, tmp_path: Path) -> None:
    block = {"taskset": {"id": "reverse-text", "num_tasks": 8}}
    changes = {"max_steps": 12, "batch_size": 8, "optim": {"lr": 1e-2}, "micro_batch_tokens": 128}
    config = sft_config(tiny_model_dir, tmp_path, block, **changes)
    train_sft(config)
    run = RunFolder(tmp_path)
    rows: list[dict[str, Any]] = read_metrics(run.metrics("trainer"))
    assert [row["step"] for row in rows] == list(range(1, 13))
    assert rows[-1]["loss"] < rows[0]["loss"] / 2
    assert all(row["loss"] == pytest.approx(row["nll"]) and row["tokens_per_second"] > 0 for row in rows)
    assert rows[0]["tokens/rl"] == 0 and rows[0]["dropped"] == 0

    model = AutoModelForCausalLM.from_pretrained(run.weights(12))
    sample = demonstrations(config).next_batch()[0]
    ids = torch.from_numpy(sample.token_ids).long()
    with torch.no_grad():
        logprobs = model(ids[None]).logits[0, :-1].log_softmax(-1).gather(-1, ids[1:, None])[:, 0]
    assert sample.ce_weights is not None
    nll = -logprobs[torch.from_numpy(sample.ce_weights[1:] == 1)].mean()
    assert nll < rows[0]["loss"] / 2
    with pytest.raises(FileExistsError, match="trained already"):
        train_sft(config)
