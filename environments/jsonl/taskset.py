"""The `jsonl` taskset: one task per line of a file."""

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
    """Config of the reward."""

    reward: str = "jsonl.exact"
    """Import path of a function `(task, trace, **reward_kwargs) -> float`, plain or async: `package.function`,
    `package:function` or `path/to/file.py:function`. `task` has the fields of the line as attributes. `trace` is the
    verifiers trace, whose `last_reply` is the answer."""
    reward_kwargs: dict[str, Any] = Field(default_factory=dict)
    """Additional keyword arguments of `reward`."""

    @model_validator(mode="after")
    def _check_signature(self) -> Self:
        try:
            inspect.signature(reward_function(self.reward)).bind(None, None, **self.reward_kwargs)
        except (ImportError, AttributeError, TypeError) as error:
            raise ValueError(
                f"reward {self.reward!r} cannot be called with its reward_kwargs: {error}"
            ) from None
        return self


class JsonlConfig(vf.TasksetConfig):
    """Config of the `jsonl` taskset."""

    path: Path
    """File with one JSON object per line, relative to the working directory. The fields of verifiers' `TaskData`
    (`prompt`, `system_prompt`, `id`, ...) keep their meaning. All others are passed to the reward function.
    `braid sft` trains on `demonstration`."""
    prompt_key: str = "prompt"
    """Name of the field with the prompt: a string or a list of chat messages."""
    split: Split | Literal["all"] = "all"
    """Part of the lines to use. A hash of the prompt decides the split: one line in four is held out."""
    task: SerializeAsAny[JsonlTaskConfig] = JsonlTaskConfig()
    """Config of the reward."""


class JsonlData(vf.TaskData):
    """One line of the file. Fields unknown to `TaskData` are attributes as well."""

    model_config = ConfigDict(extra="allow", frozen=True)


class JsonlTask(vf.Task[JsonlData, vf.State, JsonlTaskConfig]):
    """Task graded by the configured function."""

    @vf.reward
    async def graded(self, trace: vf.Trace) -> float:
        """Return the result of the configured function."""
        result = reward_function(self.config.reward)(self.data, trace, **self.config.reward_kwargs)
        return reward_of(await result if inspect.isawaitable(result) else result, self.config.reward)


class JsonlTaskset(vf.Taskset[JsonlTask, JsonlConfig]):
    """Lines of a file in order."""

    def load(self) -> Iterator[JsonlTask]:
        path, split = self.config.path, self.config.split
        if not path.is_file():
            raise FileNotFoundError(
                f"jsonl: path {path} is not a file; give a path relative to the working directory {Path.cwd()}"
            )
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
            raise ValueError(
                f"{where} is not a JSON object with a field {key!r}; set prompt_key to the field with the prompt"
            )
        try:
            return JsonlData.model_validate({**record, "prompt": record[key]})
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            field = ".".join(map(str, first["loc"]))
            raise ValueError(f"{where}: field {field} is invalid: {first['msg']}") from None
