"""From message graphs to training samples."""

import msgspec
import numpy as np
import pytest
from verifiers.v1.semantic import ParentLink

from braidrl.orchestrator.train.algo.routing import assign_advantages, stamp_action_weights
from braidrl.orchestrator.train.samples import drop_zero_signal, flatten_trace, token_versions
from braidrl.transport.types import TrainingSample
from tests.support.episodes import node, trace

CHAIN = [("user", 2), ("assistant", 2), ("tool", 5), ("assistant", 1)]


def sample(mask, **streams) -> TrainingSample:
    mask = np.array(mask, dtype=bool)
    arrays = {key: None if value is None else np.array(value, np.float32) for key, value in streams.items()}
    zeros = np.zeros(len(mask), np.float32)
    return TrainingSample(
        token_ids=np.arange(len(mask), dtype=np.int32), mask=mask, sampling_logprobs=zeros, **arrays
    )


def test_a_plain_grpo_sample_carries_four_streams() -> None:
    item = trace(0.25, CHAIN, agent="solver")
    assign_advantages(item, 0.5)
    flat = flatten_trace(
        item, seq_len=10, temperature=0.7, env="math", group_id="g", episode_id="e", versions=[3, 3, 4]
    )
    (found,) = flat.samples
    assert not flat.refused
    assert found.token_ids.tolist() == [10, 11, 10, 11, 10, 11, 12, 13, 14, 10]
    assert found.mask.tolist() == [False, False, True, True, False, False, False, False, False, True]
    assert found.sampling_logprobs.tolist() == [0, 0, -0.5, -0.5, 0, 0, 0, 0, 0, -0.5]
    assert found.advantages.tolist() == [0, 0, 0.5, 0.5, 0, 0, 0, 0, 0, 0.5]
    assert (found.env, found.agent, found.group_id, found.episode_id) == ("math", "solver", "g", "e")
    assert (found.trace_id, found.branch, found.reward, found.temperature) == (item.id, 0, 0.25, 0.7)
    assert (found.version_start, found.version_end) == (3, 4)
    assert [found.token_ids.dtype, found.mask.dtype, found.advantages.dtype] == [np.int32, bool, np.float32]
    sent = {key for key, value in msgspec.structs.asdict(found).items() if isinstance(value, np.ndarray)}
    assert sent == {"token_ids", "mask", "sampling_logprobs", "advantages"}


def test_reference_stream_lands_on_sampled_tokens(worked_cases) -> None:
    for case in worked_cases["reference_stream"]:
        mask = [bool(value) for value in case["inputs"]["mask"]]
        scored = case["inputs"]["scored"][case["inputs"]["prefix_len"] :]
        item = trace(roles=[("assistant", len(mask))])
        item.nodes[0].mask = mask
        item.nodes[0].logprobs = [-1.0] * sum(mask)
        item.nodes[0].reference_logprobs = [value for value, sampled in zip(scored, mask) if sampled]
        stamp_action_weights(item, "ref_kl")
        (found,) = flatten_trace(item, seq_len=100).samples
        assert found.ref_logprobs == pytest.approx(case["expected"]["ref_logprobs"])
        assert found.ref_kl_weights.tolist() == [float(sampled) for sampled in mask]
        assert found.rl_weights.tolist() == [0.0] * len(mask)
        assert found.advantages is None


def test_tool_output_is_context_only() -> None:
    item = trace(roles=CHAIN)
    item.nodes[1].reference_logprobs, item.nodes[3].reference_logprobs = [-1.0, -2.0], [-3.0]
    stamp_action_weights(item, "ref_kl")
    (found,) = flatten_trace(item, seq_len=10).samples
    tool = slice(4, 9)
    for stream in (found.mask, found.rl_weights, found.ref_kl_weights, found.ref_logprobs):
        assert not stream[tool].any()
    assert found.ce_weights is None


