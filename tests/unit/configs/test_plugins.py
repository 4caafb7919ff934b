"""Algorithms of other packages: discovery, lists, validation, construction, and errors of faulty packages."""

import subprocess
import sys
from pathlib import Path

import pytest

from braidrl.cli import main
from braidrl.configs.core.errors import ConfigError
from braidrl.configs.plugins import ALGORITHM, BUILT_IN
from braidrl.orchestrator.train.algo import ALGORITHM_CLASSES, make_algorithm
from braidrl.testing import CHECKS
from tests.support.episodes import advantages_of, episode, trace
from tests.support.packages import Commands, installed, listed, python


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Package written by `braid new-algorithm cut-mean`."""
    folder = tmp_path_factory.mktemp("package") / "braid-cut-mean"
    assert main(["new-algorithm", "cut-mean", "--folder", str(folder)]) == 0
    return folder


@pytest.fixture(scope="module")
def site(package: Path) -> Path:
    """That package, built and installed into a separate folder."""
    target = package.parent / "site"
    options = ["--no-deps", "--no-build-isolation", "--no-index", "--target", str(target)]
    done = subprocess.run(
        [sys.executable, "-m", "pip", "install", "-q", *options, str(package)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return target


# -- a valid package


def test_an_installed_algorithm_is_listed_with_its_package(braid: Commands) -> None:
    block = listed(braid("algorithms").stdout)["cut_mean"]
    assert "comes from: braid-cut-mean 0.1.0" in block and "parameters: bound = 1.0" in block
    text = braid("algorithms", "cut_mean").stdout
    assert "Every sampled token of rollout i gets A_i" in text and "Maximum absolute advantage." in text


def test_an_installed_algorithm_is_in_the_schema_and_validates(braid: Commands, package: Path) -> None:
    text = braid("rl", "--help").stdout
    assert "--orchestrator.train.algo.bound float  = 1.0" in text and ",cut_mean}" in text
    command = ("rl", "@", str(package / "rl.toml"), "--dry-run")
    done = braid(*command)
    assert done.returncode == 0, done.stderr
    assert 'type = "cut_mean"\nbound = 1.0' in done.stdout
    done = braid(*command, "--orchestrator.train.algo.bound", "0")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "orchestrator.train.algo.bound: input should be greater than 0" in done.stderr
    done = braid(*command, "--orchestrator.train.algo.type", "cut_men")
    assert "echo, cut_mean; did you mean 'cut_mean'?" in done.stderr


@pytest.mark.slow
def test_the_tests_of_a_new_package_pass(site: Path, package: Path) -> None:
    done = python(site, "-m", "pytest", "-q", "-p", "no:cacheprovider", folder=package)
    assert f" {len(CHECKS) + 1} passed" in f" {done.stdout.splitlines()[-1]}", done.stdout


async def test_an_installed_algorithm_scores_in_this_process(
    site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(site))
    found = ALGORITHM.find()
    assert list(found) == [*ALGORITHM_CLASSES, "cut_mean"]
    assert [found[name].origin for name in ("echo", "cut_mean")] == [BUILT_IN, "braid-cut-mean 0.1.0"]
    episodes = [episode(trace(1.0)), episode(trace(0.0))]
    await make_algorithm(found["cut_mean"].config(bound=0.25)).score_group(episodes)
    assert advantages_of(episodes) == [0.25, -0.25]


# -- faulty packages

CONFIG = """
from typing import ClassVar, Literal
from braidrl.configs.algorithm import BaseAlgorithmConfig

class Config(BaseAlgorithmConfig):
    algorithm_class: ClassVar[str] = {algorithm!r}
    type: Literal["fine"] = "fine"
"""


@pytest.mark.parametrize(
    ("package", "name", "source", "message"),
    [
        (
            "other_1",
            "grpo",
            "",
            "'grpo' names an algorithm of braidrl and one of other_1 1.5; uninstall one package",
        ),
        ("other_2", "fine", "", "'fine' of other_2 1.5: other_2:Config cannot be imported (AttributeError: "),
        (
            "other_3",
            "fine",
            "1 / 0",
            "(ZeroDivisionError: division by zero); fix or uninstall the package",
        ),
        (
            "other_4",
            "fine",
            "Config = int",
            "other_4:Config is not an algorithm config; subclass braidrl.configs",
        ),
        (
            "other_5",
            "fin",
            CONFIG.format(algorithm="m:A"),
            """has the type 'fine'; declare type: Literal["fin"] = "fin\"""",
        ),
        (
            "other_6",
            "fine",
            CONFIG.format(algorithm=""),
            "set its class variable algorithm_class to `package.module:Class`",
        ),
    ],
)
def test_a_bad_package_is_one_clear_error(
    package: str, name: str, source: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(installed(tmp_path, package, name, f"{package}:Config", source)))
    with pytest.raises(ConfigError) as caught:
        ALGORITHM.find()
    assert message in str(caught.value)


