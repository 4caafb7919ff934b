"""Samplers and gates of other packages: lists, validation, use, and errors of faulty packages."""

import subprocess
import sys
from pathlib import Path

import pytest

from braidrl.cli import main
from braidrl.configs.core.errors import ConfigError
from braidrl.configs.plugins import BUILT_IN, GATE, GATES, SAMPLER, SAMPLERS, Kind
from braidrl.orchestrator.train.curriculum import GATE_CLASSES, SAMPLER_CLASSES, gate_class, sampler_class
from tests.support.packages import Commands, installed, listed, python

CONFIGS = """
from typing import ClassVar, Literal
from pydantic import Field
from braidrl.configs.curriculum.gates import BaseGateConfig
from braidrl.configs.curriculum.samplers import BaseSamplerConfig

class BackwardsConfig(BaseSamplerConfig):
    '''The last task first.'''

    finite_only: ClassVar[bool] = True
    sampler_class: ClassVar[str] = {sampler!r}
    type: Literal["backwards"] = "backwards"
    stride: int = Field(1, ge=1)
    '''Places between one task and the next.'''

class ShortConfig(BaseGateConfig):
    '''Admits short replies.'''

    gate_class: ClassVar[str] = {gate!r}
    type: Literal["short"] = "short"
    most: int = Field(8, ge=1)
    '''Tokens that a reply may have.'''
"""
CLASSES = """
from braidrl.orchestrator.train.algo.routing import eligible_traces, num_trainable_tokens
from braidrl.orchestrator.train.curriculum import AdmissionGate, TaskSampler

class Backwards(TaskSampler):
    '''Its formula: place = -1 - number * stride.'''

    number = 0

    def next_task(self):
        place = -1 - self.number * self.config.stride
        self.number += 1
        return self.tasks.all[place % len(self.tasks.all)]

    def state_dict(self):
        return {"number": self.number}

    def load_state_dict(self, state):
        self.number = state["number"]

class Short(AdmissionGate):
    '''Counts sampled tokens.'''

    def admits(self, group):
        return all(num_trainable_tokens(trace) <= self.config.most for trace in eligible_traces(group))
"""
BLOCK = {
    "sampler": {"type": "backwards", "stride": 2},
    "gates": {"brief": {"type": "short", "most": 2}, "lax": {"type": "short", "most": 3}},
}
USE = f"""
import json
from braidrl.configs.orchestrator import CurriculumConfig
from braidrl.orchestrator.train.curriculum import Curriculum
from reverse_text import ReverseTextConfig, ReverseTextTaskset
from tests.support.groups import group_of

config = CurriculumConfig.model_validate({BLOCK})
first, second = (Curriculum(config, ReverseTextTaskset(ReverseTextConfig(num_tasks=5))) for _ in range(2))
drawn = [first.next_task().data.idx for _ in range(2)]
second.load_state_dict(json.loads(json.dumps(first.state_dict())))
drawn.append(second.next_task().data.idx)
print("ROW", json.dumps([drawn, first.rejecting(group_of(first.next_task(), [1.0, 0.0]))]))
"""


def package(folder: Path) -> Path:
    """Create a package `theirs` with a sampler and a gate. Configs and classes are in separate modules."""
    config = CONFIGS.format(sampler="theirs_classes:Backwards", gate="theirs_classes:Short")
    installed(folder, "theirs", "backwards", "theirs:BackwardsConfig", config, SAMPLER.group)
    with (folder / "theirs-1.5.dist-info" / "entry_points.txt").open("a") as file:
        file.write(f"[{GATE.group}]\nshort = theirs:ShortConfig\n")
    (folder / "theirs_classes.py").write_text(CLASSES)
    return folder


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return package(tmp_path_factory.mktemp("site"))


@pytest.mark.parametrize(
    ("command", "name", "summary", "details"),
    [
        (
            "samplers",
            "backwards",
            ["The last task first.", "comes from: theirs 1.5", "tasksets: finite ", "stride = 1"],
            ["place = -1 - number * stride.", "curriculum.sampler.stride int  = 1", "Places between"],
        ),
        (
            "gates",
            "short",
            ["Admits short replies.", "comes from: theirs 1.5", "most = 8"],
            ["Counts sampled tokens.", "curriculum.gates.NAME.most int  = 8", "Tokens that a reply"],
        ),
    ],
)
def test_they_are_listed_and_explained(
    braid: Commands, command: str, name: str, summary: list[str], details: list[str]
) -> None:
    block = listed(braid(command).stdout)[name]
    assert [part for part in summary if part not in block] == []
    text = braid(command, name).stdout
    assert [part for part in details if part not in text] == []


