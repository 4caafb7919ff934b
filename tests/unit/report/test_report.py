"""Progress lines, reward curves and recorded rollouts of a run."""

import io
import json
from pathlib import Path

from rich.console import Console

from braidrl.monitors.follow import Follower
from braidrl.monitors.metrics import MetricsWriter
from braidrl.report.episodes import EpisodeProgress
from braidrl.report.plot import save_reward_plot, terminal_plot
from braidrl.report.progress import Progress
from braidrl.report.rewards import conversation, eval_episodes, heldout_rewards, reward, training_curve
from braidrl.utils.run_folder import RunFolder


def log_step(run: RunFolder, step: int) -> None:
    MetricsWriter(run.metrics("trainer")).log(step, {"loss": -0.5, "tokens_per_second": 1234.0})
    MetricsWriter(run.metrics("orchestrator")).log(step, {"reward/mean": step / 10})


def plain_progress(run: RunFolder, **options: int) -> tuple[Progress, io.StringIO]:
    output = io.StringIO()
    return Progress(run, 4, console=Console(file=output, width=200), **options), output


def test_a_step_is_shown_once_both_processes_have_reported_it(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    progress, output = plain_progress(run)
    with progress:
        MetricsWriter(run.metrics("trainer")).log(1, {"loss": 0.25})
        progress.update()
        assert output.getvalue() == ""
        MetricsWriter(run.metrics("orchestrator")).log(1, {"reward/mean": 0.75})
        progress.update()
        progress.update()
    assert output.getvalue() == "step 1/4  reward 0.750  loss +0.2500\n"


def test_time_left_is_reckoned_from_the_first_shown_step(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    progress, output = plain_progress(run)
    with progress:
        for step in (1, 2):
            log_step(run, step)
            progress.update()
    first, second = output.getvalue().splitlines()
    assert "left" not in first
    assert second.startswith("step 2/4  reward 0.200  loss -0.5000  1234 tok/s") and second.endswith(
        " s left"
    )


def test_a_metric_that_was_not_finite_is_left_out(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    progress, output = plain_progress(run)
    MetricsWriter(run.metrics("trainer")).log(1, {"loss": float("nan")})
    MetricsWriter(run.metrics("orchestrator")).log(1, {"reward/mean": 0.5})
    progress.update()
    assert output.getvalue() == "step 1/4  reward 0.500\n"


def test_long_runs_are_shown_every_nth_step_and_at_the_end(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    progress, output = plain_progress(run, every=3)
    for step in range(1, 5):
        log_step(run, step)
    progress.update()
    assert [line.split()[1] for line in output.getvalue().splitlines()] == ["3/4", "4/4"]


def test_a_resumed_run_shows_only_what_comes_after(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    progress, output = plain_progress(run, after=2)
    for step in range(1, 4):
        log_step(run, step)
    progress.update()
    assert [line.split()[1] for line in output.getvalue().splitlines()] == ["3/4"]


def test_evaluations_are_shown_once_and_not_those_of_an_earlier_process(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    metrics = {
        "eval/held/num": 4.0,
        "eval/held/errors": 1.0,
        "eval/held/reward/mean": 0.5,
        "eval/held/reward/ci95": 0.1,
    }
    MetricsWriter(run.metrics("eval")).log(0, metrics)
    progress, output = plain_progress(run)
    MetricsWriter(run.metrics("eval")).log(2, metrics | {"eval/held/pass@1": 0.25})
    progress.update()
    progress.update()
    assert output.getvalue() == (
        "evaluation of v2\n"
        "  source  reward         pass@1  episodes  errors  truncated  tokens\n"
        "  held    0.500 ± 0.100  0.250   4         1       -          -\n"
    )


def test_episodes_are_counted_in_ten_lines_or_in_a_bar() -> None:
    rewards = [1.0, 0.0, None, *[0.5] * 22]
    plain, drawn = io.StringIO(), io.StringIO()
    for output, terminal in ((plain, False), (drawn, True)):
        console = Console(file=output, force_terminal=terminal, width=120, color_system=None)
        with EpisodeProgress(len(rewards), console) as progress:
            for reward in rewards:
                progress.ended(reward)
    lines = plain.getvalue().splitlines()
    assert len(lines) == 10 and lines[0] == "episodes 3/25  reward 0.500  1 failed"
    assert lines[-1] == "episodes 25/25  reward 0.500  1 failed"
    assert "25/25" in drawn.getvalue() and "reward 0.500  1 failed" in drawn.getvalue()


def test_an_unfinished_line_waits(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    follower = Follower(path)
    assert follower.read() == []
    path.write_text('{"step": 1}\n{"st')
    assert follower.read() == [{"step": 1}]
    with path.open("a") as file:
        file.write('ep": 2}\n')
    assert follower.read() == [{"step": 2}]
    path.write_text('{"step": 1}\n')  # the run is resumed from an earlier step
    assert follower.read() == [{"step": 1}]


def test_curve_and_heldout_rewards_come_from_the_metrics(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    for step in (1, 2):
        log_step(run, step)
    MetricsWriter(run.metrics("orchestrator")).log(3, {"queue/in_flight": 1.0})
    evals = MetricsWriter(run.metrics("eval"))
    evals.log(0, {"eval/heldout/reward/mean": 0.25, "eval/heldout/reward/ci95": 0.05})
    evals.log(2, {"eval/other/reward/mean": 0.5})
    assert training_curve(run) == ([1, 2], [0.1, 0.2])
    (only,) = heldout_rewards(run, "heldout")
    assert (only.version, only.mean, only.ci95) == (0, 0.25, 0.05)


def test_plots(tmp_path: Path) -> None:
    picture = tmp_path / "reward.png"
    save_reward_plot(picture, [1, 2, 3], [0.1, 0.5, 0.9], [(0, 0.1, 0.02), (3, 0.8, 0.01)])
    assert picture.read_bytes().startswith(b"\x89PNG")
    text = terminal_plot([1, 2, 3], [0.1, 0.5, 0.9])
    assert "mean reward" in text and "\x1b" not in text


def test_rollouts_are_read_back(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    nodes = [
        {"message": {"role": "user", "content": "ab"}},
        {"message": {"role": "assistant", "content": "ba"}},
    ]
    record = {"traces": [{"id": "t", "nodes": nodes}], "braid": {"key": "eval/0", "rewards": {"t": 1.0}}}
    path = run.eval_episodes(2)
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(record) + "\n")
    (back,) = eval_episodes(run, 2).values()
    assert conversation(back) == [("user", "ab"), ("assistant", "ba")]
    assert reward(back) == 1.0
