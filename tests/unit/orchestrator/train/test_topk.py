"""Heads: recovery from candidates, assignment to traces, and samples without heads."""

import copy
from typing import Any

import msgspec
import numpy as np
import pytest

from braidrl.configs.inference import HEAD_MARGIN
from braidrl.orchestrator.gateway.candidates import take_heads
from braidrl.orchestrator.train.algo.routing import assign_advantages, stamp_action_weights
from braidrl.orchestrator.train.samples import drop_zero_signal, flatten_trace
from braidrl.orchestrator.train.topk import (
    MissingHeadError,
    TopK,
    call_key,
    node_keys,
    num_candidates,
    recover_head,
)
from braidrl.transport.types import TrainingBatch, decode_batch, encode
from tests.support.episodes import node, trace

SIZE = 3
ENTRIES = (
    ({"token": "token_id:7"}, [(5, -1.0), (7, -1.1), (2, -2.0), (9, -3.0), (4, -4.0)]),
    ({"token": "token_id:1"}, [(1, -9.0), (8, -0.5), (3, -1.5), (6, -2.5), (0, -2.5)]),
)
"""Two sampled tokens with `SIZE + 2` candidates each. The second is improbable, and the server lists it first."""


def rows_of(head: TopK) -> list[list[int]]:
    return [[token for token in row if token >= 0] for row in head.token_ids.tolist()]


# -- recovery


def test_recovery_follows_the_worked_cases(worked_cases) -> None:
    for case in worked_cases["score_centering_candidates"]:
        ids, logprobs = zip(*case["inputs"]["candidates"])
        head = recover_head(np.array([ids]), np.array([logprobs]), case["inputs"]["k"])
        assert sorted(rows_of(head)[0]) == case["expected"]["head_ids"]
        kept = dict(case["inputs"]["candidates"])
        assert head.logprobs[0].tolist() == [kept.get(token, -np.inf) for token in head.token_ids[0].tolist()]


def test_the_order_of_candidates_and_their_repetition_change_nothing() -> None:
    draw = np.random.default_rng(0)
    for _ in range(200):
        size, width = int(draw.integers(1, 6)), int(draw.integers(1, 12))
        ids = draw.permutation(30)[:width]
        logprobs = draw.choice(np.arange(-8.0, 0.0), width)  # many ties
        ranked = np.sort(logprobs)[::-1]
        boundary = ranked[size] if width > size else -np.inf
        again = draw.integers(0, width, 3)
        shuffled = draw.permutation(np.concatenate([np.arange(width), again]))
        head = recover_head(ids[shuffled][None], logprobs[shuffled][None], size)
        expected = {int(token) for token, value in zip(ids, logprobs) if value > boundary}
        assert set(rows_of(head)[0]) == expected
        assert len(rows_of(head)[0]) == len(expected) <= size
        values = head.logprobs[0, : len(expected)]
        assert (np.diff(values) <= 0).all()
        assert np.isneginf(head.logprobs[0, len(expected) :]).all()
    assert (head.token_ids.dtype, head.logprobs.dtype) == (np.int32, np.float32)


def test_a_small_vocabulary_is_its_own_head() -> None:
    head = recover_head(np.array([[2, 0, 1, -1]]), np.array([[-0.7, -1.4, -1.4, -np.inf]]), 4)
    assert rows_of(head) == [[2, 0, 1]]
    assert recover_head(np.zeros((0, 0), int), np.zeros((0, 0)), 4).token_ids.shape == (0, 4)


# -- answers of engines


def spelled(numeric: bool = False, **changes: Any) -> bytes:
    """Return a response in the format of vLLM."""
    content = []
    for name, candidates in ENTRIES:
        named = [
            {"token_id": token, "logprob": value}
            if numeric
            else {"token": f"token_id:{token}", "logprob": value}
            for token, value in candidates
        ]
        own = int(name["token"].removeprefix("token_id:"))
        content.append({**name, "logprob": dict(candidates)[own], "top_logprobs": named})
    choice = {"index": 0, "token_ids": [7, 1], "finish_reason": "stop", "logprobs": {"content": content}}
    return msgspec.json.encode({"request_id": "r", "choices": [choice | changes]})