def test_they_are_in_the_schema_and_validate(braid: Commands, tmp_path: Path) -> None:
    file = tmp_path / "run.toml"

    def dry_run(stride: int, gate: str) -> subprocess.CompletedProcess[str]:
        file.write_text(
            'model.path = "m"\n[[train.source]]\nenv.taskset.id = "reverse-text"\n[train.source.curriculum]\n'
            f'sampler = {{type = "backwards", stride = {stride}}}\ngates.brief.type = "{gate}"\n'
        )
        return braid("orchestrator", "@", str(file), "--dry-run")

    done = dry_run(2, "short")
    assert 'type = "backwards"\nstride = 2' in done.stdout and 'type = "short"\nmost = 8' in done.stdout, (
        done.stderr
    )
    done = dry_run(0, "short")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert (
        "train.source[0].curriculum.sampler.stride: input should be greater than or equal to 1" in done.stderr
    )
    assert "did you mean 'short'?" in dry_run(2, "shor").stderr


@pytest.mark.slow
def test_they_choose_and_judge(site: Path) -> None:
    done = python(site, "-c", USE)
    assert done.stdout.splitlines()[-1:] == ['ROW [[4, 2, 0], ["brief"]]'], done.stderr


@pytest.mark.parametrize(
    ("kind", "name", "value", "source", "message"),
    [
        (
            SAMPLER,
            "replay",
            "Config",
            "",
            "'replay' names a sampler of braidrl and one of bad_0 1.5; uninstall one",
        ),
        (
            GATE,
            "fine",
            "Config",
            "Config = int",
            "is not a gate config; subclass braidrl.configs.curriculum.gates.BaseGateConfig",
        ),
        (
            SAMPLER,
            "backwards",
            "BackwardsConfig",
            CONFIGS.format(sampler="", gate=""),
            "does not refer to a sampler; set its class variable sampler_class to `package.module:Class`",
        ),
        (
            GATE,
            "brief",
            "ShortConfig",
            CONFIGS.format(sampler="", gate="a:B"),
            "has the type 'short'; declare type",
        ),
    ],
)
def test_a_bad_package_is_one_clear_error(
    kind: Kind,
    name: str,
    value: str,
    source: str,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    package = f"bad_{['replay', 'fine', 'backwards', 'brief'].index(name)}"
    monkeypatch.syspath_prepend(
        str(installed(tmp_path, package, name, f"{package}:{value}", source, kind.group))
    )
    with pytest.raises(ConfigError) as caught:
        kind.find()
    assert message in str(caught.value)


@pytest.mark.parametrize(("kind", "config"), [(SAMPLER, "BackwardsConfig"), (GATE, "ShortConfig")])
@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("nowhere_at_all:f", "cannot be imported"),
        ("sys:path", "subclass braidrl.orchestrator.train.curriculum."),
    ],
)
def test_a_config_that_leads_to_nothing_is_refused(
    kind: Kind, config: str, target: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = f"aimless_{kind.noun}_{target.partition(':')[0]}"
    name = {"sampler": "backwards", "gate": "short"}[kind.noun]
    source = CONFIGS.format(sampler=target, gate=target)
    monkeypatch.syspath_prepend(
        str(installed(tmp_path, package, name, f"{package}:{config}", source, kind.group))
    )
    class_of = {"sampler": sampler_class, "gate": gate_class}[kind.noun]
    with pytest.raises(ValueError, match=message):
        class_of(kind.find()[name].config)


@pytest.mark.parametrize(
    ("command", "known", "classes"), [("samplers", SAMPLERS, SAMPLER_CLASSES), ("gates", GATES, GATE_CLASSES)]
)
def test_every_built_in_is_listed_and_explained(
    command: str, known: dict, classes: dict, capsys: pytest.CaptureFixture[str]
) -> None:
    assert {thing.origin for thing in known.values()} == {BUILT_IN}
    assert list(known) == list(classes)
    assert main([command]) == 0
    assert list(listed(capsys.readouterr().out)) == list(classes)
    for name, implementation in classes.items():
        assert main([command, name]) == 0
        assert " ".join((implementation.__doc__ or "").split()) in " ".join(capsys.readouterr().out.split())
    assert main([command, "nothing"]) == 2
    assert "unknown type 'nothing'" in capsys.readouterr().err


def test_the_lists_need_nothing_heavy() -> None:
    code = (
        "import sys; from braidrl.cli import main; main(['samplers']); main(['gates']); "
        "print(*sys.modules, file=sys.stderr)"
    )
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stderr.split()
    assert "braidrl.configs.curriculum.samplers" in loaded
    assert not {"torch", "transformers", "verifiers"} & set(loaded)
