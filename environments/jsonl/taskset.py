"""The `jsonl` taskset: one task a line of a file."""

import inspect
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, Self

import verifiers.v1 as vf
from pydantic import ConfigDict, Field, SerializeAsAny, ValidationError, model_validator

from braid_tasks import Split, split_of
from jsonl.rewards import reward_function, reward_of


class JsonlTaskConfig(vf.TaskConfig):
    """How a line is graded."""

    reward: str = "jsonl.exact"
    """Import path of a function `(task, trace, **reward_kwargs) -> float`, plain or async: `package.function`,
    `package:function` or `path/to/file.py:function`. `task` is the line, its fields attributes; `trace` the
    verifiers trace, whose `last_reply` is the answer."""
    reward_kwargs: dict[str, Any] = Field(default_factory=dict)
    """Further arguments of that function."""

    @model_validator(mode="after")
    def _reward_can_be_called(self) -> Self:
        try:
            inspect.signature(reward_function(self.reward)).bind(None, None, **self.reward_kwargs)
        except (ImportError, AttributeError, TypeError) as error:
            raise ValueError(
                f"reward {self.reward!r} cannot be called with its reward_kwargs: {error}"
            ) from None
        return self


class JsonlConfig(vf.TasksetConfig):
    """Which lines are tasks."""

    path: Path
    """A file of JSON objects, one a line, relative to the working directory. Fields of verifiers' `TaskData`
    (`prompt`, `system_prompt`, `id`, ...) mean what they mean there; all others are kept for the reward
    function, and `demonstration` is what `braid sft` learns."""
    prompt_key: str = "prompt"
    """The field that holds the prompt: a text, or a list of chat messages."""
    split: Split | Literal["all"] = "all"
    """A share of the lines: a hash of the prompt decides, one in four is held out."""
    task: SerializeAsAny[JsonlTaskConfig] = JsonlTaskConfig()
    """How a line is graded."""


class JsonlData(vf.TaskData):
    """One line; fields that `TaskData` does not have are attributes too."""

    model_config = ConfigDict(extra="allow", frozen=True)


class JsonlTask(vf.Task[JsonlData, vf.State, JsonlTaskConfig]):
    """Graded by the function that the config names."""

    @vf.reward
    async def graded(self, trace: vf.Trace) -> float:
        """What the function says."""
        result = reward_function(self.config.reward)(self.data, trace, **self.config.reward_kwargs)
        return reward_of(await result if inspect.isawaitable(result) else result, self.config.reward)


class JsonlTaskset(vf.Taskset[JsonlTask, JsonlConfig]):
    """The lines of a file, in their order."""

    def load(self) -> Iterator[JsonlTask]:
        path, split = self.config.path, self.config.split
        if not path.is_file():
            raise FileNotFoundError(f"jsonl: path {path} is no file (seen from {Path.cwd()})")
        with path.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, start=1):
                if line.strip():
                    data = self._parse(line, f"{path}, line {number}")
                    if split in ("all", split_of(json.dumps(data.model_dump(mode="json")["prompt"]))):
                        yield JsonlTask(data, self.config.task)

    def _parse(self, line: str, where: str) -> JsonlData:
        try:
            record = json.loads(line)
        except json.JSONDecodeError as error:
            raise ValueError(f"{where} is not JSON: {error}") from None
        key = self.config.prompt_key
        if not isinstance(record, dict) or not record.get(key):
            raise ValueError(f"{where} is no JSON object with a {key!r}; name its prompt with prompt_key")
        try:
            return JsonlData.model_validate({**record, "prompt": record[key]})
        except ValidationError as error:
            fault = error.errors(include_url=False)[0]
            place = ".".join(map(str, fault["loc"]))
            raise ValueError(f"{where}: field {place} is no task field: {fault['msg']}") from None
