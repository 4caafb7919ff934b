"""Console views of a run: dashboard, lines, `--quiet` and `--verbose`."""

import io
import os
import pty
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from braidrl.configs.core.errors import ConfigError
from braidrl.launch.options import parse_options
from braidrl.monitors.live import LiveState, write_live
from braidrl.monitors.metrics import MetricsWriter
from braidrl.report.console import SilentView, open_view
from braidrl.report.dashboard import Dashboard
from braidrl.report.progress import Progress
from braidrl.utils.run_folder import RunFolder

ESCAPE = "\x1b["


def log_step(run: RunFolder, step: int) -> None:
    MetricsWriter(run.metrics("trainer")).log(
        step,
        {
            "loss": -0.25,
            "mismatch_kl": 0.002,
            "tokens_per_second": 12345.0,
            "entropy": 1.5,
            "time/wait": 0.25,
        },
    )
    rewards = {"reward/mean": step / 10, "reward/words/mean": step / 10, "reward/sums/mean": 1 - step / 10}
    counts = {"zero_signal": 0.25, "tokens/sampled": 500.0, "seconds/step": 2.0, "queue/in_flight": 4.0}
    staleness = {"staleness/mean": 0.5, "staleness/max": 1.0}
    MetricsWriter(run.metrics("orchestrator")).log(step, rewards | counts | staleness)


def share_now(run: RunFolder, **changes: object) -> None:
    """Write the live state of the run."""
    state = LiveState(
        time=time.time(),
        step=3,
        version=2,
        idle=0.5,
        episodes=12,
        most_episodes=32,
        buffered=7,
        calls=5,
        calls_waiting=2,
        evaluating=0,
        waits="episodes in flight: 12 of words; waits for episodes to end",
    )
    write_live(run.live, msgspec.structs.replace(state, **changes))


class Screen:
    """Dashboard on a terminal of the given width, with a clock controlled by the test."""

    def __init__(self, folder: Path, width: int = 160, encoding: str = "utf-8") -> None:
        self.run = RunFolder(folder)
        (folder / "metrics").mkdir(parents=True)
        self.now = 0.0
        self.file = io.TextIOWrapper(io.BytesIO(), encoding)
        self.console = Console(file=self.file, force_terminal=True, width=width, height=50, color_system=None)
        self.dashboard = Dashboard(self.run, 10, self.console, clock=lambda: self.now)

    def lines(self) -> list[str]:
        """Read all new data and return the lines on the screen."""
        self.dashboard._read()
        with self.console.capture() as captured:
            self.console.print(self.dashboard.render())
        return [line.rstrip() for line in captured.get().splitlines()]

    def row(self, start: str) -> list[str]:
        """Return the words after `start`, which occurs in exactly one line, at its beginning or after a gap."""
        (line,) = [line for line in self.lines() if line.startswith(start) or f"  {start}  " in line]
        return line[line.index(start) + len(start) :].split()


@pytest.fixture
def screen(tmp_path: Path) -> Screen:
    return Screen(tmp_path / "run")


def test_a_run_that_starts_says_so(screen: Screen) -> None:
    assert screen.lines()[0] == str(screen.run.root)
    assert screen.row("step") == ["0/10", "0:00:00"]
    assert "starting: loading models and opening environments" in screen.lines()
    assert "no step yet" in screen.lines()


def test_progress_rewards_speed_and_staleness_are_drawn(screen: Screen) -> None:
    for step in (1, 2, 3):
        screen.now = 60.0 * step
        log_step(screen.run, step)
        screen.lines()
    head = screen.row("step")
    assert head[0] == "3/10" and head[-3:] == ["0:03:00", "0:07:00", "left"]
    assert screen.row("words")[:3] == ["▁▅█", "0.300", "0.200"]
    assert screen.row("sums")[:3] == ["█▅▁", "0.700", "0.800"]
    assert screen.row("loss") == ["-0.2500"]
    assert screen.row("KL to the sampler") == ["2.0e-03"]
    assert screen.row("staleness") == ["0.50,", "at", "most", "1"]
    assert screen.row("groups without signal") == ["25%"]
    assert screen.row("trainer")[:2] == ["12,345", "tok/s"]
    assert screen.row("sampler")[:2] == ["250", "tok/s"]


def test_queues_and_who_waits_for_what_are_drawn(screen: Screen) -> None:
    for step in (1, 2):
        log_step(screen.run, step)
    share_now(screen.run)
    assert screen.row("episodes in flight") == ["12", "of", "32"]
    assert screen.row("traces buffered") == ["7"]
    lines = screen.lines()
    assert "trainer       waits for the batch of step 3" in lines
    assert "orchestrator  episodes in flight: 12 of words; waits for episodes to end" in lines
    assert "inference     serves v2; 5 model calls in flight, 2 waiting for a replica" in lines
    assert not any("no progress for" in line for line in lines)

    screen.run.batch(3).parent.mkdir()
    screen.run.batch(3).touch()
    share_now(screen.run, idle=45.0, evaluating=3)
    lines = screen.lines()
    assert "trainer       computes step 3" in lines
    assert any("no progress for 45 s" in line for line in lines)
    assert screen.row("episodes in flight")[:5] == ["12", "of", "32,", "3", "of"]


def test_what_the_orchestrator_said_long_ago_is_not_shown(screen: Screen) -> None:
    log_step(screen.run, 1)
    share_now(screen.run, time=time.time() - 3600)
    assert not any("episodes in flight" in line for line in screen.lines())


