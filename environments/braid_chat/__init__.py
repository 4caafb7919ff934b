"""The chat loop as a verifiers harness that runs inside the caller's process: no program is started per
rollout."""

from braid_chat.harness import BraidChatHarness, BraidChatHarnessConfig
from braid_chat.tools import tool, tool_schemas

__all__ = ["BraidChatHarness", "BraidChatHarnessConfig", "tool", "tool_schemas"]