def packed() -> bytes:
    """Return the same response in the packed format of the embedded engine."""
    answer = msgspec.json.decode(spelled())
    logprobs = answer["choices"][0]["logprobs"]
    for entry in logprobs["content"]:
        entry["top_logprobs"] = []
    ids, values = np.array([candidates for _, candidates in ENTRIES]).transpose(2, 0, 1)
    logprobs["packed"] = {
        "width": SIZE + HEAD_MARGIN,
        "token_ids": ids.astype("<i4").tobytes(),
        "logprobs": values.astype("<f4").tobytes(),
    }
    return msgspec.json.encode(answer)


@pytest.mark.parametrize("body", [spelled(), spelled(numeric=True), packed()], ids=["text", "ids", "packed"])
def test_candidates_are_taken_out_of_an_answer(body: bytes) -> None:
    stripped, heads = take_heads(body, [40, 41], SIZE, 1)
    assert list(heads) == [call_key([40, 41, 7, 1], [-1.1, -9.0])]
    (head,) = heads.values()
    assert rows_of(head) == [[5, 7, 2], [8, 3]]  # 6 is tied with 0 at the boundary
    (choice,) = msgspec.json.decode(stripped)["choices"]
    assert (choice["token_ids"], choice["finish_reason"]) == ([7, 1], "stop")
    assert set(choice["logprobs"]) == {"content"}
    tops = [
        {candidate["token"]: candidate["logprob"] for candidate in entry["top_logprobs"]}
        for entry in choice["logprobs"]["content"]
    ]
    assert tops == [{"token_id:5": -1.0, "token_id:7": -1.1}, {"token_id:1": -9.0}]
    assert [entry["logprob"] for entry in choice["logprobs"]["content"]] == [-1.1, -9.0]


def test_log_probs_are_returned_only_on_request() -> None:
    (choice,) = msgspec.json.decode(take_heads(spelled(), [], SIZE, None)[0])["choices"]
    assert choice["logprobs"] is None
    (choice,) = msgspec.json.decode(take_heads(packed(), [], SIZE, 0)[0])["choices"]
    assert [entry["top_logprobs"] for entry in choice["logprobs"]["content"]] == [[], []]


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda entry: entry["top_logprobs"].pop(), None),
        (
            lambda entry: entry["top_logprobs"].clear(),
            "0 candidates for generated token 1, but 5 were requested",
        ),
        (lambda entry: entry.pop("top_logprobs"), "serve the model with max_logprobs >= 5"),
        (lambda entry: entry["top_logprobs"][1].update(logprob=3.0), "total probability of 20.47"),
        (lambda entry: entry["top_logprobs"][1].update(token="text"), "invalid literal for int"),
        (lambda entry: entry.pop("logprob"), "Expected `float`, got `null`"),
    ],
)
def test_an_answer_without_its_candidates_is_refused(change: Any, named: str | None) -> None:
    answer = msgspec.json.decode(spelled())
    change(answer["choices"][0]["logprobs"]["content"][1])
    if named is None:  # one candidate may be missing if nothing is tied
        take_heads(msgspec.json.encode(answer), [], SIZE, 1)
        return
    with pytest.raises(ValueError, match=named):
        take_heads(msgspec.json.encode(answer), [], SIZE, 1)


def test_candidates_of_another_number_of_tokens_are_refused() -> None:
    with pytest.raises(ValueError, match="2 log-probs for 1 generated tokens"):
        take_heads(spelled(token_ids=[7]), [], SIZE, 1)
    with pytest.raises(ValueError, match="logprobs"):
        take_heads(spelled(logprobs=None), [], SIZE, 1)
    assert num_candidates(SIZE) == 5


# -- the join with a trace


def heads_of(item: Any) -> dict[bytes, TopK]:
    """Return a head for each sampled message. Its first id is 100 * node index + token index."""
    heads = {}
    for branch in item.branches:
        for graph_node, key in zip(branch.nodes, node_keys(branch.nodes)):
            count, number = sum(graph_node.mask), item.nodes.index(graph_node)
            ids = np.full((count, SIZE), -1, np.int32)
            ids[:, 0] = 100 * number + np.arange(count)
            if count:
                heads[key] = TopK(ids, np.where(ids < 0, -np.inf, -0.25).astype(np.float32))
    return heads


