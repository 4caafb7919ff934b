"""Losses of other packages: `braid losses`, validation, training, and errors of faulty packages."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from braidrl.cli import main
from braidrl.configs.core.errors import ConfigError
from braidrl.configs.plugins import BUILT_IN, LOSS, LOSSES
from braidrl.trainer.rl.losses import LOSS_FUNCTIONS, make_loss
from tests.support.packages import (
    LOSS_CONFIG,
    REPOSITORY,
    Commands,
    installed,
    installed_loss,
    listed,
    python,
)

TRAIN = """
import json, sys
from pathlib import Path
import torch
from braidrl.trainer.parallel import Parallel
from braidrl.trainer.rl.step import Learner
from tests.support.trainer_batches import make_batch, trainer_config

for loss in ({"type": "trusting", "scale": 2.0}, {"type": "ipo", "eps": 1.0, "adv_tau": 2.0}):
    config = trainer_config(Path(sys.argv[1]), Path("unused"), loss=loss)
    learner = Learner.load(config, Parallel(0, 1, torch.device("cpu")))
    print("ROW", json.dumps(learner.step(1, make_batch(3, "rl"))))
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return installed_loss(tmp_path_factory.mktemp("site"))


def test_an_installed_loss_is_listed_and_explained(braid: Commands) -> None:
    block = listed(braid("losses").stdout)["trusting"]
    for part in ("that trusts everything.", "source: folklore", "comes from: trusting 1.5", "scale = 1.0"):
        assert part in block
    text = braid("losses", "trusting").stdout
    assert "Minus scale * A * r." in text and "trainer.loss.scale float  = 1.0" in text


def test_an_installed_loss_is_in_the_schema_and_validates(braid: Commands) -> None:
    text = braid("trainer", "--help").stdout
    assert (
        "--loss.type {ipo,icepop,custom,grpo,gspo,trusting}" in text and "--loss.scale float  = 1.0" in text
    )
    command = ("trainer", "--model.path", "m", "--dry-run", "--loss.type")
    done = braid(*command, "trusting", "--loss.scale", "3")
    assert '[loss]\ntype = "trusting"\nscale = 3.0' in done.stdout, done.stderr
    done = braid(*command, "trusting", "--loss.scale", "0")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "loss.scale: input should be greater than 0" in done.stderr
    done = braid(*command, "trustin")
    assert "gspo, trusting; did you mean 'trusting'?" in done.stderr


@pytest.mark.slow
def test_an_installed_loss_trains(site: Path, tiny_model_dir: Path) -> None:
    """It receives the same inputs as a built-in loss: the same formula gives the same step."""
    done = python(site, "-c", TRAIN, str(tiny_model_dir))
    assert done.returncode == 0, done.stderr
    theirs, ours = (json.loads(line[4:]) for line in done.stdout.splitlines() if line.startswith("ROW "))
    assert ours["is_masked"] == 0 and ours["loss/rl"] != 0
    for name in ("loss", "loss/rl", "loss/rl/env/rl-env", "grad_norm", "tokens/rl"):
        assert theirs[name] == pytest.approx(ours[name], rel=1e-5)
    assert 0.5 < theirs["ratio"] == theirs["ratio/env/rl-env"] < 2


@pytest.mark.parametrize(
    ("package", "name", "source", "message"),
    [
        (
            "loss_1",
            "gspo",
            "",
            "loss.type: 'gspo' names a loss of braidrl and one of loss_1 1.5; uninstall one",
        ),
        (
            "loss_2",
            "fine",
            "Config = int",
            "is not a loss config; subclass braidrl.configs.loss.BaseLossConfig",
        ),
        (
            "loss_3",
            "trusting",
            LOSS_CONFIG.format(function=""),
            "does not refer to a loss; set its class variable loss_function to `package.module:function`",
        ),
    ],
)
def test_a_bad_package_is_one_clear_error(
    package: str, name: str, source: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(
        str(installed(tmp_path, package, name, f"{package}:Config", source, LOSS.group))
    )
    with pytest.raises(ConfigError) as caught:
        LOSS.find()
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("nowhere_at_all:f", "loss_function = 'nowhere_at_all:f' cannot be imported"),
        ("sys:path", "no function"),
    ],
)
def test_a_config_that_leads_to_no_function_is_refused(
    function: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = f"aimless_loss_{function.partition(':')[0]}"
    source = LOSS_CONFIG.format(function=function)
    monkeypatch.syspath_prepend(
        str(installed(tmp_path, package, "trusting", f"{package}:Config", source, LOSS.group))
    )
    with pytest.raises(ValueError, match=message):
        make_loss(LOSS.find()["trusting"].config())


def test_every_loss_is_listed_and_explained(capsys: pytest.CaptureFixture[str]) -> None:
    assert {thing.origin for thing in LOSSES.values()} == {BUILT_IN}
    assert main(["losses"]) == 0
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= 110
    blocks = listed(text)
    assert list(blocks) == list(LOSSES) and set(blocks) == set(LOSS_FUNCTIONS)
    for part in ("arXiv:2510.18855", "most likely tokens of the sampler", "score_centering_topk = 128"):
        assert part in blocks["icepop"]
    assert "needs: log-probs of the trainer before the step (old)" in blocks["gspo"]
    assert "parameters: import_path (required), kwargs = {}" in blocks["custom"]
    for name, function in LOSS_FUNCTIONS.items():
        assert main(["losses", name]) == 0
        text = " ".join(capsys.readouterr().out.split())
        assert " ".join((function.__doc__ or "nothing").split()) in text
    assert main(["losses", "gpso"]) == 2
    assert "did you mean 'gspo'?" in capsys.readouterr().err


def test_the_list_needs_nothing_heavy() -> None:
    code = "import sys; from braidrl.cli import main; main(['losses']); print(*sys.modules, file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=REPOSITORY)
    loaded = set(done.stderr.split())
    assert "braidrl.configs.loss" in loaded
    assert not {"torch", "transformers", "verifiers"} & loaded
