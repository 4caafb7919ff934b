"""Token sampling: closed forms, frequencies, and independence of the batch."""

import math

import numpy as np
import pytest
import torch

from braidrl.inference.engines.sampling import (
    SamplingParams,
    derived_seed,
    draw,
    processed_logits,
    score,
    uniforms,
)

PROBABILITIES = [0.4, 0.25, 0.15, 0.1, 0.06, 0.04]


def logits_of(probabilities: list[float]) -> torch.Tensor:
    return torch.tensor([probabilities]).log()


def truncated(probabilities: list[float], top_k: int, top_p: float, min_p: float) -> np.ndarray:
    """Reference implementation of the truncation rules for one row without ties."""
    p = np.array(probabilities)
    p = np.where(p >= min_p * p.max(), p, 0)
    p /= p.sum()
    order = np.argsort(-p)
    if top_k > 0:
        p[order[top_k:]] = 0
        p /= p.sum()
    mass = 0.0
    for token in order:
        if mass >= top_p:
            p[token] = 0
        mass += p[token]
    return p / p.sum()


def test_temperature_is_part_of_the_log_prob():
    params = SamplingParams(temperature=0.5, logprobs=2)
    (candidates,) = draw(torch.tensor([[0.0, 1.0]]), [params], np.array([0.5])).candidates
    assert candidates.token_ids.tolist() == [1, 0]
    assert candidates.logprobs.tolist() == pytest.approx([-0.126928, -2.126928], abs=1e-6)


def test_truncation_renormalises():
    draws = draw(logits_of([0.5, 0.3, 0.2]), [SamplingParams(top_k=2, logprobs=3)], np.array([0.9]))
    assert draws.token_ids == [1]
    assert draws.logprobs[0] == pytest.approx(math.log(0.375), abs=1e-6)
    assert draws.candidates[0].token_ids.tolist() == [0, 1], "a cut-off token is no candidate"


@pytest.mark.parametrize("top_k", [-1, 0, 1, 3, 100])
@pytest.mark.parametrize("top_p", [1.0, 0.9, 0.5, 0.01])
@pytest.mark.parametrize("min_p", [0.0, 0.2, 0.5, 1.0])
def test_truncations_combine_as_specified(top_k: int, top_p: float, min_p: float):
    params = SamplingParams(top_k=top_k, top_p=top_p, min_p=min_p)
    found = processed_logits(logits_of(PROBABILITIES), [params]).softmax(-1)[0]
    np.testing.assert_allclose(found.numpy(), truncated(PROBABILITIES, top_k, top_p, min_p), atol=1e-6)


def test_top_k_keeps_ties():
    found = processed_logits(logits_of([0.4, 0.2, 0.2, 0.2]), [SamplingParams(top_k=2)]).softmax(-1)[0]
    np.testing.assert_allclose(found.numpy(), [0.4, 0.2, 0.2, 0.2], atol=1e-6)


@pytest.mark.parametrize("params", [SamplingParams(), SamplingParams(temperature=0.7, top_p=0.8, min_p=0.05)])
def test_frequencies_follow_the_reported_distribution(params: SamplingParams):
    rows = 20_000
    logits = logits_of(PROBABILITIES).expand(rows, -1)
    draws = draw(logits, [params] * rows, uniforms(range(rows), [7] * rows))
    expected = processed_logits(logits[:1], [params]).softmax(-1)[0].double().numpy()
    counts = np.bincount(draws.token_ids, minlength=len(PROBABILITIES))
    assert np.all(counts[expected == 0] == 0)
    deviation = np.abs(counts / rows - expected) / np.sqrt(
        np.maximum(expected * (1 - expected), 1e-12) / rows
    )
    assert deviation[expected > 0].max() < 4.5
    np.testing.assert_allclose(np.exp(draws.logprobs), expected[draws.token_ids], rtol=1e-5)


