"""The page of a run in a real browser: rendering, filters, tooltips and paging, without network requests."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect

from braidrl.cli import main
from braidrl.monitors.metrics import MetricsWriter
from braidrl.report.page.index import ID
from braidrl.utils.run_folder import RunFolder
from tests.support.browser import Look, looking
from tests.support.report_runs import record_run

pytestmark = pytest.mark.slow
ROWS = ".tabulator-row"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, tiny_model_dir: Path) -> RunFolder:
    """Recorded run; read only."""
    return asyncio.run(record_run(tmp_path_factory.mktemp("recorded") / "run", tiny_model_dir))


@pytest.fixture(scope="module")
def page(run: RunFolder, tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("page") / "report.html"
    assert main(["report", str(run.root), "--output", str(target)]) == 0
    return target


def record(run: RunFolder, key: str) -> dict[str, Any]:
    """Return the recorded training episode with this name."""
    paths = sorted((run.root / "episodes" / "train").glob("*.jsonl"))
    found = (json.loads(line) for path in paths for line in path.read_text().splitlines())
    return next(each for each in found if each["braid"]["key"] == key)


def sample(run: RunFolder, episode: str) -> dict[str, Any]:
    """Return the trainer's record of an episode's first sample."""
    paths = sorted((run.root / "episodes" / "tokens").glob("*.jsonl"))
    found = (json.loads(line) for path in paths for line in path.read_text().splitlines())
    return next(each for each in found if each["episode"] == episode)


def open_rollout(look: Look, recorded: dict[str, Any], color: str) -> None:
    look.go(f"rollout={recorded['id'][:ID]}&color={color}", "rollout")


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_view_is_drawn(page: Path, theme: str) -> None:
    with looking(page, theme) as look:
        look.go("", "overview")
        expect(look.page.locator('.chart[data-title="Mismatch KL"] canvas')).to_be_visible()
        assert look.texts('.tile:has-text("rollouts") b') == ["18"]
        assert any("tokens/ce" in text for text in look.texts(".chart"))
        look.page.get_by_role("link", name="Config").click()
        look.ready("config")
        assert "eps = 0.1" in look.texts("pre")[0]
        look.page.fill("input[type=search]", "0.1")
        assert look.texts("pre") == ["[trainer.loss]\neps = 0.1"]
        look.page.get_by_role("link", name="Micro batches").click()
        look.ready("batch")
        assert len(look.texts(".sample")) >= 1
        before = look.background("body")
        look.page.click("#theme")
        assert look.background("body") != before


def test_rollouts_are_filtered_sorted_and_remembered_in_the_address(page: Path) -> None:
    with looking(page) as look:
        look.go("view=rollouts", "rollouts")
        expect(look.page.locator(ROWS)).to_have_count(18)
        look.page.select_option("select[name=env]", "told")
        expect(look.page.locator(ROWS)).to_have_count(4)
        look.page.fill("input[name=reward-least]", "0.5")
        expect(look.page.locator(ROWS)).to_have_count(2)
        assert look.texts(".count") == ["2 of 18 rollouts"]
        assert "env=told" in look.page.url and "reward=0.5.." in look.page.url
        look.go(look.page.url.partition("#")[2], "rollouts")
        expect(look.page.locator(ROWS)).to_have_count(2)
        look.go("view=rollouts&algorithm=grpo&outcome=trained&version=1..1", "rollouts")
        expect(look.page.locator(ROWS)).to_have_count(2)
        look.go("view=rollouts&text=second", "rollouts")
        assert look.texts(".tabulator-placeholder") == ["no rollout matches the filters"]
        look.go("view=rollouts", "rollouts")
        look.page.click(".tabulator-col[tabulator-field=reward]")
        look.page.click(".tabulator-col[tabulator-field=reward]")
        expect(look.page.locator(f"{ROWS}:first-child [tabulator-field=reward]")).to_have_text("1")


def test_the_table_is_paged(page: Path) -> None:
    with looking(page) as look:
        look.go("view=rollouts", "rollouts")
        expect(look.page.locator(ROWS)).to_have_count(18)
        look.page.evaluate("Tabulator.findTable('#table')[0].setPageSize(5)")
        expect(look.page.locator(ROWS)).to_have_count(5)
        look.page.click(".tabulator-page[data-page=last]")
        expect(look.page.locator(ROWS)).to_have_count(3)
        assert "page=4" in look.page.url


def test_numbers_on_hover_are_those_of_the_files(page: Path, run: RunFolder) -> None:
    recorded = record(run, "group-000004/0")
    answer, trained = recorded["traces"][0]["nodes"][1], sample(run, recorded["id"])
    first = answer["mask"].index(True)
    with looking(page) as look:
        open_rollout(look, recorded, "advantage")
        for nth, logprob in enumerate(answer["logprobs"]):
            look.page.hover(f'.t[data-at="1.{first + nth}"]')
            tip = look.tip()
            assert tip["logprobs"] == logprob
            assert tip["advantages"] == answer["advantages"][nth]
            assert tip["trainer_logprobs"] == trained["logprobs"][nth]
            assert tip["entropy"] == trained["entropy"][nth]
            assert tip["pull"] == trained["pull"][nth]
            assert tip["rl"] == trained["rl"][nth]
            assert tip["log_ratio"] == trained["logprobs"][nth] - trained["sampling_logprobs"][nth]
            assert tip["version"] == 1
        look.page.hover(".heading h1")
        expect(look.page.locator("#tip")).to_be_hidden()


def test_it_says_why_a_token_was_not_trained(page: Path, run: RunFolder) -> None:
    recorded = record(run, "told-000007/1")
    with looking(page) as look:
        open_rollout(look, recorded, "trust")
        look.page.hover(".body .c-rejected >> nth=0")
        (why,) = look.texts("#tip .why")
        assert why.startswith("rejected") and "allows a change of 0.1" in why and look.tip()["pull"] == 0
        look.page.hover(".body .c-kept >> nth=0")
        assert "member of ce" in look.texts("#tip .why")[0]
        open_rollout(look, record(run, "group-000005/0"), "why")
        look.page.hover(".body .c-zero >> nth=0")
        assert look.texts("#tip .why")[0].startswith("advantage 0")


def test_zero_has_no_colour_and_signs_have_two(page: Path, run: RunFolder) -> None:
    with looking(page) as look:
        open_rollout(look, record(run, "group-000004/0"), "advantage")
        above = look.background(".body .t.pos")
        open_rollout(look, record(run, "group-000004/1"), "advantage")
        below = look.background(".body .t.neg")
        open_rollout(look, record(run, "group-000005/0"), "advantage")
        assert look.page.locator(".body .t.pos, .body .t.neg").count() == 0
        assert above != below


def test_branches_stand_side_by_side(page: Path, run: RunFolder) -> None:
    with looking(page) as look:
        open_rollout(look, record(run, "told-000007/0"), "why")
        columns = look.page.locator(".branch")
        assert columns.count() == 3
        tops = {round(columns.nth(number).bounding_box()["y"]) for number in range(3)}
        assert len(tops) == 1
        assert "common part of 3 branches" in look.texts("h4")[0]
        look.page.hover('.branch[data-branch="1"] .t.shared:not(.template) >> nth=0')
        assert look.texts("#tip .why")[0].startswith("trained elsewhere")


def test_a_token_has_an_address_and_keys_move(page: Path, run: RunFolder) -> None:
    recorded = record(run, "group-000000/0")
    with looking(page) as look:
        look.go(f"rollout={recorded['id'][:ID]}&color=pull&token=0.0.23", "rollout")
        first = look.tip()
        assert "pull" in first and look.page.locator(".t.held").count() == 1
        look.page.keyboard.press("ArrowRight")
        assert "token=0.0.24" in look.page.url and look.tip() != first
        look.page.keyboard.press("Escape")
        look.ready("rollouts")
        look.page.locator(f"{ROWS}:first-child").focus()
        look.page.keyboard.press("ArrowDown")
        look.page.keyboard.press("Enter")
        look.ready("rollout")
        heading = look.texts("h1")
        look.page.keyboard.press("j")
        expect(look.page.locator("h1")).not_to_have_text(heading[0])
        look.ready("rollout")
        look.page.keyboard.press("2")
        usable = look.page.locator(".choices button:not([disabled])")
        expect(usable.nth(1)).to_have_attribute("aria-pressed", "true")
        look.page.keyboard.press("?")
        assert "next, previous rollout" in look.texts("dialog")[0]


def test_an_evaluation_says_which_streams_it_lacks(page: Path) -> None:
    with looking(page) as look:
        look.go("view=rollouts&kind=eval", "rollouts")
        look.page.click(f"{ROWS} >> nth=0")
        look.ready("rollout")
        assert look.page.locator('[data-stream="pull"]').is_disabled()
        assert "evaluations are not trained" in look.texts(".note")[0]


def test_what_a_model_wrote_is_text(run: RunFolder, tmp_path: Path) -> None:
    evil = RunFolder(tmp_path / "evil")
    recorded = record(run, "group-000004/0")
    answer = recorded["traces"][0]["nodes"][1]["message"]
    answer["content"] = "<img src=x onerror=alert(1)></script>"
    recorded["braid"]["key"] = "</script><script>alert(2)</script>/0"
    evil.train_episodes(1).parent.mkdir(parents=True)
    evil.train_episodes(1).write_text(json.dumps(recorded) + "\n")
    assert main(["report", str(evil.root)]) == 0
    with looking(evil.root / "report.html") as look:
        look.page.on("dialog", lambda dialog: pytest.fail(dialog.message))
        look.go("view=rollouts", "rollouts")
        assert answer["content"] in look.texts(ROWS)[0]
        look.page.click(ROWS)
        look.ready("rollout")
        assert "alert(2)" in look.texts("h1")[0]
        assert look.texts(".body .t >> nth=0") == ["⟨257⟩"]


@pytest.fixture
def watched(run: RunFolder, tmp_path: Path) -> Iterator[tuple[RunFolder, str]]:
    """Run that has only recorded its first step, and the address of `braid watch` for it."""
    going = RunFolder(tmp_path / "going")
    going.configs.mkdir(parents=True)
    (going.configs / "rl.toml").write_bytes((run.configs / "rl.toml").read_bytes())
    for path in ("metrics/trainer.jsonl", "metrics/orchestrator.jsonl", "metrics/groups.jsonl"):
        lines = (run.root / path).read_text().splitlines(keepends=True)
        (going.root / path).parent.mkdir(parents=True, exist_ok=True)
        (going.root / path).write_text("".join(line for line in lines if json.loads(line)["step"] == 1))
    copy(run, going, 1)
    command = [sys.executable, "-m", "braidrl.cli", "watch", str(going.root), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield going, process.stdout.readline().split()[2]
        finally:
            process.terminate()


def copy(run: RunFolder, target: RunFolder, step: int) -> None:
    """Return the episode and token files of a step."""
    for name in ("train_episodes", "token_records"):
        path = getattr(target, name)(step)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(getattr(run, name)(step).read_bytes())


def test_a_run_is_watched_while_it_goes_on(watched: tuple[RunFolder, str], run: RunFolder) -> None:
    going, address = watched
    with looking(address) as look:
        look.go("view=rollouts", "rollouts")
        expect(look.page.locator(ROWS)).to_have_count(8)
        assert look.texts(".live") == ["live · step 1 of 2"]
        copy(run, going, 2)
        MetricsWriter(going.metrics("trainer")).log(2, {"loss": 0.5, "mismatch_kl": 0.25})
        expect(look.page.locator(ROWS)).to_have_count(16)
        expect(look.page.locator(".live")).to_have_text("live · step 2 of 2")
        recorded = record(run, "told-000007/1")
        open_rollout(look, recorded, "trust")
        assert look.page.locator(".body .c-rejected").count() == 5
        look.go("", "overview")
        assert look.texts('.tile:has-text("mismatch KL") b') == ["0.25"]
        going.forget_after(1)
        expect(look.page.locator(".tile[href] b")).to_have_text("8", timeout=20000)