def test_branches_become_samples_and_a_shared_node_trains_once() -> None:
    item = trace(roles=[("user", 2), ("assistant", 2)])
    item.nodes += [node("user", 1, 1), node("assistant", 3, 2), node("user", 2, 1), node("assistant", 1, 4)]
    assign_advantages(item, [1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
    first, second = flatten_trace(item, seq_len=100, versions=[1, 1, 2, 2, 3, 5]).samples
    assert first.advantages.tolist() == [0, 0, 1, 2, 0, 3, 4, 5]
    assert second.advantages.tolist() == [0, 0, 0, 0, 0, 0, 6]
    assert second.mask.tolist() == [False] * 6 + [True]
    assert [(s.branch, s.version_start, s.version_end) for s in (first, second)] == [(0, 1, 3), (1, 1, 5)]


def test_two_turns_that_share_no_prefix_are_two_samples() -> None:
    item = trace(roles=[("user", 2), ("assistant", 2)])
    item.nodes += [node("user", 2, None), node("assistant", 3, 2)]
    assign_advantages(item, 1.0)
    samples = flatten_trace(item, seq_len=100).samples
    assert [s.advantages.sum() for s in samples] == [2.0, 3.0]


def test_a_shared_node_moves_on_when_its_first_branch_is_too_long() -> None:
    item = trace(roles=[("user", 2), ("assistant", 2)])
    item.nodes += [node("user", 9, 1), node("assistant", 3, 2), node("user", 1, 1), node("assistant", 1, 4)]
    assign_advantages(item, 1.0)
    flat = flatten_trace(item, seq_len=8)
    assert flat.refused == {"too_long": 1}
    assert [s.advantages.sum() for s in flat.samples] == [3.0]


def test_a_refused_compaction_is_left_out_and_what_led_to_it_trains() -> None:
    item = trace(roles=[("user", 2), ("assistant", 2)])
    item.nodes += [node("user", 1, 0), node("assistant", 3, 2)]
    item.nodes[3].semantic_parents = [ParentLink(node=1, type="compaction_attempt")]
    assign_advantages(item, 1.0)
    assert [(s.branch, s.mask.sum()) for s in flatten_trace(item, seq_len=100).samples] == [(0, 2)]
    item.nodes += [node("user", 1, 1), node("assistant", 4, 4), node("user", 1, 5), node("assistant", 1, 6)]
    for attempt in (5, 7):  # requested twice, never accepted
        item.nodes[attempt].semantic_parents = [ParentLink(node=1, type="compaction_attempt")]
    assign_advantages(item, 1.0)
    (found,) = flatten_trace(item, seq_len=100).samples
    assert found.mask.tolist() == [False, False, True, True]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"logprobs": [-0.5, -0.5]}, "misaligned_logprobs"),
        ({"logprobs": [-0.5] * 4}, "misaligned_logprobs"),
        ({"logprobs": []}, "misaligned_logprobs"),
        ({"logprobs": [-0.5, float("nan"), -0.5]}, "nonfinite_logprobs"),
        ({"mask": [True] * 4}, "misaligned_mask"),
        ({"advantages": [1.0]}, "misaligned_advantages"),
        ({"advantages": [1.0, 1.0, float("inf")]}, "nonfinite_advantages"),
        ({"reference_logprobs": [1.0] * 4}, "misaligned_reference_logprobs"),
        ({"loss_weights": {"ce": [1.0]}}, "misaligned_loss_weights"),
        ({"loss_weights": {"ref_kl": [1.0] * 3}}, "missing_reference_logprobs"),
    ],
)
def test_a_stream_that_does_not_fit_refuses_the_trace(change, reason) -> None:
    item = trace(roles=[("user", 2), ("assistant", 3)])
    for key, value in change.items():
        setattr(item.nodes[1], key, value)
    flat = flatten_trace(item, seq_len=100)
    assert flat.samples == []
    assert flat.refused == {reason: 1}


def test_a_frozen_source_needs_no_logprobs() -> None:
    item = trace(roles=[("user", 2), ("assistant", 3)])
    item.nodes[1].logprobs = []
    stamp_action_weights(item, "ce")
    (found,) = flatten_trace(item, seq_len=100).samples
    assert found.ce_weights.tolist() == [0, 0, 1, 1, 1]
    assert not found.sampling_logprobs.any()
    assert (found.version_start, found.version_end) == (0, 0)


def test_versions_that_do_not_fit_span_the_whole_trace() -> None:
    item = trace(roles=CHAIN)
    (found,) = flatten_trace(item, seq_len=100, versions=[2, 7]).samples
    assert (found.version_start, found.version_end) == (2, 7)


def test_versions_find_their_messages_when_agents_work_at_once() -> None:
    """The conversation with the first call got the last response, and a response in between was discarded."""
    item = trace(roles=[("user", 2), ("assistant", 2)])
    item.nodes += [
        node("user", 2, None),
        node("assistant", 3, 2),
        node("user", 1, 1),
        node("assistant", 2, 4),
    ]
    versions = token_versions(item, [[(1, 2), (2, 1)], [(1, 1), (2, 1)], [(7, 9)], [(3, 2)]])
    assert versions == [1, 2, 1, 1, 2, 3, 3]
    assign_advantages(item, 1.0)
    spans = [
        (s.version_start, s.version_end) for s in flatten_trace(item, seq_len=9, versions=versions).samples
    ]
    assert spans == [(1, 2), (1, 3)]
    assert token_versions(item, [[(1, 2)], [(4, 5)]]) == [1, 1, 4, 4, 4, 4, 4]


def test_a_trace_without_sampled_tokens_gives_no_sample() -> None:
    assert flatten_trace(trace(roles=[("user", 2)]), seq_len=100).samples == []


def test_zero_advantage_filter_vectors(worked_cases) -> None:
    for case in worked_cases["zero_advantage_filter"]:
        kept = drop_zero_signal(sample(**case["inputs"]))
        assert (kept is not None) == case["expected"]["keep"]
        if kept is not None:
            weights = kept.mask.astype(float) if kept.rl_weights is None else kept.rl_weights
            assert weights.tolist() == case["expected"]["rl_weights"]


def test_zero_advantages_leave_nothing() -> None:
    assert drop_zero_signal(sample([0, 1, 1], advantages=[0, 0, 0])) is None
    assert drop_zero_signal(sample([0, 1, 1])) is None


def test_no_rl_stream_if_it_equals_the_mask() -> None:
    kept = drop_zero_signal(sample([0, 1, 1], advantages=[0, 1, -1]))
    assert kept.rl_weights is None


def test_stamped_weights_survive_the_filter() -> None:
    kept = drop_zero_signal(sample([0, 1, 1], advantages=[0, 1, 0], rl_weights=[0, 0.25, 0.25]))
    assert kept.rl_weights.tolist() == [0, 0.25, 0]


@pytest.mark.parametrize("component", ["ce_weights", "ref_kl_weights"])
def test_other_components_keep_a_sample_without_rl_signal(component) -> None:
    kept = drop_zero_signal(sample([0, 0, 1], advantages=[0, 0, 0], **{component: [0, 0.1, 0]}))
    assert kept.rl_weights.tolist() == [0, 0, 0]
    assert getattr(kept, component).tolist() == pytest.approx([0, 0.1, 0])