def test_evaluations_have_their_interval(screen: Screen) -> None:
    evals = MetricsWriter(screen.run.metrics("eval"))
    for version, reward in ((0, 0.25), (4, 0.75)):
        evals.log(version, {"eval/held/reward/mean": reward, "eval/held/reward/ci95": 0.05})
    assert screen.row("held out: held")[:5] == ["▁█", "0.750", "±", "0.050", "(v4)"]


def test_a_tracker_that_failed_is_told_of(screen: Screen) -> None:
    screen.run.trackers.mkdir()
    screen.run.notices.write_bytes(msgspec.json.encode({"tracker": "wandb", "message": "no login"}) + b"\n")
    assert "tracker wandb failed, training continues: no login" in screen.lines()
    output = io.StringIO()
    Progress(screen.run, 10, console=Console(file=output)).update()
    assert output.getvalue() == "tracker wandb failed, training continues: no login\n"


def test_a_narrow_terminal_without_unicode_gets_all_of_it(tmp_path: Path) -> None:
    screen = Screen(tmp_path / "run", width=72, encoding="ascii")
    for step in (1, 2):
        log_step(screen.run, step)
    share_now(screen.run)
    text = "\n".join(screen.lines())
    assert text.isascii() and "words" in text and "_@" in text and "groups without signal" in text
    assert max(map(len, text.splitlines())) <= 72


def test_the_last_picture_stays_without_the_waits(screen: Screen) -> None:
    with screen.dashboard:
        log_step(screen.run, 1)
        share_now(screen.run)
    screen.file.seek(0)
    last = screen.file.read().rpartition(str(screen.run.root))[2]
    assert "step 1/10" in last and "words" in last
    assert "orchestrator" not in last and "episodes in flight" not in last


def test_it_is_drawn_a_few_times_a_second_at_most(screen: Screen) -> None:
    with screen.dashboard:
        log_step(screen.run, 1)
        screen.now = 0.1
        screen.dashboard.update()
        assert screen.dashboard.reading.step == 0
        screen.now = 0.3
        screen.dashboard.update()
        assert screen.dashboard.reading.step == 1


# -- which view


def plain_console() -> tuple[Console, io.StringIO]:
    output = io.StringIO()
    return Console(file=output, width=400), output


def test_verbose_lines_have_details(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    console, output = plain_console()
    view = open_view(run, 4, verbose=True, console=console)
    log_step(run, 1)
    view.update()
    assert output.getvalue().splitlines() == [
        "step 1/4  reward 0.100  loss -0.2500  KL 2.0e-03  stale 0.5  12345 tok/s",
        "  words 0.100  sums 0.900  entropy 1.500  25% without signal  in flight 4  trainer waited 0.2 s",
    ]


def test_lines_say_who_waits_when_nothing_moves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = RunFolder(tmp_path)
    console, output = plain_console()
    view = open_view(run, 4, console=console)
    share_now(run, idle=31.0)
    view.update()
    assert output.getvalue() == ""  # less than QUIET_SECONDS since the view was opened
    monkeypatch.setattr("braidrl.report.progress.QUIET_SECONDS", 0.0)
    view.update()
    assert (
        output.getvalue()
        == "no progress for 31 s; episodes in flight: 12 of words; waits for episodes to end\n"
    )


def test_quiet_shows_nothing(tmp_path: Path) -> None:
    console, output = plain_console()
    with open_view(RunFolder(tmp_path), 4, quiet=True, console=console) as view:
        log_step(RunFolder(tmp_path), 1)
        view.update()
    assert isinstance(view, SilentView) and output.getvalue() == ""


def test_flags_of_the_console() -> None:
    assert parse_options(["--quiet"]).quiet and not parse_options([]).quiet
    with pytest.raises(ConfigError, match="give one of them"):
        parse_options(["--quiet", "--verbose"])


VIEW = """
import sys, time
from pathlib import Path
from braidrl.report.console import open_view
from braidrl.utils.run_folder import RunFolder
with open_view(RunFolder(Path(sys.argv[1])), 3) as view:
    view.update()
print(type(view).__name__)
"""


def on_a_terminal(folder: Path, **environment: str) -> str:
    """Return the terminal output of a process that opens the view of `folder`."""
    terminal, end = pty.openpty()
    known = {
        name: value
        for name, value in os.environ.items()
        if name not in ("NO_COLOR", "FORCE_COLOR", "COLORTERM")
    }
    command = [sys.executable, "-c", VIEW, str(folder)]
    process = subprocess.Popen(
        command, stdout=end, stderr=end, env={**known, "COLUMNS": "120", **environment}
    )
    os.close(end)
    shown = b""
    try:
        while data := os.read(terminal, 4096):
            shown += data
    except OSError:  # the other side is closed
        pass
    finally:
        os.close(terminal)
    assert process.wait(60) == 0, shown
    return shown.decode()


def test_a_real_terminal_gets_a_dashboard_in_colours_unless_it_wants_none(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    log_step(run, 1)
    coloured, plain, dumb = (
        on_a_terminal(tmp_path, TERM="xterm-256color"),
        on_a_terminal(tmp_path, TERM="xterm-256color", NO_COLOR="1"),
        on_a_terminal(tmp_path, TERM="dumb"),
    )
    assert "Dashboard" in coloured and "Dashboard" in plain and "step 1/3" in plain
    colour_codes = tuple(f"{ESCAPE}{code}" for code in ("38;", "31", "33", "34", "1;33"))
    assert any(code in coloured for code in colour_codes)
    assert not any(code in plain for code in colour_codes)
    assert "Progress" in dumb and "step 1/3  reward 0.100" in dumb and ESCAPE not in dumb
