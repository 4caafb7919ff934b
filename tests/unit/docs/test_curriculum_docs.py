"""docs/curricula.md: config blocks, metrics, and the example package."""

import re
import sys
import tomllib
from types import ModuleType

import pytest

from braidrl.configs.orchestrator import CurriculumConfig
from braidrl.configs.plugins import GATES, SAMPLERS
from braidrl.orchestrator.train.curriculum import Curriculum, Tasks, gate_class, sampler_class
from reverse_text import ReverseTextConfig, ReverseTextTaskset
from tests.support.groups import group_of
from tests.support.paths import DOCS

TEXT = (DOCS / "curricula.md").read_text()
BLOCKS = re.findall(r"```toml\n(\[\[?orchestrator.*?)```", TEXT, re.DOTALL)


def taskset() -> ReverseTextTaskset:
    return ReverseTextTaskset(ReverseTextConfig(num_tasks=6))


def built(block: str) -> Curriculum:
    found = tomllib.loads(block)["orchestrator"]["train"]["curriculum"]
    return Curriculum(CurriculumConfig.model_validate(found), taskset())


def test_every_type_has_a_section_and_a_block_of_its_own() -> None:
    shown = {type(curriculum.sampler.config) for curriculum in map(built, BLOCKS)}
    shown |= {type(gate.config) for curriculum in map(built, BLOCKS) for gate in curriculum.gates.values()}
    assert shown == {thing.config for thing in (*SAMPLERS.values(), *GATES.values())}
    assert set(re.findall(r"^### (\w+)$", TEXT, re.MULTILINE)) == SAMPLERS.keys() | GATES.keys()


def test_every_metric_of_a_curriculum_is_explained() -> None:
    names = set()
    for curriculum in map(built, BLOCKS):
        names |= {re.sub(r"gates/\w+/", "", name) for name in curriculum.metrics()}
    plain = {re.sub(r"pools/\w+", "pools/NAME", name) for name in names}
    assert len(plain) > 8
    assert {name for name in plain if f"`{name}`" not in TEXT} == set()


def test_the_package_of_your_own_works(monkeypatch: pytest.MonkeyPatch) -> None:
    config, parts = ModuleType("braid_short.config"), ModuleType("braid_short.parts")
    for module in (ModuleType("braid_short"), config, parts):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    for module, snippet in zip(
        (config, parts), re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL), strict=True
    ):
        exec(snippet, vars(module))
    tasks = Tasks(taskset())
    first, second = (
        sampler_class(config.ShortestFirstConfig)(config.ShortestFirstConfig(), tasks, 0) for _ in range(2)
    )
    drawn = [first.next_task() for _ in range(7)]
    lengths = [len(task.data.prompt) for task in drawn]
    assert lengths[:6] == sorted(lengths[:6]) and drawn[6] is drawn[0]
    second.load_state_dict(first.state_dict())
    assert second.next_task() is drawn[1]
    group = group_of(drawn[0], [1.0, 0.0])  # each with three sampled tokens
    for limit, admitted in ((2, False), (3, True)):
        assert gate_class(config.BriefConfig)(config.BriefConfig(limit=limit)).admits(group) is admitted
