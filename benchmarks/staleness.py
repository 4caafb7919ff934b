"""Train every rl loss and off-policy protection under artificial staleness, in one run.

usage: python benchmarks/staleness.py WARMUP_DIR [--steps 24] [--lags 0 2 8] [--seeds 0 1 2] [--settings ipo gspo ...]

The warmed-up policy of `examples/grpo` (outputs/grpo/warmup/weights/step_000300) learns to write words backwards. The
embedded engine samples 16 groups of 8 and the trainer takes a step, but step n trains on samples of version
n - 1 - lag. For every setting, the script prints means over the seeds (of tasks and sampling):

- the held-out reward of the last policy, and its range over the seeds
- the mean ratio policy / sampler over all steps and trained tokens
- the fraction of tokens (for opsm, of sequences) that the setting clips or masks
"""

import argparse
import dataclasses
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from renderers import Renderer

from braidrl.configs.inference import InferenceConfig
from braidrl.configs.model import ModelConfig, RendererConfig
from braidrl.configs.trainer.config import TrainerConfig
from braidrl.inference.engines.request import Completion
from braidrl.inference.engines.sampling import SamplingParams
from braidrl.inference.engines.torch import TorchEngine
from braidrl.orchestrator.train.topk import num_candidates, recover_head
from braidrl.report.table import print_table
from braidrl.trainer.parallel import Parallel
from braidrl.trainer.rl.loss import Loss, LossInputs, LossOutputs
from braidrl.trainer.rl.step import Learner
from braidrl.transport.types import TrainingSample
from braidrl.utils.renderer import load_renderer
from braidrl.utils.run_folder import RunFolder
from reverse_text import ReverseTextConfig, ReverseTextTask, ReverseTextTaskset
from reverse_text.taskset import similarity

