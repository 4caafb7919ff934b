"""Configuration blocks that must keep their meaning, as in files of users of prime-rl and of older versions."""

import copy
import tomllib
from typing import Any

from braidrl.configs.rl import RLConfig

BLOCKS = {
    "opd": """
        [orchestrator.train.algo]
        type = "opd"
        teacher = {name = "Qwen/Qwen3-32B", base_url = "http://localhost:8001/v1"}
    """,
    "grpo": """
        orchestrator.train.algo.type = "grpo"
    """,
    "echo_roles": """
        [orchestrator.train.algo]
        type = "echo"
        roles = {tool = {alpha = 0.25}, user = {alpha = 0.05}}
    """,
    "echo_filter": """
        [orchestrator.train.algo]
        type = "echo"
        roles = {tool = {alpha = 0.25}, user = {alpha = 0.05}}
        filter = {import_path = "my_module.drop_warnings", kwargs = {patterns = ["WARNING"]}}
    """,
    "one_algorithm_per_source": """
        orchestrator.train.algo.type = "grpo"
        [[orchestrator.train.source]]
        name = "math"
        env.taskset.id = "math"
        env.agent = {harness.id = "null", runtime.type = "subprocess"}
        [[orchestrator.train.source]]
        name = "terminal"
        algo.type = "echo"
        env.taskset.id = "terminal"
        env.agent = {harness.id = "bash", runtime.type = "subprocess"}
    """,
    "icepop": """
        trainer.loss = {type = "icepop", ratio_low = 0.2, ratio_high = 5.0}
    """,
    "score_centering": """
        trainer.loss = {type = "icepop", score_centering = true, score_centering_topk = 128}
    """,
    "custom_loss": """
        trainer.loss = {type = "custom", import_path = "my_module.ppo_clip_loss", kwargs = {clip_eps = 0.2}}
    """,
    "length_penalty": """
        orchestrator.train.algo = {type = "grpo", length_penalty = {type = "linear"}}
    """,
    "subagent_length_penalty": """
        [orchestrator.train.algo.length_penalty]
        type = "linear-subagent"
        num_turns_weight = 0.0
        subagent_token_weight = 0.0
    """,
    "prompt_aggregation": """
        orchestrator.train.algo = {type = "grpo", loss_aggregation = "prompt"}
    """,
    "hierarchical_grpo": """
        orchestrator.train.algo = {type = "hierarchical_grpo", episode_agents = ["solver"]}
        [[orchestrator.train.source]]
        name = "proposer-solver"
        group_size = 4
        [orchestrator.train.source.env]
        n = 4
        taskset.id = "proposer-solver"
        proposer = {harness.id = "null", runtime.type = "subprocess"}
        solver = {harness.id = "null", runtime.type = "subprocess"}
    """,
    "rae": """
        orchestrator.train.algo = {type = "rae", decay = 0.95}
        [[orchestrator.train.source]]
        name = "kuhn-poker"
        [orchestrator.train.source.env]
        taskset.id = "kuhn-poker"
        player0 = {harness.id = "null", runtime.type = "subprocess"}
        player1 = {harness.id = "null", runtime.type = "subprocess"}
    """,
    "opsd": """
        orchestrator.train.algo = {type = "opsd", demo_key = "demonstration"}
    """,
    "curriculum": """
        [[orchestrator.train.source]]
        env.taskset.id = "reverse-text"
        [orchestrator.train.source.curriculum.sampler]
        type = "difficulty_pool"
        pools.hard = {threshold = 0.25, weight = 0.2}
        pools.normal = {threshold = 0.75, weight = 1.0}
        pools.easy = {threshold = 1.0, weight = 0.2}
        [orchestrator.train.source.curriculum.gates]
        low_signal = {type = "advantage_range", reject_min = -0.05, reject_max = 0.05}
    """,
    "renderer": """
        orchestrator.renderer.name = "auto"
    """,
}
"""A configuration block and its name."""

OLDER_BLOCKS = {
    "several_algorithms": """
        orchestrator.algo.type = "grpo"
        [[orchestrator.train.env]]
        id = "math-env"
        [[orchestrator.train.env]]
        id = "search-env"
        [[orchestrator.train.env]]
        id = "terminal-env"
        algo.type = "echo"
    """,
    "several_teachers": """
        [[orchestrator.train.env]]
        id = "code-env"
        algo.type = "opd"
        algo.teacher = {name = "CodingExpertModel", base_url = ["http://localhost:8001/v1"]}
        [[orchestrator.train.env]]
        id = "math-env"
        algo.type = "opd"
        algo.teacher = {name = "MathExpertModel", base_url = ["http://localhost:8002/v1"]}
    """,
}
"""Blocks in the older spelling, which load with a warning."""

RECIPE = """\
algorithm:
  advantage_estimator: grpo
  advantage_norm_mode: group_zscore
  policy_loss: grpo
  loss_agg_mode: token-mean
  clip_ratio_low: 0.2
  clip_ratio_high: 0.28
  is_correction: {enable: true, level: token, action: clip, lower_bound: 0.5, upper_bound: 2.0}
  opsm: {enable: true, delta: 0.1}
"""
"""Wrap a block as an `algorithm` section."""


def merge(base: dict[str, Any], block: dict[str, Any]) -> dict[str, Any]:
    """Return `base` with the keys of `block` set, merged recursively."""
    merged = copy.deepcopy(base)
    for key, value in block.items():
        nested = isinstance(value, dict) and isinstance(merged.get(key), dict)
        merged[key] = merge(merged[key], value) if nested else value
    return merged


def run_config(block: dict[str, Any]) -> RLConfig:
    """Return the config of a minimal run with this block."""
    minimal = {
        "model": {"path": "m"},
        "orchestrator": {"train": {"source": [{"env": {"taskset": {"id": "reverse-text"}}}]}},
        "trainer": {},
        "inference": {},
    }
    return RLConfig.model_validate(merge(minimal, block))


def block_named(name: str) -> RLConfig:
    """Return the config of a run with one of `BLOCKS`."""
    return run_config(tomllib.loads(BLOCKS[name]))