def test_two_packages_with_one_name_are_both_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = CONFIG.format(algorithm="m:A")
    for package in ("twin_a", "twin_b"):
        folder = installed(tmp_path / package, package, "fine", f"{package}:Config", source)
        monkeypatch.syspath_prepend(str(folder))
    with pytest.raises(ConfigError, match=r"'fine' names an algorithm of twin_. 1.5 and one of twin_. 1.5"):
        ALGORITHM.find()


def test_a_clash_is_one_line_of_the_command(tmp_path: Path) -> None:
    done = python(
        installed(tmp_path, "rival", "grpo", "rival:Config"), "-m", "braidrl.cli", "rl", "--dry-run"
    )
    assert done.returncode == 2
    assert done.stderr == (
        "braid rl: error: algo.type: 'grpo' names an algorithm of braidrl and one of rival 1.5; uninstall one package, "
        "or rename its algorithm\n"
    )


@pytest.mark.parametrize(
    ("algorithm", "message"),
    [("nowhere_at_all:A", "cannot be imported"), ("builtins:int", "not an Algorithm")],
)
def test_a_config_that_leads_to_no_algorithm_is_refused(
    algorithm: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = f"aimless_{algorithm.partition(':')[0]}"
    source = CONFIG.format(algorithm=algorithm)
    monkeypatch.syspath_prepend(str(installed(tmp_path, package, "fine", f"{package}:Config", source)))
    with pytest.raises(ValueError, match=message):
        make_algorithm(ALGORITHM.find()["fine"].config())


# -- commands


def test_every_algorithm_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["algorithms"]) == 0
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= 110
    blocks = listed(text)
    assert list(blocks) == list(ALGORITHM_CLASSES)
    for part in (
        "running mean",
        "rl loss",
        "the batch",
        "arXiv:2506.24119",
        "built in",
        "parameters: decay = 0.95",
    ):
        assert part in blocks["rae"]
    assert "teacher.name (required), teacher.base_url (required), max_concurrent = 32" in blocks["opd"]
    assert "set sampling.source.name and sampling.source.base_url parameters: none" in blocks["sft"]
    assert "roles.tool.alpha = 0.1, filter = none" in blocks["echo"] and "siblings" in blocks["echo"]


def test_one_algorithm_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    """The output has the docstring of its class and the meaning of each of its keys."""
    for name, algorithm in ALGORITHM_CLASSES.items():
        assert main(["algorithms", name]) == 0
        text = " ".join(capsys.readouterr().out.split())
        assert " ".join((algorithm.__doc__ or "").split()) in text
    assert "algo.roles.tool.alpha float (required) Weight of the role's tokens in the ce component" in text
    assert main(["algorithms", "ecko"]) == 2
    assert "did you mean 'echo'?" in capsys.readouterr().err


def test_the_papers_are_those_of_the_algorithms() -> None:
    for name, algorithm in ALGORITHM_CLASSES.items():
        assert algorithm.__doc__ is not None
        paper = ALGORITHM.find()[name].config.paper
        assert paper and paper in algorithm.__doc__


def test_the_list_needs_nothing_heavy() -> None:
    code = (
        "import sys; from braidrl.cli import main; main(['algorithms']); print(*sys.modules, file=sys.stderr)"
    )
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stderr.split()
    assert "braidrl.configs.algorithm" in loaded
    assert not {"torch", "transformers", "verifiers"} & set(loaded)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["grpo"], "'grpo' is already an algorithm of braidrl"),
        (["Über"], "'Über' is not a valid name"),
        (["for"], "'for' is not a valid name"),
    ],
)
def test_a_name_that_will_not_do_is_refused(
    args: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["new-algorithm", *args, "--folder", str(tmp_path / "x")]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "x").exists()


def test_a_new_package_says_what_to_do_next(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "braid-fresh"
    assert main(["new-algorithm", "fresh", "--folder", str(folder)]) == 0
    text = capsys.readouterr().out
    for line in text.splitlines()[1:5]:
        assert (folder / line.split()[0]).is_file()
    assert f"\n  pip install -e {folder}\n  python -m pytest {folder}\n" in text


def test_nothing_is_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "precious").write_text("mine")
    assert main(["new-algorithm", "fresh", "--folder", str(tmp_path)]) == 2
    assert "is not empty; choose a new folder" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["precious"]
