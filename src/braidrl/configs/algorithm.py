"""Algorithms: which model samples, and how a finished episode becomes a per-token signal.

Picking a `type` with no other key is the algorithm; every further key is the user's own assembly.
"""

from collections.abc import Collection
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, field_validator, model_validator

from braidrl.configs.base import BaseConfig
from braidrl.configs.echo import EchoFilterConfig, EchoRoleConfig, EchoRolesConfig
from braidrl.configs.length_penalty import LengthPenaltyConfig
from braidrl.configs.model import FrozenModelConfig, RendererConfig

ActionLossType = Literal["rl", "ce", "ref_kl"]
"""The trainer's loss components (seed 000, "Loss Components")."""

Aggregation = Literal["token", "prompt"]
"""How rl tokens are weighed: every token alike, or every prompt alike."""

Barrier = Literal["episode", "group", "batch"]
"""Whose episodes credit waits for: nobody else's, those of one task, or all of the environment's in one optimizer
step."""
AdvantageNorm = Literal["group_mean", "group_zscore", "batch_zscore", "batch_mean", "none"]
"""What a reward is measured against: the mean of its group or batch, in units of their deviation or not; or nothing."""


class SamplingConfig(BaseConfig):
    """Which model generates the training rollouts."""

    source: Literal["policy"] | FrozenModelConfig = "policy"
    """`"policy"`: the live policy, or an inline frozen model."""

    @field_validator("source", mode="before")
    @classmethod
    def _policy_or_frozen(cls, value: Any) -> Any:
        if isinstance(value, str) and value != "policy":
            raise ValueError(
                f'{value!r} is neither "policy" nor a frozen model; a frozen model is a block with `name` and '
                "`base_url`"
            )
        return value


class BaseAlgorithmConfig(BaseConfig):
    """What every algorithm has."""

    action_loss_type: ClassVar[ActionLossType] = "rl"
    """The loss component that consumes sampled tokens."""
    needs_group: ClassVar[bool] = False
    """Whether credit is relative to siblings, so that a group of one carries no signal."""
    barrier: ClassVar[Barrier] = "group"
    """The most that credit waits for, as the algorithm's widest hook has it: `score_episode`, `score_group`,
    `score_batch`."""
    needs_model: ClassVar[bool] = False
    """Whether the algorithm asks a served model, so that recorded episodes alone cannot be scored."""
    paper: ClassVar[str] = ""
    """Where the algorithm comes from: an arXiv number, or a name."""
    algorithm_class: ClassVar[str] = ""
    """`package.module:Class` of an algorithm that another package brings (`braidrl.configs.plugins`)."""

    sampling: SamplingConfig = Field(default_factory=SamplingConfig)
    """Which model generates the rollouts."""

    @property
    def rl_aggregation(self) -> Aggregation | None:
        """How this algorithm weighs rl tokens; None where it has none."""
        return "token" if self.action_loss_type == "rl" else None

    @property
    def needs_siblings(self) -> bool:
        """Whether these settings compare siblings: `needs_group`, unless one of them says otherwise."""
        return self.needs_group

    @property
    def waits_for(self) -> Barrier:
        """What credit waits for with these settings: `barrier`, or less."""
        return self.barrier

    def check_agents(self, agents: Collection[str]) -> None:
        """Raise `ValueError` where an environment with these agents does not suit the algorithm."""

    @model_validator(mode="after")
    def _frozen_samples_feed_ce_alone(self) -> Self:
        if self.sampling.source != "policy" and self.action_loss_type != "ce":
            raise ValueError(
                f"sampling.source names a frozen model, but this algorithm trains the {self.action_loss_type} "
                "component, which needs the live policy's own sampling log-probs; remove sampling.source, or use "
                'type = "sft" to imitate the frozen model'
            )
        return self