GROUPS, GROUP_SIZE, MAX_TOKENS, HELDOUT, HEAD = 16, 8, 16, 256, 64
GRPO: dict[str, Any] = {"loss": {"type": "grpo"}}
SETTINGS: dict[str, tuple[dict[str, Any], str]] = {
    "ipo": ({"loss": {"type": "ipo"}}, "is_masked"),
    "icepop": ({"loss": {"type": "icepop"}}, "is_masked"),
    "icepop, score centering": (
        {"loss": {"type": "icepop", "score_centering": True, "score_centering_topk": HEAD}},
        "is_masked",
    ),
    "custom, REINFORCE": ({"loss": {"type": "custom", "import_path": "staleness.reinforce"}}, "none"),
    "grpo, rollout log-probs": (GRPO | {"use_rollout_log_probs": True}, "clip_ratio"),
    "gspo, rollout log-probs": ({"loss": {"type": "gspo"}, "use_rollout_log_probs": True}, "clip_ratio"),
    "grpo, 2 mini batches": (GRPO | {"mini_batches": 2}, "clip_ratio"),
    "grpo, is_correction clip": (GRPO | {"is_correction": {}}, "is_clip_ratio"),
    "grpo, is_correction mask": (GRPO | {"is_correction": {"action": "mask"}}, "is_clip_ratio"),
    "grpo, is_correction sequence clip": (GRPO | {"is_correction": {"level": "sequence"}}, "is_clip_ratio"),
    "grpo, m2po": (GRPO | {"m2po": {}}, "m2po_clip_ratio"),
    "grpo, opsm": (GRPO | {"opsm": {"reference": "rollout"}}, "opsm_clipfrac"),
}
"""Settings of `[trainer]`, and the metric of the fraction that they clip or mask."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("warmup", type=Path)
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--lags", type=int, nargs="+", default=[0, 2, 8])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--settings", nargs="+", default=list(SETTINGS), choices=list(SETTINGS))
    args = parser.parse_args()
    rows = []
    for name in args.settings:
        for lag in args.lags:
            results = []
            for seed in args.seeds:
                with tempfile.TemporaryDirectory() as folder:
                    results.append(Run(args.warmup, Path(folder), name, lag, seed).play(args.steps))
            rows.append([name, str(lag), *summarize(results), SETTINGS[name][1]])
            print(*rows[-1], sep="  ", flush=True)
    print_table(["setting", "lag", "held-out reward", "range", "mean ratio", "cut off", "metric"], rows)


def summarize(results: list[tuple[float, float, float]]) -> list[str]:
    """Return the means over seeds, and the range of the reward."""
    reward, ratio, cut = np.mean(results, 0)
    lowest, highest = np.min(results, 0)[0], np.max(results, 0)[0]
    return [f"{reward:.3f}", f"{lowest:.3f}-{highest:.3f}", f"{ratio:.3f}", f"{cut:.3f}"]


class Run:
    """Run of one setting with one lag and one seed."""

    def __init__(self, warmup: Path, folder: Path, name: str, lag: int, seed: int) -> None:
        options, self.metric = SETTINGS[name]
        model = ModelConfig(path=str(warmup))
        optim = {"lr": 3e-4}
        shared = {"seq_len": 128, "threads": torch.get_num_threads()}
        self.config = TrainerConfig.model_validate(
            {
                "model": model,
                "output_dir": folder,
                "micro_batch_tokens": 4096,
                "optim": optim,
                **shared,
                **options,
            }
        )
        self.learner = Learner.load(self.config, Parallel(0, 1, torch.device("cpu")))
        self.ratios = RatioRecorder(self.learner.rl_loss.loss)
        self.learner.rl_loss = dataclasses.replace(self.learner.rl_loss, loss=self.ratios)
        self.engine = TorchEngine(
            InferenceConfig.model_validate({"model": model, "max_batch_size": 128, "seed": seed, **shared})
        )
        self.renderer = load_renderer(
            str(warmup), RendererConfig.model_validate({"name": "qwen3", "enable_thinking": False})
        )
        self.run, self.lag, self.seed = RunFolder(folder), lag, seed

    def play(self, steps: int) -> tuple[float, float, float]:
        """Train and return the held-out reward, the mean ratio, and the mean fraction that was clipped or masked."""
        self.engine.start()
        self.engine.loaded.result(60)
        tasks = list(load_tasks("train", steps * GROUPS, self.seed))
        cut = []
        try:
            for step in range(1, steps + 1):
                self._serve(max(0, step - 1 - self.lag))
                batch = self._sample(tasks[(step - 1) * GROUPS : step * GROUPS], step)
                cut.append(self.learner.step(step, batch).get(self.metric, 0.0))
                self.learner.publish(self.run, step)
            self._serve(steps)
            replies = self._generate(list(load_tasks("heldout", HELDOUT, 0)))
            reward = float(np.mean([self._reward(task, request) for task, request in replies]))
        finally:
            self.engine.close()
        return reward, self.ratios.mean, float(np.mean(cut))

    def _serve(self, version: int) -> None:
        """Load this version into the engine and delete older ones."""
        if version:
            self.engine.update_weights(self.run.weights(version), version).result(60)
        for old in self.run.published("weights"):
            if old < version:
                shutil.rmtree(self.run.weights(old))

    def _sample(self, tasks: list[ReverseTextTask], step: int) -> list[TrainingSample]:
        """Sample a group per task and return the training samples of groups whose rewards differ."""
        attempts = self._generate([task for task in tasks for _ in range(GROUP_SIZE)])
        rewards = np.array([self._reward(task, request) for task, request in attempts])
        advantages = (
            rewards.reshape(-1, GROUP_SIZE) - rewards.reshape(-1, GROUP_SIZE).mean(1)[:, None]
        ).ravel()
        return [
            self._flatten(request, advantage, f"{step}.{number // GROUP_SIZE}", number)
            for number, ((_, request), advantage) in enumerate(zip(attempts, advantages, strict=True))
            if np.ptp(rewards[number // GROUP_SIZE * GROUP_SIZE :][:GROUP_SIZE]) > 0
        ]

    def _generate(self, tasks: list[ReverseTextTask]) -> list[tuple[ReverseTextTask, Completion]]:
        head = self.config.loss.head_size
        params = SamplingParams(
            temperature=1.0, max_tokens=MAX_TOKENS, logprobs=0 if head is None else num_candidates(head)
        )
        futures = []
        for task in tasks:
            prompt = self.renderer.render_ids(
                [{"role": "user", "content": task.data.text}], add_generation_prompt=True
            )
            futures.append(self.engine.submit(self.engine.request(prompt, params, id=task.data.text)))
        return [(task, future.result(120)) for task, future in zip(tasks, futures, strict=True)]

    def _reward(self, task: ReverseTextTask, request: Completion) -> float:
        return similarity(reply_text(self.renderer, request.completion), task.data.answer)

    def _flatten(self, request: Completion, advantage: float, group: str, number: int) -> TrainingSample:
        mask = np.arange(len(request.tokens)) >= len(request.prompt)
        logprobs = np.zeros(len(mask), np.float32)
        logprobs[mask] = request.logprobs
        sample = TrainingSample(
            token_ids=np.array(request.tokens, np.int32),
            mask=mask,
            sampling_logprobs=logprobs,
            advantages=np.where(mask, advantage, 0).astype(np.float32),
            env="reverse-text",
            group_id=group,
            trace_id=f"{group}.{number}",
        )
        if (size := self.config.loss.head_size) is not None:
            ids = np.stack([candidates.token_ids for candidates in request.candidates])
            head = recover_head(ids, np.stack([c.logprobs for c in request.candidates]), size)
            sample.head_ids, sample.head_logprobs = head.token_ids, head.logprobs
        return sample


def reinforce(inputs: LossInputs) -> LossOutputs:
    """REINFORCE without an importance ratio: it treats stale samples as on-policy."""
    gain = inputs.advantages * inputs.trainer_logprobs
    return LossOutputs(-gain[inputs.loss_mask].sum(), {})


class RatioRecorder:
    """Loss wrapper that records the mean of policy / sampler over all its tokens."""

    def __init__(self, loss: Loss) -> None:
        self.loss, self.sum, self.count = loss, 0.0, 0

    @property
    def mean(self) -> float:
        return self.sum / max(self.count, 1)

    def __call__(self, inputs: LossInputs) -> LossOutputs:
        change = (inputs.trainer_logprobs.detach() - inputs.inference_logprobs)[inputs.loss_mask]
        self.sum += float(change.exp().sum())
        self.count += len(change)
        return self.loss(inputs)


def load_tasks(split: str, count: int, seed: int) -> Any:
    config = ReverseTextConfig.model_validate(
        {"id": "reverse-text", "split": split, "num_tasks": count, "seed": seed}
    )
    return ReverseTextTaskset(config).load()


def reply_text(renderer: Renderer, completion: list[int]) -> str:
    """Return the text of a reply, which the reward grades."""
    return renderer.parse_response(completion).content or ""


if __name__ == "__main__":
    main()