def forked() -> Any:
    """Return a trace of two branches that share a user message and an answer."""
    item = trace(roles=[("user", 2), ("assistant", 2)])
    item.nodes += [node("user", 1, 1), node("assistant", 3, 2), node("user", 2, 1), node("assistant", 1, 4)]
    assign_advantages(item, 0.5)
    return item


def test_the_key_of_a_call_covers_tokens_and_log_probs() -> None:
    item = forked()
    first, second = item.branches
    sampled = item.nodes[5].logprobs
    assert list(node_keys(second.nodes))[-1] == call_key(second.token_ids, sampled)
    assert len({*node_keys(first.nodes), *node_keys(second.nodes)}) == 6
    changed = copy.deepcopy(second.nodes)
    changed[0].token_ids[0] += 1
    assert not set(node_keys(changed)) & set(node_keys(second.nodes))


def test_heads_follow_the_sampled_tokens_of_each_branch() -> None:
    item = forked()
    first, second = flatten_trace(item, seq_len=100, heads=heads_of(item)).samples
    assert first.head_ids is not None and second.head_ids is not None
    assert first.head_ids[:, 0].tolist() == [100, 101, 300, 301, 302]
    assert second.head_ids[:, 0].tolist() == [500]  # the shared answer trains only in the first branch
    assert first.head_ids.shape == (first.mask.sum(), SIZE)
    received = decode_batch(encode(TrainingBatch(step=1, samples=[first, second]))).samples
    for sent, got in zip((first, second), received, strict=True):
        np.testing.assert_array_equal(got.head_ids, sent.head_ids)
        np.testing.assert_array_equal(got.head_logprobs, sent.head_logprobs)
    assert flatten_trace(item, seq_len=100).samples[0].head_ids is None


def test_a_missing_head_is_an_error() -> None:
    item = forked()
    heads = heads_of(item)
    del heads[list(node_keys(item.branches[1].nodes))[-1]]
    with pytest.raises(MissingHeadError, match=rf"trace {item.id}, branch 1, token 6: .* 2 model calls"):
        flatten_trace(item, seq_len=100, heads=heads)
    with pytest.raises(MissingHeadError, match=r"branch 0, token 2: .* 0 model calls"):
        flatten_trace(item, seq_len=100, heads={})


def test_an_empty_head_is_not_a_missing_head() -> None:
    item = trace()
    assign_advantages(item, 1.0)
    (sample,) = flatten_trace(item, seq_len=9, heads={key: _nothing(3) for key in heads_of(item)}).samples
    assert sample.head_ids is not None and (sample.head_ids == -1).all()


def _nothing(count: int) -> TopK:
    empty = np.full((count, SIZE), -np.inf, np.float32)
    return TopK(np.full((count, SIZE), -1, np.int32), empty)


@pytest.mark.parametrize("component", ["ce", "ref_kl"])
def test_tokens_outside_rl_need_no_head(component: Any) -> None:
    item = trace()
    stamp_action_weights(item, component)
    item.nodes[1].reference_logprobs = [-1.0] * 3
    (sample,) = flatten_trace(item, seq_len=9, heads={}).samples
    assert sample.head_ids is None and sample.head_logprobs is None


def test_a_token_outside_rl_between_members_is_padded() -> None:
    item = trace(roles=[("user", 1), ("assistant", 2), ("user", 1), ("assistant", 1)])
    assign_advantages(item, 1.0)
    item.nodes[1].loss_weights = {"rl": [0.0, 0.0]}
    item.nodes[3].loss_weights = {"rl": [1.0]}
    heads = heads_of(item)
    del heads[list(node_keys(item.branches[0].nodes))[1]]
    (sample,) = flatten_trace(item, seq_len=9, heads=heads).samples
    assert sample.head_ids is not None
    assert sample.head_ids[:, 0].tolist() == [-1, -1, 300]


def test_heads_are_not_sent_once_nothing_is_left_in_rl() -> None:
    item = trace()
    assign_advantages(item, 0.0)
    item.nodes[0].loss_weights = {"ce": [0.1, 0.1]}
    (sample,) = flatten_trace(item, seq_len=9, heads=heads_of(item)).samples
    kept = drop_zero_signal(sample)
    assert kept is not None and sample.head_ids is not None
    assert kept.head_ids is None and kept.head_logprobs is None
