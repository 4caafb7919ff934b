"""Whole runs with stock vLLM as the engine."""

import tomllib
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import pytest
import tomli_w
import torch
from transformers import AutoModelForCausalLM

from tests.engines.servers import settings
from tests.support.runs import Launch

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

STEPS = (1, 2, 3)
ON_POLICY = ("--max_steps", "3", "--orchestrator.max_off_policy_steps", "0")
FLOAT32 = 1e-9
"""Maximum mismatch KL of log-probs that differ only by float32 rounding."""
BFLOAT16 = 1e-2
"""Maximum mismatch KL of two implementations of thirty layers in bfloat16."""
CENTERING = {"loss": {"type": "icepop", "score_centering": True, "score_centering_topk": 40}}
WORDS = {
    "id": "reverse-text",
    "min_length": 3,
    "max_length": 5,
    "prompt": "Reply with this word reversed.\n\n{text}",
}


def launch(folder: Path, policy: Path, **blocks: Any) -> Launch:
    """Return a run with the config of the e2e tests in which `blocks` replace some blocks."""
    launch = Launch(folder, policy)
    config = tomllib.loads(launch.config.read_text())
    launch.config.write_text(tomli_w.dumps(config | blocks))
    return launch


def prompts(launch: Launch) -> dict[str, str]:
    """Return the text of each group's task, by group id."""
    rows = [row for step in STEPS for row in launch.episodes(step)]
    return {row["braid"]["group"]: row["task"]["data"]["text"] for row in rows}


def rewards(launch: Launch, step: int) -> list[float]:
    return [reward for row in launch.episodes(step) for reward in row["braid"]["rewards"].values()]


def answers(launch: Launch, step: int) -> list[tuple[list[int], list[float]]]:
    """Return the token ids of each trace, and the log-probs of its sampled tokens, which come last."""
    found = []
    for row in launch.episodes(step):
        nodes = row["traces"][0]["nodes"]
        found.append(([token for node in nodes for token in node["token_ids"]], nodes[-1]["logprobs"]))
    return found


def check_agree(ours: list[float], theirs: list[float]) -> None:
    """Assert that two samples may have the same distribution: their means differ by less than four standard errors."""
    error = (stdev(ours) ** 2 / len(ours) + stdev(theirs) ** 2 / len(theirs)) ** 0.5
    assert 0 < error < 0.1 and abs(fmean(ours) - fmean(theirs)) < 4 * error, (
        fmean(ours),
        fmean(theirs),
        error,
    )


def check_steps(launch: Launch, mismatch: float) -> None:
    """Assert that every step trained on samples of the previous step's weights, with log-probs that agree with the
    trainer's."""
    rows = launch.rows("trainer")
    assert [row["step"] for row in rows] == list(STEPS)
    for row in rows:
        assert row["stepped"] == 1 and row["grad_norm"] > 0 and row["staleness/max"] == 0
        assert row["mismatch_kl"] < mismatch, [row["mismatch_kl"] for row in rows]
    for step in STEPS:
        for row in launch.episodes(step):
            (calls,) = row["braid"]["versions"].values()
            assert [version for call in calls for version, _ in call] == [step - 1]


def mismatch_under(model: Path, launch: Launch, step: int) -> float:
    """Return the mean of exp(d) - 1 - d over the sampled tokens of a step, d = log-prob under `model` - served
    log-prob."""
    weights = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    terms = []
    for token_ids, served in answers(launch, step):
        with torch.no_grad():
            logprobs_TV = weights(torch.tensor([token_ids])).logits[0, :-1].log_softmax(-1)
        first = len(token_ids) - len(served)
        own = logprobs_TV[range(first - 1, len(token_ids) - 1), token_ids[first:]]
        difference = own - torch.tensor(served)
        terms.append(difference.exp() - 1 - difference)
    return float(torch.cat(terms).mean())


def test_only_the_engine_differs(tmp_path: Path, vllm_python: Path, small_model: Path) -> None:
    """Three steps with score centering on each engine have the same prompts, and rewards and log-probs that agree."""
    stock = launch(tmp_path / "vllm", small_model, inference=settings(vllm_python), trainer=CENTERING)
    embedded = launch(
        tmp_path / "torch",
        small_model,
        inference=settings(vllm_python) | {"engine": "torch"},
        trainer=CENTERING,
    )
    for run in (stock, embedded):
        run.finish(*ON_POLICY, "--orchestrator.batch_size", "96", timeout=400)
        check_steps(run, FLOAT32)
        for row in run.rows("trainer"):
            assert row["score_centering/tail_scale"] == pytest.approx(1, abs=1e-3)
    asked, there = prompts(stock), prompts(embedded)
    both = asked.keys() & there.keys()  # the number of dispatched groups depends on how many have no signal
    assert len(both) >= 3 * 96 / 4
    assert {group: asked[group] for group in both} == {group: there[group] for group in both}
    for step in STEPS:
        check_agree(rewards(stock, step), rewards(embedded, step))
    ours, theirs = ([fmean(served) for _, served in answers(run, 1)] for run in (stock, embedded))
    check_agree(ours, theirs)
    assert mismatch_under(small_model, stock, 3) > 1000 * FLOAT32, "the first weights would have done as well"


def test_a_run_of_a_real_model(tmp_path: Path, vllm_python: Path, smollm2: Path) -> None:
    """Three steps of SmolLM2 in bfloat16. Weights change enough that stale weights would be detected."""
    run = launch(
        tmp_path,
        smollm2,
        seq_len=256,
        model={"path": str(smollm2), "dtype": "bfloat16"},
        trainer={"micro_batch_tokens": 2048, "optim": {"lr": 1e-4}},
        inference=settings(vllm_python),
        orchestrator={
            "batch_size": 16,
            "train": {
                "group_size": 4,
                "sampling": {"max_tokens": 16},
                "source": [{"env": {"taskset": WORDS}}],
            },
        },
    )
    run.finish(*ON_POLICY, timeout=600)
    check_steps(run, BFLOAT16)
    assert mismatch_under(smollm2, run, 3) > 10 * BFLOAT16, "the first weights would have done as well"
