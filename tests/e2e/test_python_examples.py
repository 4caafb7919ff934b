"""The one-file example and the notebook run completely, and their policies learn."""

import re
import signal
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

import braidrl
from braidrl.monitors.record import outcome
from tests.support.paths import EXAMPLES
from tests.support.runs import Launch, command_lines, wait_until

pytestmark = pytest.mark.slow


@pytest.mark.timeout(900)
def test_the_one_file_example_learns(tmp_path: Path) -> None:
    """The command line can continue the run: its config, functions included, is plain TOML."""
    script = EXAMPLES / "one_file.py"
    assert len(script.read_text().splitlines()) < 40
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path), "0"], capture_output=True, text=True, timeout=580
    )
    assert done.returncode == 0, done.stdout + done.stderr
    run = braidrl.Run(tmp_path / "run")
    assert run.rewards[0] < 0.15 and run.rewards[-1] > 0.5
    assert f"{run.rewards[-1]:.2f} in the last step" in done.stdout
    again = [sys.executable, "-m", "braidrl.cli", "rl", "@", str(run.folder / "config" / "rl.toml")]
    flags = ["--output-dir", str(tmp_path / "again"), "--max-steps", "1", "--model.path", str(run.weights)]
    subprocess.run([*again, *flags], check=True, timeout=180, cwd=tmp_path)
    assert braidrl.Run(tmp_path / "again").rewards[0] > 0.5


@pytest.mark.timeout(300)
def test_an_interrupt_stops_the_processes_of_a_run(tmp_path: Path) -> None:
    launch = Launch(tmp_path, tmp_path / "model")  # same folder as in the example
    with subprocess.Popen([sys.executable, str(EXAMPLES / "one_file.py"), str(tmp_path), "0"]) as script:
        wait_until(lambda: bool(launch.run.published("weights")), "the first step")
        script.send_signal(signal.SIGINT)
        assert script.wait(timeout=60) != 0
    assert outcome(launch.run).status == "interrupted"
    assert command_lines(launch) == {}


@pytest.mark.timeout(900)
def test_the_notebook_runs_and_its_run_learns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    notebook = nbformat.read(EXAMPLES / "braid.ipynb", as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells)
    monkeypatch.setenv("BRAID_NOTEBOOK_FOLDER", str(tmp_path))
    NotebookClient(notebook, timeout=500, kernel_name="python3").execute()
    run, loop = braidrl.Run(tmp_path / "run"), braidrl.Run(tmp_path / "loop")
    assert run.rewards[-1] > run.rewards[0] + 0.2
    assert len(loop.rewards) == len(loop.metrics()) == 5
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    data = [output.data for output in outputs if "data" in output]
    assert sum("image/png" in each for each in data) == 1
    assert sum(bool(re.search("background: rgba", each.get("text/html", ""))) for each in data) >= 2
    text = "".join(output.text for output in outputs if output.output_type == "stream")
    assert "served now: version 1" in text and "version 5: entropy" in text