@pytest.mark.parametrize("vocabulary", [2, 127, 128, 129, 1000])
def test_draws_invert_the_cumulative_distribution(vocabulary: int):
    logits = torch.randn(50, vocabulary, generator=torch.Generator().manual_seed(vocabulary))
    points = uniforms(range(50), [0] * 50)
    cumulative = logits.double().softmax(-1).cumsum(-1).numpy()
    expected = [int(np.searchsorted(row, u, side="right")) for row, u in zip(cumulative, points)]
    assert draw(logits, [SamplingParams()] * 50, points).token_ids == expected


def test_extreme_draws_never_hit_a_cut_off_token():
    logits = torch.full((2, 300), -torch.inf)
    logits[:, [5, 130]] = 0.0
    draws = draw(logits, [SamplingParams()] * 2, np.array([0.0, 1 - 2**-53]))
    assert draws.token_ids == [5, 130]


def test_greedy_reports_the_models_own_log_prob():
    draws = draw(
        logits_of([0.2, 0.5, 0.3]), [SamplingParams(temperature=0, top_k=1, logprobs=3)], np.array([0.99])
    )
    assert draws.token_ids == [1]
    assert draws.logprobs[0] == pytest.approx(math.log(0.5), abs=1e-6)
    assert draws.candidates[0].token_ids.tolist() == [1, 2, 0]


def test_a_row_does_not_depend_on_its_batch():
    logits = torch.randn(6, 500, generator=torch.Generator().manual_seed(0)) * 3
    settings = [
        SamplingParams(logprobs=4),
        SamplingParams(temperature=0),
        SamplingParams(top_p=0.7),
        SamplingParams(top_k=5, logprobs=1),
        SamplingParams(min_p=0.1, temperature=2.0),
        SamplingParams(temperature=0.3, top_p=0.9, top_k=20),
    ]
    seeds, positions = [3, 1, 4, 1, 5, 9], [2, 6, 5, 3, 5, 8]
    together = draw(logits, settings, uniforms(seeds, positions))
    for row, params in enumerate(settings):
        alone = draw(
            logits[row : row + 1], [params], uniforms(seeds[row : row + 1], positions[row : row + 1])
        )
        assert alone.token_ids[0] == together.token_ids[row]
        assert alone.logprobs[0] == pytest.approx(together.logprobs[row], abs=1e-6)
        assert len(together.candidates[row].token_ids) == params.logprobs


def test_the_input_is_left_alone():
    logits = torch.randn(2, 9, generator=torch.Generator().manual_seed(0))
    before = logits.clone()
    draw(logits, [SamplingParams(temperature=0.5, top_k=2)] * 2, np.array([0.1, 0.9]))
    assert torch.equal(logits, before)


def test_uniforms_are_uniform_and_differ_by_seed_and_position():
    by_seed = uniforms(range(10_000), [0] * 10_000)
    by_position = uniforms([42] * 10_000, range(10_000))
    for values in (by_seed, by_position):
        assert values.min() >= 0 and values.max() < 1
        assert len(np.unique(values)) == len(values)
        counts = np.histogram(values, bins=20, range=(0, 1))[0]
        assert np.abs(counts - 500).max() < 4.5 * math.sqrt(500)
    assert abs(np.corrcoef(by_seed, by_position)[0, 1]) < 0.04
    assert uniforms([-1], [3]) == uniforms([2**64 - 1], [3])


def test_requests_without_a_seed_get_distinct_ones():
    seeds = [derived_seed(0, counter) for counter in range(1000)] + [
        derived_seed(1, counter) for counter in range(1000)
    ]
    assert len(set(seeds)) == 2000
    assert seeds[0] == derived_seed(0, 0)


@pytest.mark.parametrize("fault", [math.nan, math.inf])
def test_logits_that_are_not_finite_are_refused(fault: float):
    with pytest.raises(FloatingPointError, match="not finite"):
        draw(torch.tensor([[0.0, fault]]), [SamplingParams()], np.array([0.5]))


def test_scores_name_the_target_and_the_best():
    ((target, first, second),) = score(logits_of([0.2, 0.5, 0.3]), [0], 2)
    assert target == (0, pytest.approx(math.log(0.2), abs=1e-6), 3)
    assert first == (1, pytest.approx(math.log(0.5), abs=1e-6), 1)
    assert second == (2, pytest.approx(math.log(0.3), abs=1e-6), 2)
