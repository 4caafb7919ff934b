"""A harness that runs commands in the agent's runtime, like coding agents, without calling a model."""

import verifiers.v1 as vf
from verifiers.v1.runtimes import ProgramResult, Runtime

__all__ = ["StubHarness"]


class StubHarnessConfig(vf.HarnessConfig):
    commands: tuple[str, ...] = ()
    """Commands, run in order."""


class StubHarness(vf.Harness[StubHarnessConfig]):
    NEEDS_CONTAINER = False

    async def launch(
        self,
        ctx: vf.ModelContext,
        trace: vf.Trace,
        runtime: Runtime,
        endpoint: str,
        secret: str,
        mcp_urls: dict[str, str],
        data: vf.TaskData,
    ) -> ProgramResult:
        for command in self.config.commands:
            await runtime.run(["sh", "-c", command], {})
        return ProgramResult(exit_code=0, stdout="", stderr="")
