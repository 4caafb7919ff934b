"""Ended episodes, constructed directly."""

import verifiers.v1 as vf
from verifiers.v1.graph import MessageNode
from verifiers.v1.trace import AgentInfo, Error, TraceTask

from braidrl.orchestrator.envs.source import FinishedEpisode

SAMPLED = 3
"""Number of sampled tokens per trace."""


def make_episode(
    task: vf.Task, reward: float | None, key: str, version: int = 0, logprobs: int = SAMPLED
) -> FinishedEpisode:
    """Return an episode of one turn, sampled by policy `version`. A reward of None means that scoring never ran."""
    recorded = TraceTask(type="StubTask", data=task.data)
    trace = vf.Trace(task=recorded, agent=AgentInfo(config=vf.AgentConfig()), ok=True, is_completed=True)
    trace.rewards["score"] = None
    if reward is not None:
        trace.record_reward("score", reward)
    prompt = MessageNode(message=vf.UserMessage(content=key), token_ids=[1, 2], mask=[False, False])
    reply = MessageNode(
        parent=0,
        message=vf.AssistantMessage(content="reply"),
        sampled=True,
        token_ids=[5, 6, 7, 8],
        mask=[False, True, True, True],
        logprobs=[-1.0] * logprobs,
    )
    trace.nodes += [prompt, reply]
    episode = vf.Episode(task=recorded, ok=True, traces=[trace])
    return FinishedEpisode(key, episode, {trace.id: [[(version, SAMPLED)]]}, 1.0)


def make_failure(task: vf.Task, key: str) -> FinishedEpisode:
    """Return a failed episode."""
    done = make_episode(task, 0.0, key)
    done.episode.ok = False
    done.episode.errors.append(Error(type="EnvError", message="it broke"))
    return done


def observe(finished: FinishedEpisode) -> FinishedEpisode:
    """Return an episode with a tool message at its end."""
    nodes = finished.episode.traces[0].nodes
    answer = vf.ToolMessage(tool_call_id="call", content="answer")
    nodes.append(MessageNode(parent=1, message=answer, token_ids=[3, 4], mask=[False, False]))
    return finished


def join(finished: FinishedEpisode, *others: FinishedEpisode) -> FinishedEpisode:
    """Merge the traces of several episodes into one episode."""
    for other in others:
        finished.episode.traces += other.episode.traces
        finished.spans |= other.spans
    return finished
