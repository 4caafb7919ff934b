"""Three sources with three algorithms in one run, examples/mixed: all components train in the same micro batch, and the
report page distinguishes them."""

import json
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect

from braidrl.cli import main
from braidrl.report.page.index import ID
from braidrl.utils.run_folder import RunFolder
from tests.support.browser import Look, looking
from tests.support.recorded_runs import play_mixed

pytestmark = pytest.mark.slow

COMPONENTS = ("rl", "ce", "ref_kl")
MEMBERS = {"rl": {"short", "guessing"}, "ce": {"guessing"}, "ref_kl": {"long"}}
"""Sources with tokens in each component."""
MICRO_BATCH_TOKENS = 16384
ON_HOVER = {"trainer_logprobs": "logprobs", **{name: name for name in ("entropy", "pull", *COMPONENTS)}}
"""Stream of `episodes/tokens` for each number shown on the page."""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, tiny_model_dir: Path) -> RunFolder:
    """Several steps of the example from an untrained model, with its page `report.html`."""
    run = play_mixed(tmp_path_factory.mktemp("mixed"), tiny_model_dir)
    assert main(["report", str(run.root)]) == 0
    return run


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def counts(run: RunFolder) -> dict[int, dict[str, int]]:
    """Return the number of tokens per step and component, as counted by the trainer."""
    return {
        row["step"]: {name: int(row.get(f"tokens/{name}", 0)) for name in COMPONENTS}
        for row in lines(run.metrics("trainer"))
    }


def whole_step(run: RunFolder) -> int:
    """Return a step with tokens of all three components."""
    return next(step for step, tokens in counts(run).items() if all(tokens.values()))


def test_three_algorithms_share_a_micro_batch(run: RunFolder) -> None:
    rows = [
        row for row in lines(run.metrics("trainer")) if all(row.get(f"tokens/{name}") for name in COMPONENTS)
    ]
    assert rows, "no step with all components"
    for row in rows:
        # All tokens of the forward fit into one row, so the step was one micro batch.
        assert row["tokens/packed"] < MICRO_BATCH_TOKENS
        for component, sources in MEMBERS.items():
            prefix = f"tokens/{component}/env/"
            listed = {key.removeprefix(prefix) for key in row if key.startswith(prefix)}
            assert listed and listed <= sources
            assert 0 < row[f"tokens/{component}"] == sum(row[prefix + source] for source in listed)
            shares = [row[f"loss/{component}/env/{source}"] for source in listed]
            assert row[f"loss/{component}"] == pytest.approx(sum(shares), rel=1e-5, abs=1e-8)
        assert row["loss"] == pytest.approx(sum(row[f"loss/{name}"] for name in MEMBERS), rel=1e-5, abs=1e-8)


def check_numbers(tip: dict[str, float], sample: dict[str, Any], position: int) -> None:
    """Assert that the tooltip shows exactly the numbers that the trainer recorded for this token."""
    entry = sample["positions"].index(position)
    for shown, stream in ON_HOVER.items():
        if stream in sample and (shown in tip or sample[stream][entry]):
            assert tip[shown] == sample[stream][entry], shown
    if "advantages" in sample and tip.get("advantages"):
        assert tip["advantages"] == pytest.approx(sample["advantages"][entry], rel=1e-6)
    if "log_ratio" in tip:
        assert tip["log_ratio"] == sample["logprobs"][entry] - sample["sampling_logprobs"][entry]


def open_batch(look: Look, step: int) -> None:
    look.go(f"batch={step}.0.0", "batch")
    more = look.page.locator("button", has_text="show all")
    if more.count():
        more.click()


def test_components_of_one_micro_batch_are_told_apart(run: RunFolder) -> None:
    step = whole_step(run)
    with looking(run.root / "report.html") as look:
        open_batch(look, step)
        for name, count in counts(run)[step].items():
            expect(look.page.locator(f".samples .c-{name}")).to_have_count(count)
            assert look.texts(f'.totals [data-component="{name}"] b') == [f"{count:,}"]
        assert len({look.background(f".samples .c-{name}") for name in COMPONENTS}) == 3


@pytest.mark.parametrize("component", COMPONENTS)
def test_numbers_on_hover_are_those_of_the_files(run: RunFolder, component: str) -> None:
    """Tooltips of the first and last token of a component in a micro batch, there and on the rollout's page."""
    step = whole_step(run)
    samples = lines(run.token_records(step))
    with looking(run.root / "report.html") as look:
        open_batch(look, step)
        tokens = look.page.locator(f".samples .c-{component}")
        for token in (tokens.first, tokens.last):
            token.hover()
            rollout, branch, position = token.evaluate(
                "({token}) => [token.rollout, token.branch, token.position]"
            )
            (sample,) = (
                each for each in samples if each["episode"][:ID] == rollout and each["branch"] == branch
            )
            tip = look.tip()
            assert tip[component] > 0
            (why,) = look.texts("#tip .why")
            trained = f"trained (member of {component}) in step {step}, micro batch 0"
            assert why.startswith(trained if tip["pull"] else "rejected")
            check_numbers(tip, sample, position)
            look.go(f"rollout={rollout}&token=0.{branch}.{position}", "rollout")
            assert look.tip() == tip
            open_batch(look, step)