class GroupRelativeConfig(BaseAlgorithmConfig):
    """What the GRPO family has in common: rewards measured against those of the group, or of the batch."""

    needs_group: ClassVar[bool] = True
    barrier: ClassVar[Barrier] = "batch"

    advantage_norm: AdvantageNorm = "group_mean"
    """What is taken off a reward, and whether it is divided by a standard deviation: of its group, or of the
    environment's traces in the optimizer step; `none` leaves the reward as it is."""
    length_penalty: LengthPenaltyConfig | None = None
    """Shaping of the rewards before the baseline; an empty block is linear."""
    length_weighted_baseline: bool = False
    """Weigh the baseline of `group_mean` by trainable tokens, so that a group's advantages sum to zero over them."""
    loss_aggregation: Aggregation = "token"
    """`token`: every rl token weighs the same. `prompt`: every group weighs the same, however long it is."""

    @field_validator("length_penalty", mode="before")
    @classmethod
    def _linear_by_default(cls, value: Any) -> Any:
        return {"type": "linear", **value} if isinstance(value, dict) else value

    @model_validator(mode="after")
    def _one_baseline(self) -> Self:
        if self.length_weighted_baseline and self.advantage_norm != "group_mean":
            raise ValueError(
                f'length_weighted_baseline is a baseline of the group, and advantage_norm = "{self.advantage_norm}" '
                'has another: remove length_weighted_baseline, or set advantage_norm = "group_mean"'
            )
        return self

    @property
    def rl_aggregation(self) -> Aggregation:
        return self.loss_aggregation

    @property
    def needs_siblings(self) -> bool:
        return self.advantage_norm.startswith("group")

    @property
    def waits_for(self) -> Barrier:
        return "batch" if self.advantage_norm.startswith("batch") else "group"


class GRPOConfig(GroupRelativeConfig):
    """Group-relative policy optimisation: reward minus the mean reward of the group, or another of its kin."""

    paper: ClassVar[str] = "arXiv:2402.03300"

    type: Literal["grpo"] = "grpo"


class MaxRLConfig(BaseAlgorithmConfig):
    """Maximum-likelihood RL: reward minus the group's mean, divided by that mean."""

    needs_group: ClassVar[bool] = True
    paper: ClassVar[str] = "arXiv:2602.02710"

    type: Literal["max_rl"] = "max_rl"


class RAEConfig(BaseAlgorithmConfig):
    """Role-conditioned advantage estimation: reward minus a running mean of the same agent's rewards."""

    barrier: ClassVar[Barrier] = "batch"
    paper: ClassVar[str] = "arXiv:2506.24119"

    type: Literal["rae"] = "rae"
    decay: float = Field(0.95, ge=0, lt=1)
    """Share of the old baseline that stays at each trace (SPIRAL's alpha)."""


class HierarchicalGRPOConfig(BaseAlgorithmConfig):
    """GRPO for proposer-solver environments: solvers within a proposed problem, proposers across them."""

    paper: ClassVar[str] = "GRPO"

    type: Literal["hierarchical_grpo"] = "hierarchical_grpo"
    episode_agents: list[str] = Field(default=["solver"], min_length=1)
    """Agents that are compared within one episode; all others are compared across the group."""

    def check_agents(self, agents: Collection[str]) -> None:
        if missing := [name for name in self.episode_agents if name not in agents]:
            raise ValueError(
                f"the environment has no agent {missing[0]!r}, only {', '.join(map(repr, agents))}; "
                "hierarchical_grpo is for proposer-solver environments: set episode_agents to the solvers' name, "
                'or use type = "grpo"'
            )


class OPDConfig(BaseAlgorithmConfig):
    """On-policy distillation: the policy samples, a frozen teacher scores every token."""

    action_loss_type: ClassVar[ActionLossType] = "ref_kl"
    barrier: ClassVar[Barrier] = "episode"
    needs_model: ClassVar[bool] = True
    paper: ClassVar[str] = "Thinking Machines, 2025"

    type: Literal["opd"] = "opd"
    teacher: FrozenModelConfig
    """The frozen model toward which the reverse KL pulls; it has the policy's tokenizer."""
    max_concurrent: int = Field(32, ge=1)
    """Most scoring requests at once."""
    timeout: float = Field(300.0, gt=0)
    """Deadline of one score, retries included, in seconds; also of the checks at the start."""

    @field_validator("teacher", mode="before")
    @classmethod
    def _not_the_policy(cls, value: Any) -> Any:
        if isinstance(value, str):
            raise ValueError(
                f'{value!r} is not a frozen model: the KL of "policy" to itself is zero; set teacher.name and '
                'teacher.base_url, or use type = "opsd" to distil the policy from itself with a demonstration'
            )
        return value


