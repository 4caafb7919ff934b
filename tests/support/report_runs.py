"""A small run recorded in this process by the real sink, ledger, trainer step and recorders. It has groups of several
outcomes, a branched trace, an observation that trains, and tokens outside the trust region."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import verifiers.v1 as vf
from verifiers.v1.graph import MessageNode

from braidrl.monitors.metrics import MetricsWriter
from braidrl.orchestrator.envs.source import FinishedEpisode, TrainEnv
from braidrl.orchestrator.gateway.server import Gateway
from braidrl.orchestrator.pipeline.groups import Group
from braidrl.orchestrator.pipeline.records import Ledger, append_records, episode_record, group_records
from braidrl.orchestrator.pipeline.sink import Sink
from braidrl.trainer.parallel import Parallel
from braidrl.trainer.rl.step import Learner
from braidrl.trainer.rl.token_records import TokenRecorder
from braidrl.utils.run_folder import RunFolder
from braidrl.utils.tiny_model import byte_tokenizer
from tests.support.stub_episodes import make_episode, make_failure
from tests.support.stub_trainer import orchestrator_config
from tests.support.trainer_batches import trainer_config

STEPS = 2
LIKELY = -5.58
"""Approximate log-prob of a token under a random policy with 265 tokens."""
SURE = -0.5
"""Log-prob of a sampler that was much more certain, so that the token is outside the trust region."""
SOURCES = {"group": {"type": "grpo"}, "told": {"type": "echo", "roles": {"tool": {"alpha": 0.5}}}}
CONFIG = """\
max_steps = 2
seq_len = 64
[model]
path = "{model}"
[trainer.loss]
type = "ipo"
eps = 0.1
[[orchestrator.train.source]]
name = "group"
[orchestrator.train.source.algo]
type = "grpo"
[[orchestrator.train.source]]
name = "told"
[orchestrator.train.source.algo]
type = "echo"
"""


@dataclass
class Recording:
    """Components that record a run: sink, sources and trainer."""

    run: RunFolder
    sink: Sink
    envs: dict[str, TrainEnv]
    learner: Learner
    dispatched: int = 0

    @classmethod
    def start(cls, folder: Path, model: Path) -> "Recording":
        source = {"env": {"taskset": {"id": "stub-tasks"}}}
        sources = [source | {"name": name, "algo": algo, "group_size": 2} for name, algo in SOURCES.items()]
        settings = {"train": {"source": sources}, "batch_size": 4, "seq_len": 64, "max_off_policy_steps": 1}
        config = orchestrator_config(model, folder, "http://127.0.0.1:9/v1", **settings)
        gateway = Gateway(config.gateway, {}, seed=0, context=64)
        envs = {source.name: TrainEnv(source, config, gateway) for source in config.train.source}
        learner = Learner.load(trainer_config(model, folder), Parallel(0, 1, torch.device("cpu")))
        run = RunFolder(folder)
        run.configs.mkdir(parents=True)
        (run.configs / "rl.toml").write_text(CONFIG.format(model=model))
        return cls(run, Sink(config), envs, learner)

    def group(self, env: str) -> Group:
        source = self.envs[env]
        self.dispatched += 1
        return Group(self.dispatched - 1, source, source.curriculum.next_task(), range(2))

    async def end(self, group: Group, episodes: Sequence[FinishedEpisode]) -> None:
        """End all episodes of a group."""
        for number, finished in enumerate(episodes):
            finished.key = group.key(number)
            finished.episode.group = vf.GroupInfo(id=group.id)
            await self.sink.arrive(group, number, finished)
        await self.sink.complete(group)

    def train(self, step: int) -> None:
        """Train on the batch of `step` and record everything."""
        batch = self.sink.take(step)
        assert batch is not None
        samples = batch.training_batch.samples
        # complete already, because no algorithm here has the barrier `batch`
        self.sink._conclude(batch)
        ended = self.sink.take_ended()
        metrics = MetricsWriter(self.run.metrics("orchestrator"))
        metrics.log(step, self.sink.take_metrics())
        Ledger(self.run.metrics("groups")).write(step, ended.outcomes)
        append_records(self.run.train_episodes(step), group_records(ended.groups, step))
        recorder = TokenRecorder(samples, 10**6, self.learner.parallel)
        MetricsWriter(self.run.metrics("trainer")).log(step, self.learner.step(step, samples, recorder))
        recorder.write(self.run.token_records(step), step)


async def record_run(folder: Path, model: Path) -> RunFolder:
    """Record two steps, each with a group that trains, one without signal, one with too few episodes, and one of echo.
    In the echo group, one answer is outside the trust region; in the second step, the other answer is branched."""
    recording = Recording.start(folder, model)
    for step in range(1, STEPS + 1):
        plain, flat, broken, told = (recording.group(name) for name in ("group", "group", "group", "told"))
        await recording.end(plain, [said(plain, 1.0, "yes", step - 1), said(plain, 0.0, "nö", step - 1)])
        await recording.end(flat, [said(flat, 0.5, "so", 0), said(flat, 0.5, "so", 0)])
        await recording.end(broken, [said(broken, 1.0, "fine", 0), make_failure(broken.task, "broken")])
        first = branched(told, 1.0) if step == 2 else said(told, 1.0, "look", 0)
        second = said(told, 0.0, "sure", 0, SURE)
        await recording.end(told, [watched(first), watched(second)])
        recording.train(step)
    task = recording.envs["group"].curriculum.next_task()
    for version in (0, STEPS):
        finished = said(plain, version / STEPS, "held out", version)
        finished.key = f"eval/held/0/{version}"
        assert task is not None
        append_records(
            recording.run.eval_episodes(version),
            [episode_record(finished, env="held", step=version, outcome="eval")],
        )
        metrics = {"eval/held/num": 1.0, "eval/held/errors": 0.0, "eval/held/reward/mean": version / STEPS}
        MetricsWriter(recording.run.metrics("eval")).log(version, metrics)
    return recording.run


def said(group: Group, reward: float, text: str, version: int, logprob: float = LIKELY) -> FinishedEpisode:
    """Return an episode of one turn with real tokens."""
    finished = make_episode(group.task, reward, "key", version)
    trace = finished.episode.traces[0]
    trace.nodes[:] = [message("user", "what?", None), message("assistant", text, 0, logprob)]
    finished.spans = {trace.id: [[(version, sum(trace.nodes[1].mask))]]}
    return finished


def branched(group: Group, reward: float) -> FinishedEpisode:
    """Return an episode with two rollbacks: two answers to the same question, and two continuations of the second."""
    finished = said(group, reward, "first try", 0)
    trace = finished.episode.traces[0]
    trace.nodes += [
        message("assistant", "second try", 0, LIKELY),
        message("user", "more?", 2),
        message("assistant", "third", 3, LIKELY),
        message("user", "else?", 2),
        message("assistant", "fourth one", 5, LIKELY),
    ]
    finished.spans[trace.id] += [
        [(version, sum(trace.nodes[n].mask))] for version, n in ((0, 2), (1, 4), (1, 6))
    ]
    return finished


def watched(finished: FinishedEpisode) -> FinishedEpisode:
    """Return an episode with a tool message after its first turn."""
    trace = finished.episode.traces[0]
    trace.nodes.append(message("tool", "it rains", 1))
    return finished


def message(role: str, text: str, parent: int | None, logprob: float | None = None) -> MessageNode:
    """Return a message in tokens of the tiny model. Of an answer, all tokens except its header are sampled."""
    tokenizer = byte_tokenizer()
    header, body = (tokenizer.encode(part) for part in (f"<|im_start|>{role}\n", f"{text}<|im_end|>"))
    said = {
        "user": vf.UserMessage(content=text),
        "assistant": vf.AssistantMessage(content=text),
        "tool": vf.ToolMessage(tool_call_id="call", content=text),
    }[role]
    sampled = logprob is not None
    return MessageNode(
        parent=parent,
        message=said,
        sampled=sampled,
        token_ids=header + body,
        mask=[False] * len(header) + [sampled] * len(body),
        is_content=[False] * len(header) + [True] * (len(body) - 1) + [sampled],
        logprobs=[logprob - 0.01 * n for n in range(len(body))] if logprob is not None else [],
    )
