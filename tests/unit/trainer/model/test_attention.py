"""Forest attention compared with a dense mask: values, gradients, dtypes, and errors."""

import pytest
import torch
from torch.nn.attention.flex_attention import flex_attention
from transformers import AttentionInterface

from braidrl.packing import Segment
from braidrl.trainer.model.attention import NAME, Forest, forest_attention

FORESTS = {
    "one": [Segment(0, 5, None)],
    "flat": [Segment(0, 4, None), Segment(4, 1, None), Segment(5, 6, None)],
    "siblings": [Segment(0, 6, None), Segment(6, 3, 0), Segment(9, 5, 0), Segment(14, 1, 0)],
    "deep": [
        *(Segment(0, 3, None), Segment(3, 2, 0), Segment(5, 4, 1), Segment(9, 1, 1), Segment(10, 2, 0)),
        *(Segment(12, 2, None), Segment(14, 3, 5)),
    ],
}


def visible(segments: list[Segment]) -> torch.Tensor:
    """Return the dense mask bool[T, T] by definition."""
    length = sum(segment.length for segment in segments)
    mask = torch.zeros(length, length, dtype=torch.bool)
    for index, segment in enumerate(segments):
        rows = slice(segment.start, segment.start + segment.length)
        mask[rows, rows] = torch.ones(segment.length, segment.length).tril().bool()
        ancestor = segments[index].parent
        while ancestor is not None:
            start, length, parent = segments[ancestor]
            mask[rows, start : start + length] = True
            ancestor = parent
    return mask


def dense(query, key, value, mask, scale):
    groups = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    scores = (query @ key.transpose(-1, -2) * scale).masked_fill(~mask, -torch.inf)
    return scores.softmax(-1) @ value


def random_heads(length: int, dtype: torch.dtype, value_width: int = 8) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = [(1, 6, length, 8), (1, 2, length, 8), (1, 2, length, value_width)]
    return [torch.randn(shape, generator=generator, dtype=dtype).requires_grad_() for shape in shapes]


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("name", FORESTS)
def test_block_mask_of_flex_attention(name):
    """The mask used on a GPU, evaluated with flex attention's reference implementation."""
    forest, mask = Forest(FORESTS[name]), visible(FORESTS[name])
    heads = [head.detach() for head in random_heads(forest.length, torch.float32)]
    ours = flex_attention(
        *heads, block_mask=forest.block_mask(torch.device("cpu")), scale=0.3, enable_gqa=True
    )
    torch.testing.assert_close(ours, dense(*heads, mask, 0.3), rtol=1e-5, atol=1e-6)
    assert forest.longest_path == mask.sum(-1).max()


@pytest.mark.parametrize("name", FORESTS)
@pytest.mark.parametrize("value_width", [8, 5])
def test_equals_dense_attention(name, value_width):
    forest = Forest(FORESTS[name])
    heads = random_heads(forest.length, torch.float64, value_width)
    ours = forest_attention(*heads, forest, 0.3)
    wanted = dense(*heads, visible(FORESTS[name]), 0.3)
    torch.testing.assert_close(ours, wanted, rtol=1e-12, atol=1e-12)
    direction = torch.randn(ours.shape, generator=torch.Generator().manual_seed(1), dtype=ours.dtype)
    for mine, theirs in zip(
        torch.autograd.grad(ours, heads, direction),
        torch.autograd.grad(wanted, heads, direction),
        strict=True,
    ):
        torch.testing.assert_close(mine, theirs, rtol=1e-11, atol=1e-12)


def test_bfloat16_is_rounded_only_at_its_ends():
    forest = Forest(FORESTS["deep"])
    heads = [head.detach().bfloat16() for head in random_heads(forest.length, torch.float32)]
    exact = forest_attention(*(head.float() for head in heads), forest)
    ours = forest_attention(*heads, forest)
    assert ours.dtype == torch.bfloat16
    assert torch.equal(ours, exact.bfloat16())


def test_a_row_of_another_length_is_an_error():
    with pytest.raises(ValueError, match="forest of 5 tokens"):
        forest_attention(*random_heads(6, torch.float32), Forest(FORESTS["one"]))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "without `forest`"),
        ({"forest": Forest(FORESTS["one"]), "softcap": 50.0}, "does not support softcap"),
        ({"forest": Forest(FORESTS["one"]), "s_aux": torch.zeros(6)}, "does not support s_aux"),
        ({"forest": Forest(FORESTS["one"]), "dropout": 0.1}, "attention dropout"),
        ({"forest": Forest(FORESTS["one"]), "sliding_window": 4}, "longer than the sliding window of 4"),
    ],
)
def test_refuses_what_it_does_not_compute(arguments, message):
    interface = AttentionInterface()[NAME]
    with pytest.raises(ValueError, match=message):
        interface(torch.nn.Identity(), *random_heads(5, torch.float32), None, **arguments)


def test_a_window_that_holds_every_sample_is_full_attention():
    interface, forest = AttentionInterface()[NAME], Forest(FORESTS["one"])
    heads = random_heads(5, torch.float32)
    output, _ = interface(torch.nn.Identity(), *heads, None, forest=forest, sliding_window=5)
    assert torch.equal(output, forest_attention(*heads, forest).transpose(1, 2))
