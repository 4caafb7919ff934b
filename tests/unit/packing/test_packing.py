"""Packing: entries keep the context of their samples, no entry is lost, and all ranks get the same number of rows."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from braidrl.packing import MicroBatch, Normalisers, Segment, pack
from braidrl.transport.types import TrainingSample


def make_sample(tokens: list[int], prompt: int, **streams) -> TrainingSample:
    """Return a sample whose tokens after `prompt` are sampled and train with rl."""
    mask = np.arange(len(tokens)) >= prompt
    streams = {
        "sampling_logprobs": np.where(mask, -1.0, 0),
        "advantages": np.where(mask, 1.0, 0),
    } | {name: np.asarray(values) for name, values in streams.items()}
    return TrainingSample(
        token_ids=np.array(tokens, np.int32),
        mask=mask,
        **{name: stream.astype(np.float32) for name, stream in streams.items()},
    )


def context(micro: MicroBatch, index: int) -> list[int]:
    """Return the tokens that row position `index` attends to, from the root to itself."""
    segment = next(s for s in micro.segments if s.start <= index < s.start + s.length)
    tokens = micro.token_ids[segment.start : index + 1].tolist()
    while segment.parent is not None:
        segment = micro.segments[segment.parent]
        tokens = micro.token_ids[segment.start : segment.start + segment.length].tolist() + tokens
    return tokens


def check_rows(samples: list[TrainingSample], rows: list[MicroBatch]) -> None:
    """Assert that every member of every sample is exactly one entry, predicted from exactly the tokens before it."""
    seen = []
    for row in rows:
        assert sum(segment.length for segment in row.segments) == len(row.token_ids) == len(row.position_ids)
        assert [s.start for s in row.segments] == np.cumsum([0, *(s.length for s in row.segments)])[
            :-1
        ].tolist()
        for entry, index in enumerate(row.hidden_index):
            sample = samples[row.sample_index[entry]]
            past = context(row, index)
            assert past == sample.token_ids[: len(past)].tolist()
            assert row.position_ids[index] == len(past) - 1
            assert row.targets[entry] == sample.token_ids[len(past)]
            assert row.inference_logprobs[entry] == sample.sampling_logprobs[len(past)]
            assert row.advantages[entry] == sample.advantages[len(past)]
            seen.append((row.sample_index[entry], len(past)))
    assert sorted(seen) == [(i, t) for i, s in enumerate(samples) for t in np.flatnonzero(s.mask)]


sequences = st.lists(st.integers(0, 2), min_size=2, max_size=9)


@settings(max_examples=150, deadline=None)
@given(st.lists(sequences, max_size=8), st.integers(1, 30), st.integers(1, 3))
def test_any_batch_keeps_every_entry_and_its_context(batch, max_tokens, world_size):
    samples = [make_sample(tokens, 1 + index % 2) for index, tokens in enumerate(batch)]
    ranks = [pack(samples, max_tokens=max_tokens, rank=r, world_size=world_size) for r in range(world_size)]
    assert len({len(rows) for rows in ranks}) == 1
    rows = [row for rank in ranks for row in rank]
    check_rows(samples, rows)
    for row in rows:
        assert len(row.token_ids) <= max_tokens or len(set(row.sample_index)) == 1
        assert all(not np.isnan(row.rl_weights).any() for row in rows)


def test_siblings_share_their_prompt():
    prompt = [7] * 20
    samples = [make_sample([*prompt, 1, 5], 20), make_sample([*prompt, 2, 6, 8], 20)]
    (row,) = pack(samples, max_tokens=100)
    # the last token of a sample predicts none, so it is not in the row
    assert row.segments == (Segment(0, 20, None), Segment(20, 1, 0), Segment(21, 2, 0))
    assert row.token_ids.tolist() == [*prompt, 1, 2, 6]
    assert row.position_ids.tolist() == [*range(20), 20, 20, 21]
    assert row.hidden_index.tolist() == [19, 20, 19, 21, 22]
    assert row.targets.tolist() == [1, 5, 2, 6, 8]
    assert row.sample_index.tolist() == [0, 0, 1, 1, 1]


def test_branches_of_a_trace_share_their_first_turns():
    turns = [1, 2, 3, 4, 5]
    samples = [make_sample([*turns, 6, 7], 2), make_sample([*turns, 8, 9, 9], 2)]
    (row,) = pack(samples, max_tokens=100)
    assert len(row.token_ids) == 5 + 1 + 2
    check_rows(samples, [row])
    shared = row.hidden_index[row.sample_index == 0][:3]
    assert (shared == row.hidden_index[row.sample_index == 1][:3]).all()


def test_rows_are_few_balanced_and_deterministic():
    rng = np.random.default_rng(0)
    samples = [make_sample(rng.integers(0, 1000, n).tolist(), 2) for n in rng.integers(20, 60, 40)]
    total = sum(len(sample.token_ids) - 1 for sample in samples)
    rows = [pack(samples, max_tokens=300, rank=rank, world_size=2) for rank in range(2)]
    sizes = [len(row.token_ids) for rank in rows for row in rank]
    assert len(sizes) == 2 * -(-total // 600)
    assert max(sizes) - min(sizes) < 60
    again = pack(samples, max_tokens=300, rank=1, world_size=2)
    assert [row.token_ids.tolist() for row in rows[1]] == [row.token_ids.tolist() for row in again]


def test_one_group_is_spread_over_ranks():
    samples = [make_sample([1] * 8 + [index] * 8, 8) for index in range(2, 6)]
    sizes = [
        [len(row.token_ids) for row in pack(samples, max_tokens=100, rank=r, world_size=2)] for r in (0, 1)
    ]
    assert sizes == [[22], [22]]


def test_a_long_sample_gets_a_row_of_its_own():
    samples = [make_sample(list(range(50)), 10), make_sample([60, 61, 62], 1)]
    rows = pack(samples, max_tokens=16)
    assert [len(row.token_ids) for row in rows] == [49, 2]
    check_rows(samples, rows)


@pytest.mark.parametrize("samples", [[], [make_sample([1, 2, 3], 3)]])
def test_nothing_to_train_is_one_empty_row_a_rank(samples):
    (row,) = pack(samples, max_tokens=16, rank=1, world_size=3)
    assert (len(row.token_ids), len(row.targets), row.segments) == (1, 0, (Segment(0, 1, None),))
    assert Normalisers.of(samples) == Normalisers(0, 0, 0)


def test_only_members_are_entries():
    """Tool tokens between two turns have no weight. A sampled token that equals the padding token trains."""
    sample = make_sample([5, 6, 0, 9, 9, 9, 9, 9, 7, 0], 2)
    sample.mask[3:8] = False
    sample.rl_weights = np.ones(10, np.float32)
    (row,) = pack([sample], max_tokens=100)
    assert row.targets.tolist() == [0, 7, 0]
    assert Normalisers.of([sample]) == Normalisers(3, 0, 0)


def test_observations_train_when_weighed():
    sample = make_sample(
        [5, 6, 9, 8], 3, ce_weights=[0, 0.5, 0, 0.25], ref_kl_weights=[0, 0, 2, 0], ref_logprobs=[0, 0, -1, 0]
    )
    (row,) = pack([sample], max_tokens=100)
    assert row.ce_weights.tolist() == [0.5, 0, 0.25]
    assert row.rl_weights.tolist() == [0, 0, 1]
    assert Normalisers.of([sample]) == Normalisers(rl=1, ce=2, ref_kl=1)


def test_a_one_token_completion_keeps_its_scores():
    sample = make_sample(
        [5, 6, 7], 2, sampling_logprobs=[0, 0, -0.25], ref_kl_weights=[0, 0, 1], ref_logprobs=[0, 0, -0.75]
    )
    (row,) = pack([sample], max_tokens=8)
    assert (row.inference_logprobs.tolist(), row.ref_logprobs.tolist()) == ([-0.25], [-0.75])


@pytest.mark.parametrize(
    ("streams", "message"),
    [
        ({"sampling_logprobs": [0, 0, -1, -1, -1]}, r"sampling_logprobs has shape \(5,\), token_ids \(4,\)"),
        ({"ref_logprobs": [0, 0, -1]}, r"ref_logprobs has shape \(3,\)"),
        (
            {"advantages": [0, 0, np.nan, 1]},
            "token 2 is a member of rl, but has no finite value in advantages",
        ),
        ({"ref_kl_weights": [0, 0, 0, 1]}, "token 3 is a member of ref_kl, .* in ref_logprobs"),
        ({"rl_weights": [0, 0, -1, 1]}, r"rl_weights\[2\] is -1.0"),
        ({"ce_weights": [0, 0, np.inf, 1]}, r"ce_weights\[2\] is inf"),
        ({"ce_weights": [1, 0, 0, 0]}, "its first token is a loss member"),
        ({"temperature": 0}, "temperature is 0"),
    ],
)
def test_a_bad_stream_is_an_error_that_names_the_sample(streams, message):
    temperature = streams.pop("temperature", 1.0)
    bad = make_sample([1, 2, 3, 4], 2, **streams)
    bad.env, bad.trace_id, bad.temperature = "math", "t7", temperature
    with pytest.raises(ValueError, match=r"sample 1 \(env 'math', trace 't7', branch 0\): .*" + message):
        pack([make_sample([1, 2, 3], 1), bad], max_tokens=100)
    with pytest.raises(ValueError, match="sample 1"):
        Normalisers.of([make_sample([1, 2, 3], 1), bad])


def test_missing_advantages_are_an_error():
    bad = make_sample([1, 2, 3], 1)
    bad.advantages = None
    with pytest.raises(ValueError, match="token 1 is a member of rl"):
        pack([bad], max_tokens=100)
    bad.rl_weights = np.zeros(3, np.float32)
    assert len(pack([bad], max_tokens=100)[0].targets) == 0


def test_bad_arguments_are_an_error():
    with pytest.raises(ValueError, match="rank=2"):
        pack([], max_tokens=8, rank=2, world_size=2)