class OPSDConfig(BaseAlgorithmConfig):
    """On-policy self-distillation: the live policy, shown a demonstration, is its own teacher."""

    action_loss_type: ClassVar[ActionLossType] = "ref_kl"
    barrier: ClassVar[Barrier] = "episode"
    needs_model: ClassVar[bool] = True
    paper: ClassVar[str] = "arXiv:2601.19897"

    type: Literal["opsd"] = "opsd"
    demo_key: str = "demonstration"
    """Where a task holds its demonstration: a key of its `info`, or a field of its own."""
    template: str = (
        "Here is a demonstration of a correct answer:\n\n{demonstration}\n\nAnswer in your own words."
    )
    """The system message that shows it to the teacher; `{demonstration}` is replaced."""
    renderer: RendererConfig = Field(default_factory=RendererConfig)
    """How that message becomes tokens of the policy's tokenizer; set it where the policy's is not `auto`."""
    max_concurrent: int = Field(32, ge=1)
    """Most scoring requests at once."""
    timeout: float = Field(300.0, gt=0)
    """Deadline of one score, retries included, in seconds."""

    @field_validator("template")
    @classmethod
    def _shows_the_demonstration(cls, value: str) -> str:
        if "{demonstration}" not in value:
            raise ValueError("the template has no {demonstration}, so the teacher would see none; add it")
        return value

    @field_validator("renderer", mode="before", json_schema_input_type=RendererConfig | str)
    @classmethod
    def _family(cls, value: Any) -> Any:
        return {"name": value} if isinstance(value, str) else value


class SFTDistillConfig(BaseAlgorithmConfig):
    """Hard distillation: a frozen model samples, the policy imitates its tokens."""

    action_loss_type: ClassVar[ActionLossType] = "ce"
    barrier: ClassVar[Barrier] = "episode"
    needs_model: ClassVar[bool] = True
    paper: ClassVar[str] = "arXiv:1606.07947"

    type: Literal["sft"] = "sft"

    @model_validator(mode="after")
    def _has_a_teacher(self) -> Self:
        if self.sampling.source == "policy":
            raise ValueError(
                "sft imitates a frozen model, and the policy's own tokens are no target: set "
                "sampling.source.name and sampling.source.base_url"
            )
        return self


class EchoConfig(GroupRelativeConfig):
    """ECHO: GRPO on sampled tokens, and cross-entropy on what the environment answers."""

    paper: ClassVar[str] = "ECHO"

    type: Literal["echo"] = "echo"
    roles: EchoRolesConfig = Field(
        default_factory=lambda: EchoRolesConfig(tool=EchoRoleConfig(alpha=0.1)),
    )
    """Predicted roles; setting any replaces the whole table, which is `tool` at 0.1."""
    filter: EchoFilterConfig | None = None
    """Narrows the selection."""

    @field_validator("roles")
    @classmethod
    def _predicts_something(cls, value: EchoRolesConfig) -> EchoRolesConfig:
        if not value.alphas:
            raise ValueError('no role is predicted; set roles.tool.alpha, or use type = "grpo"')
        return value


AlgorithmConfig = Annotated[
    GRPOConfig
    | MaxRLConfig
    | RAEConfig
    | HierarchicalGRPOConfig
    | OPDConfig
    | OPSDConfig
    | SFTDistillConfig
    | EchoConfig,
    Field(discriminator="type"),
]
"""Every built-in algorithm's config, told apart by `type`; `braidrl.configs.plugins` adds those of other packages."""
