"""A verifiers harness that runs the chat loop in the caller's process, without starting a program per rollout."""

from braid_chat.harness import BraidChatHarness, BraidChatHarnessConfig
from braid_chat.tools import tool, tool_schemas

__all__ = ["BraidChatHarness", "BraidChatHarnessConfig", "tool", "tool_schemas"]
