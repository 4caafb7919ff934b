"""Data that the orchestrator sends to the trainer: flattened training samples.

Arrays are msgpack extensions: one byte of dtype, one byte of rank, little-endian int32 dimensions, raw bytes. Nothing
is pickled.
"""

from typing import Any

import msgspec
import numpy as np

ARRAY_EXTENSION = 1
DTYPES = ("<i4", "<f4", "|b1")


class TrainingSample(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One trainable branch. Entry t of every stream describes token t given the tokens before it; the trainer alone
    shifts. T is the number of tokens, prompt included."""

    token_ids: np.ndarray
    """i32[T]."""
    mask: np.ndarray
    """bool[T]: tokens that the policy (or the frozen source) sampled."""
    sampling_logprobs: np.ndarray
    """f32[T]: log-probs of the sampler (mu) at `mask`, 0 elsewhere."""
    temperature: float = 1.0
    """Sampling temperature; the trainer divides its logits by it."""
    advantages: np.ndarray | None = None
    """f32[T], 0 off `mask`; None: the algorithm assigns no advantage."""
    rl_weights: np.ndarray | None = None
    """f32[T] >= 0; None: 1 on `mask`."""
    ce_weights: np.ndarray | None = None
    """f32[T] >= 0; None: 0 everywhere."""
    ref_kl_weights: np.ndarray | None = None
    """f32[T] >= 0; None: 0 everywhere."""
    ref_logprobs: np.ndarray | None = None
    """f32[T]: log-probs of the reference at `mask`, 0 elsewhere."""
    head_ids: np.ndarray | None = None
    """i32[N, K]: the sampler's most likely tokens at the N positions of `mask`, best first (score centering); -1 pads.
    None: not captured, or no token is a member of rl."""
    head_logprobs: np.ndarray | None = None
    """f32[N, K]: their log-probs in the sampler's distribution over the whole vocabulary; -inf pads."""
    env: str = ""
    """Name of the training source."""
    agent: str = ""
    """Name of the agent that sampled it."""
    group_id: str = ""
    """Episodes of one task that were compared; siblings may share a prompt segment."""
    episode_id: str = ""
    """The episode that it was cut from."""
    trace_id: str = ""
    """The trace that it was cut from."""
    branch: int = 0
    """Index of the branch in its trace."""
    reward: float = 0.0
    """Reward of its trace."""
    version_start: int = 0
    """Oldest policy version that sampled one of its tokens."""
    version_end: int = 0
    """Newest policy version that sampled one of its tokens."""


class TrainingBatch(msgspec.Struct, kw_only=True):
    """All samples of one optimizer step, in dispatch order."""

    step: int
    """1-based optimizer step that consumes it."""
    samples: list[TrainingSample]


def encode(value: Any) -> bytes:
    """Encode a struct of this module as msgpack."""
    return _ENCODER.encode(value)


def decode_batch(data: bytes) -> TrainingBatch:
    """Decode a `TrainingBatch`; raises `msgspec.ValidationError` on anything else."""
    return _BATCH_DECODER.decode(data)


def _encode_array(array: Any) -> msgspec.msgpack.Ext:
    if not isinstance(array, np.ndarray):
        raise NotImplementedError(f"cannot send a {type(array).__name__}")
    dtype = array.dtype.newbyteorder("<") if array.dtype.kind in "if" else array.dtype
    if dtype.str not in DTYPES:
        raise TypeError(f"cannot send an array of {array.dtype}; streams are int32, float32 or bool")
    header = bytes([DTYPES.index(dtype.str), array.ndim]) + np.asarray(array.shape, "<i4").tobytes()
    return msgspec.msgpack.Ext(ARRAY_EXTENSION, header + np.ascontiguousarray(array, dtype).tobytes())


def _decode_array(code: int, data: memoryview) -> np.ndarray:
    if code != ARRAY_EXTENSION:
        raise ValueError(f"unknown extension {code}; expected {ARRAY_EXTENSION} (an array)")
    start = 2 + 4 * data[1]
    shape = np.frombuffer(data[2:start], "<i4")
    # the copy makes the array aligned and writable, as torch wants it
    return np.frombuffer(data[start:], DTYPES[data[0]]).reshape(shape).copy()


_ENCODER = msgspec.msgpack.Encoder(enc_hook=_encode_array)
_BATCH_DECODER = msgspec.msgpack.Decoder(TrainingBatch, ext_hook=_decode_array)
