"""Demonstrations: conversations in, training samples with cross-entropy weights out."""

import logging
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from itertools import count, zip_longest

import numpy as np
from renderers import Message, Renderer

from braidrl.configs.sft import SFTConfig, SFTDataConfig
from braidrl.trainer.sft.conversations import Conversation, load_conversations
from braidrl.transport.types import TrainingSample

logger = logging.getLogger(__name__)

MAX_DROPPED = 1000
"""Conversations of an endless source that may be too long one after another."""


class Demonstrations:
    """An endless stream of batches. Of several sources, every conversation comes from one that is drawn by weight."""

    def __init__(self, config: SFTConfig, renderer: Renderer) -> None:
        self.batch_size = config.batch_size
        self.sources = [Source(data, renderer, config.seq_len, config.seed) for data in config.data]
        weights = np.array([data.weight for data in config.data])
        self._shares = weights / weights.sum()
        self._generator = np.random.default_rng(config.seed)

    @property
    def dropped(self) -> int:
        """Conversations that were too long, so far."""
        return sum(source.dropped for source in self.sources)

    def next_batch(self) -> list[TrainingSample]:
        """The next `batch_size` samples; batches may span epochs."""
        drawn = self._generator.choice(len(self.sources), self.batch_size, p=self._shares)
        return [next(self.sources[index].samples) for index in drawn]


class Source:
    """An endless stream of samples: a finite source is shuffled for every epoch, an endless one is read on.

    Each conversation is tokenised once. One that is longer than `seq_len` tokens is dropped and counted.
    """

    def __init__(self, config: SFTDataConfig, renderer: Renderer, seq_len: int, seed: int) -> None:
        self.renderer = renderer
        self.seq_len = seq_len
        self.seed = seed
        self.name = config.name
        self.all_roles = config.all_roles
        self.dropped = 0
        conversations = load_conversations(config)
        if isinstance(conversations, Sequence):
            self.samples = self._epochs(conversations)
        else:
            self.samples = self._endless(conversations)

    def _epochs(self, conversations: Sequence[Conversation]) -> Iterator[TrainingSample]:
        samples: dict[int, TrainingSample | None] = {}
        for epoch in count():
            for index in np.random.default_rng([self.seed, epoch]).permutation(len(conversations)):
                if index not in samples:
                    samples[index] = self._sample(conversations[index])
                if (sample := samples[index]) is not None:
                    yield sample
            if not any(samples.values()):
                raise ValueError(self._nothing_left(len(conversations)))

    def _endless(self, conversations: Iterable[Conversation]) -> Iterator[TrainingSample]:
        too_long = 0
        for conversation in conversations:
            if (sample := self._sample(conversation)) is not None:
                too_long = 0
                yield sample
            elif (too_long := too_long + 1) == MAX_DROPPED:
                raise ValueError(self._nothing_left(MAX_DROPPED))

    def _sample(self, conversation: Conversation) -> TrainingSample | None:
        sample = to_sample(self.renderer, conversation, self.name, self.all_roles)
        length = len(sample.token_ids)
        if length <= self.seq_len:
            return sample
        self.dropped += 1
        logger.warning("dropped %s: %d tokens, seq_len is %d", conversation.name, length, self.seq_len)
        return None

    def _nothing_left(self, number: int) -> str:
        return f"none of {number} conversations of {self.name} fits into seq_len ({self.seq_len} tokens); raise seq_len"


def to_sample(
    renderer: Renderer, conversation: Conversation, env: str = "sft", all_roles: bool = False
) -> TrainingSample:
    """Tokens of a conversation with cross-entropy weight 1 on every token that the assistant produces, the
    token that ends its turn included, and 0 on all others; `env` names its source.

    With `all_roles` the content of the other messages weighs 1 as well, but for the conversation's first token,
    which nothing predicts.

    Raises `ValueError` when the assistant says nothing, or content cannot be told from the chat template's.
    """
    token_ids, weights = _attribute(renderer, conversation)
    if not any(weights):
        raise ValueError(f"{conversation.name} has no assistant message to learn; add one or remove it")
    if all_roles:
        content = [False, *_content(renderer, conversation)[1:]]
        weights = [learnt or body for learnt, body in zip_longest(weights, content, fillvalue=False)]
    zeros = np.zeros(len(token_ids), np.float32)
    return TrainingSample(
        token_ids=np.array(token_ids, np.int32),
        mask=np.zeros(len(token_ids), bool),
        sampling_logprobs=zeros,
        ce_weights=np.array(weights, np.float32),
        env=env,
        trace_id=conversation.name,
    )


