"""`braid sft` trains exactly the tokens that a rollout with the same replies trains."""

from pathlib import Path

import pytest
import verifiers.v1 as vf
from verifiers.v1.env import RunSlot
from verifiers.v1.utils.loaders import load_environment

from braidrl.configs.environment import resolve_env
from braidrl.configs.model import RendererConfig
from braidrl.configs.sft import SFTDataConfig
from braidrl.orchestrator.train.samples import flatten_trace
from braidrl.trainer.sft.conversations import load_conversations
from braidrl.trainer.sft.data import to_sample
from braidrl.utils.renderer import load_renderer, renderer_options
from tests.support.scripted_model import ScriptedModel

RENDERER = RendererConfig(name="qwen3", enable_thinking=False)
END = "<|im_end|>"


def reply(message: dict) -> str:
    """Return the text that a model samples for this message."""
    calls = [call["function"] for call in message.get("tool_calls", ())]
    texts = [
        f'<tool_call>\n{{"name": "{call["name"]}", "arguments": {call["arguments"]}}}\n</tool_call>'
        for call in calls
    ]
    return "\n".join(texts or [message["content"]]) + END


async def sampled(model: ScriptedModel, block: dict, tokenizer: Path) -> vf.Trace:
    """Return the trace of the first task, rendered to tokens by the training client."""
    env = load_environment(resolve_env(block))
    async with model.serve() as base_url, env.serving():
        client = vf.TrainClientConfig(
            base_url=base_url,
            api_key_var="NO_SUCH_KEY",
            renderer=renderer_options(RENDERER),
            renderer_model_name=str(tokenizer),
        )
        sampling = vf.SamplingConfig(temperature=1.0, max_tokens=64)
        context = vf.ModelContext(model="m", client=client, sampling=sampling)
        episode = await env.run_slot(RunSlot(next(iter(env.taskset))), context)
    (trace,) = episode.traces
    assert trace.ok
    return trace


@pytest.mark.parametrize("taskset", ["arithmetic", "guess-number", "terminal"])
async def test_a_demonstration_is_the_rollout_that_it_shows(tiny_model_dir: Path, taskset: str) -> None:
    block = {"id": taskset, "num_tasks": 1}
    (conversation,) = load_conversations(SFTDataConfig(taskset=block))
    taught = to_sample(load_renderer(str(tiny_model_dir), RENDERER), conversation)
    replies = [reply(message) for message in conversation.messages if message["role"] == "assistant"]
    model = ScriptedModel(*((text, "stop") for text in replies))
    trace = await sampled(model, {"taskset": block}, tiny_model_dir)
    assert trace.reward > 0 and len(model.requests) == len(replies)
    (sample,) = flatten_trace(trace, seq_len=1000).samples
    length = len(sample.token_ids)
    assert sample.token_ids.tolist() == taught.token_ids[:length].tolist()
    assert sample.mask.tolist() == (taught.ce_weights[:length] > 0).tolist()
    assert not taught.ce_weights[length:].any()
