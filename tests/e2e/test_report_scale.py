"""The page of a run with more than 100,000 episodes: written in seconds, bounded in size, and fast to browse."""

import asyncio
import itertools
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import expect

from braidrl.cli import main
from braidrl.report.page.changes import MOST_POINTS, MOST_ROWS
from braidrl.utils.run_folder import RunFolder
from tests.support.browser import looking
from tests.support.report_runs import record_run

pytestmark = pytest.mark.slow
STEPS = 2505
PER_STEP = 40
EPISODES = STEPS * PER_STEP
MIB = 4
PAGE_BYTES = 24 * 2**20
"""Maximum size of the page: a table of 100,000 rows, the curves, and `MIB` of rollouts."""


def long_run(folder: Path, recorded: RunFolder) -> RunFolder:
    """Write a run of `EPISODES` episodes, each a copy of a recorded one with a new id and task."""
    run = RunFolder(folder)
    run.configs.mkdir(parents=True)
    (run.configs / "rl.toml").write_bytes((recorded.configs / "rl.toml").read_bytes())
    lines = [line for step in (1, 2) for line in recorded.train_episodes(step).read_text().splitlines()]
    names = [
        (record["id"], record["braid"]["key"], record["braid"]["step"]) for record in map(json.loads, lines)
    ]
    number = itertools.count()
    run.train_episodes(1).parent.mkdir(parents=True)
    for step in range(1, STEPS + 1):
        with run.train_episodes(step).open("w") as file:
            for _ in range(PER_STEP):
                index = next(number)
                line, (old, key, then) = lines[index % len(lines)], names[index % len(lines)]
                line = line.replace(old, f"{index:016x}{old[16:]}").replace(
                    f'"step":{then},', f'"step":{step},'
                )
                file.write(line.replace(key, f"{key.partition('-')[0]}-{index // 2:06d}/{index % 2}") + "\n")
    rows = [json.loads(line) for line in recorded.metrics("trainer").read_text().splitlines()]
    run.metrics("trainer").parent.mkdir(parents=True)
    with run.metrics("trainer").open("w") as file:
        file.writelines(json.dumps(rows[step % 2] | {"step": step}) + "\n" for step in range(1, STEPS + 1))
    return run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, tiny_model_dir: Path) -> Iterator[RunFolder]:
    """Long run, several hundred megabytes, deleted after the tests of this module."""
    folder = tmp_path_factory.mktemp("scale")
    recorded = asyncio.run(record_run(folder / "recorded", tiny_model_dir))
    made = long_run(folder / "long", recorded)
    yield made
    for path in made.root.rglob("*.jsonl"):
        path.unlink()


def test_a_hundred_thousand_episodes_fit_on_a_page_that_says_what_it_leaves_out(run: RunFolder) -> None:
    page = run.root / "report.html"
    assert main(["report", str(run.root), "--max-mib", str(MIB)]) == 0
    assert page.stat().st_size < PAGE_BYTES
    with looking(page) as look:
        look.go("", "overview")
        told = look.texts("#left-out")[0]
        assert f"{MOST_ROWS:,} of {EPISODES:,} lines of episodes" in told
        assert f"{MOST_POINTS:,} of {STEPS:,} lines of trainer.jsonl" in told
        look.go("view=rollouts", "rollouts")
        expect(look.page.locator(".tabulator-row")).to_have_count(50)
        assert f"which are {MOST_ROWS:,} of {EPISODES:,}, evenly spread" in look.texts(".count")[0]
        assert "this page has the tokens of" in look.texts(".count")[0]
        look.page.click(".tabulator-page[data-page=last]")
        expect(look.page.locator(".tabulator-page.active")).to_have_text(f"{MOST_ROWS // 50}")
        look.page.select_option("select[name=env]", "told")
        look.page.fill("input[name=step-least]", str(STEPS))
        expect(look.page.locator(".tabulator-row")).not_to_have_count(50)
        steps = look.texts(".tabulator-row [tabulator-field=step]")
        assert set(steps) == {str(STEPS)} and len(steps) <= PER_STEP
        assert set(look.texts(".tabulator-row [tabulator-field=env]")) == {"told"}
        look.page.fill("input[name=step-least]", "")
        here = look.page.locator('.tabulator-row:has([tabulator-field="open"]:text("●"))').first
        here.click()
        look.ready("rollout")
        assert look.page.locator(".body .t").count() > 20


def test_a_rollout_without_room_is_named_and_the_way_to_it_told(run: RunFolder) -> None:
    assert main(["report", str(run.root), "--max-mib", "0"]) == 0
    with looking(run.root / "report.html") as look:
        look.go("view=rollouts", "rollouts")
        look.page.click(".tabulator-row >> nth=0")
        look.ready("rollout")
        assert "braid watch opens every rollout" in look.texts(".note")[0]