def _content(renderer: Renderer, conversation: Conversation) -> list[bool]:
    """Mask of the tokens that are content of a message not written by the assistant."""
    messages = conversation.messages
    rendered = renderer.render(messages, tools=conversation.tools)
    if len(rendered.is_content) != len(rendered.token_ids):
        raise ValueError(
            f"{conversation.name}: the chat template does not tell content from layout, so data.all_roles cannot "
            "learn content alone; set renderer.name to its family, such as 'qwen3'"
        )
    owners = zip(rendered.is_content, rendered.message_indices, strict=True)
    return [body and owner >= 0 and messages[owner]["role"] != "assistant" for body, owner in owners]


def _attribute(renderer: Renderer, conversation: Conversation) -> tuple[list[int], list[bool]]:
    """Token ids, and which of them the assistant produces."""
    messages = conversation.messages
    rendered = renderer.render(messages, tools=conversation.tools)
    token_ids, owners = rendered.token_ids, rendered.message_indices
    if len(rendered.sampled_mask) != len(token_ids):
        return token_ids, _attribute_by_prefix(renderer, conversation, token_ids)
    learnt = [
        sampled and owner >= 0 and messages[owner]["role"] == "assistant"
        for sampled, owner in zip(rendered.sampled_mask, owners, strict=True)
    ]
    # what a generation prompt prefills (a header, closed thoughts) is not sampled, whatever a renderer says
    header = _generation_header(renderer)
    starts = (index for index, (last, owner) in enumerate(zip([-1, *owners], owners)) if owner != last)
    for start in starts:
        if token_ids[start : start + len(header)] == header:
            learnt[start : start + len(header)] = [False] * len(header)
    stops = renderer.get_stop_token_ids()
    final = max((index for index, learn in enumerate(learnt) if learn), default=-1)
    if messages[-1]["role"] == "assistant" and token_ids[final] not in stops:
        # in some layouts it is the next message that ends a turn; the last turn has none
        return [*token_ids, stops[0]], [*learnt, True]
    return token_ids, learnt


@cache
def _generation_header(renderer: Renderer) -> list[int]:
    """The tokens that prompt for a turn of the assistant, as far as they follow the conversation."""
    messages: list[Message] = [{"role": "user", "content": "?"}]
    before = renderer.render_ids(messages)
    prompt = renderer.render_ids(messages, add_generation_prompt=True)
    return prompt[len(before) :] if prompt[: len(before)] == before else []


def _attribute_by_prefix(renderer: Renderer, conversation: Conversation, token_ids: list[int]) -> list[bool]:
    """Return the same for a chat template that does not mark sampled tokens: a turn is what follows its generation
    prompt, up to the last stop token. The layout after it is not trained."""
    stops = set(renderer.get_stop_token_ids())
    messages, tools = conversation.messages, conversation.tools
    learnt = [False] * len(token_ids)
    for index, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        prompt = renderer.render_ids(messages[:index], tools=tools, add_generation_prompt=True)
        turn = renderer.render_ids(messages[: index + 1], tools=tools)
        if turn[: len(prompt)] != prompt or token_ids[: len(turn)] != turn:
            raise ValueError(
                f"{conversation.name}: the chat template writes message {index} otherwise than it prompts "
                f"for it, so its tokens cannot be told; set renderer.name to its family, such as 'qwen3'"
            )
        ends = [end for end in range(len(prompt), len(turn)) if turn[end] in stops]
        end = ends[-1] + 1 if ends else len(turn)
        learnt[len(prompt) : end] = [True] * (end - len(prompt))
    return learnt
