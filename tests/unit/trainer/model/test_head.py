"""The chunked head (log-probs, entropies and candidates), compared with plain autograd on full logits."""

from itertools import product

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from braidrl.trainer.model import forward
from braidrl.trainer.model.forward import LMHead, TokenOutputs, head_logprobs

ENTRIES, HIDDEN, VOCABULARY = 7, 5, 11
TOLERANCES = {torch.float64: 1e-12, torch.float32: 1e-5}
PRECISIONS = pytest.mark.parametrize("dtype", TOLERANCES)


class Case:
    """Random head, entries with temperatures, and output gradients.

    `candidates` has repetitions and padding. The tensors in `inputs` require gradients.
    """

    def __init__(self, dtype: torch.dtype, entries: int = ENTRIES, biased: bool = False, **head) -> None:
        generator = torch.Generator().manual_seed(0)

        def normal(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)

        self.hidden, weight, bias = normal(entries, HIDDEN), normal(VOCABULARY, HIDDEN), normal(VOCABULARY)
        self.inputs = [self.hidden, weight, *([bias] if biased else [])]
        for tensor in self.inputs:
            tensor.requires_grad_()
        self.head = LMHead(weight, bias if biased else None, **head)
        self.targets = torch.randint(VOCABULARY, (entries,), generator=generator)
        self.temperature = (0.3 + 2 * torch.rand(entries, generator=generator)).to(dtype)
        self.candidates = torch.randint(-1, VOCABULARY, (entries, 2 * VOCABULARY), generator=generator)
        self.gradients = TokenOutputs(normal(entries), normal(entries), normal(*self.candidates.shape))

    def ours(self) -> TokenOutputs:
        return head_logprobs(
            self.hidden, self.head, self.targets, self.temperature, candidates=self.candidates
        )

    def plain(self) -> TokenOutputs:
        """Compute the outputs with plain autograd and a loop over the candidates."""
        logits = self.hidden @ self.head.weight.T
        logits = (logits if self.head.bias is None else logits + self.head.bias) * self.head.scale
        if self.head.softcap is not None:
            logits = self.head.softcap * torch.tanh(logits / self.head.softcap)
        whole = (logits / self.temperature[:, None]).log_softmax(-1)
        entries = range(len(whole))
        picked = [
            whole[entry, v] if v >= 0 else whole.new_zeros(())
            for entry in entries
            for v in self.candidates[entry].tolist()
        ]
        picked = torch.stack(picked) if picked else whole.new_zeros(0)
        entropy = -(whole.exp() * whole).sum(-1)
        return TokenOutputs(whole[entries, self.targets], entropy, picked.view(self.candidates.shape))


def assert_close(seen: Tensor, wanted: Tensor) -> None:
    """Assert equality up to the tolerance of the dtype, relative to the largest element."""
    tolerance = TOLERANCES[wanted.dtype]
    largest = wanted.detach().abs().max().item() if wanted.numel() else 0.0
    torch.testing.assert_close(seen, wanted, rtol=tolerance, atol=tolerance * largest)


def assert_gradients_agree(case: Case, used: tuple[bool, ...] = (True, True, True)) -> None:
    """Assert that the gradients of the outputs selected by `used` equal those of plain autograd."""

    def gradient(outputs: TokenOutputs) -> tuple[Tensor, ...]:
        terms = zip(outputs, case.gradients, used, strict=True)
        loss = sum((output * above).sum() for output, above, use in terms if use)
        return torch.autograd.grad(loss, case.inputs)

    for mine, theirs in zip(gradient(case.ours()), gradient(case.plain()), strict=True):
        assert_close(mine, theirs)


HEADS = [
    {},
    {"biased": True},
    {"scale": 0.7},
    {"softcap": 3.0},
    {"biased": True, "scale": 0.7, "softcap": 3.0},
]


@PRECISIONS
@pytest.mark.parametrize("head", HEADS, ids=str)
@pytest.mark.parametrize("chunk", [1, 3 * VOCABULARY, 1 << 20])
def test_values_and_gradients_equal_the_whole(monkeypatch, dtype, head, chunk):
    """Chunks of one entry, of three (the last has one), and a single chunk."""
    monkeypatch.setattr(forward, "CHUNK_ELEMENTS", chunk)
    case = Case(dtype, **head)
    for mine, theirs in zip(case.ours(), case.plain(), strict=True):
        assert mine.dtype == dtype
        assert_close(mine, theirs)
    assert_gradients_agree(case)


@PRECISIONS
@pytest.mark.parametrize("used", [used for used in product([False, True], repeat=3) if any(used)])
def test_any_of_the_outputs_may_be_used(dtype, used):
    assert_gradients_agree(Case(dtype, biased=True, softcap=3.0), used)


@PRECISIONS
def test_all_of_the_vocabulary_as_candidates(dtype):
    """With the whole vocabulary as candidates, in any order, probabilities sum to 1, and -sum p log p equals the
    entropy, gradient included."""
    case = Case(dtype)
    case.candidates = torch.randperm(VOCABULARY).expand(ENTRIES, -1)
    case.gradients = case.gradients._replace(head_logprobs=torch.ones(ENTRIES, VOCABULARY, dtype=dtype))
    assert_gradients_agree(case)
    outputs = case.ours()
    p = outputs.head_logprobs.exp()
    assert_close(p.sum(-1), torch.ones(ENTRIES, dtype=dtype))
    entropy = -(p * outputs.head_logprobs).sum(-1)
    assert_close(outputs.entropy, entropy)
    ours, theirs = (
        torch.autograd.grad(h.sum(), case.inputs, retain_graph=True) for h in (outputs.entropy, entropy)
    )
    for mine, wanted in zip(ours, theirs, strict=True):
        assert_close(mine, wanted)


@pytest.mark.parametrize("candidates", [None, 0, 4])
@pytest.mark.parametrize("entries", [0, 3])
def test_there_may_be_no_entry_and_no_candidate(entries, candidates):
    case = Case(torch.float64, entries)
    case.candidates = None if candidates is None else case.candidates[:, :candidates]
    outputs = case.ours()
    assert outputs.logprobs.shape == outputs.entropy.shape == (entries,)
    if candidates is None:
        assert outputs.head_logprobs is None
        outputs = outputs[:2]
    else:
        assert outputs.head_logprobs.shape == (entries, candidates)
    gradient = torch.autograd.grad(sum(output.sum() for output in outputs), case.inputs)
    assert entries or not any(part.any() for part in gradient)


def test_pads_are_zero_and_take_no_gradient():
    """Also for infinite output gradients, since 0 times infinity would be NaN."""
    case = Case(torch.float64)
    assert (case.candidates < 0).any(1).any()
    case.gradients.head_logprobs[case.candidates < 0] = torch.inf
    outputs = case.ours()
    assert not outputs.head_logprobs[case.candidates < 0].any()
    outputs = outputs.head_logprobs
    ours = torch.autograd.grad(outputs, case.inputs, case.gradients.head_logprobs)
    case.gradients.head_logprobs[case.candidates < 0] = 0
    wanted = torch.autograd.grad(case.plain().head_logprobs, case.inputs, case.gradients.head_logprobs)
    for mine, theirs in zip(ours, wanted, strict=True):
        assert_close(mine, theirs)


@PRECISIONS
def test_tokens_that_a_bias_rules_out_do_not_matter(dtype):
    """A log-prob of -inf means probability 0: entropy and gradients equal those without the token."""
    case, less = Case(dtype, biased=True), Case(dtype, biased=True)
    allowed = VOCABULARY - 3
    with torch.no_grad():
        case.head.bias[allowed:] = -torch.inf
    less.inputs = [less.hidden, *(tensor.detach()[:allowed].requires_grad_() for tensor in less.inputs[1:])]
    less.head = LMHead(*less.inputs[1:])
    for one in (case, less):
        one.targets, one.candidates = one.targets % allowed, one.candidates % allowed
    assert_close(case.ours().entropy, less.plain().entropy)
    loss, wanted_loss = (
        sum((output * above).sum() for output, above in zip(outputs, case.gradients, strict=True))
        for outputs in (case.ours(), less.plain())
    )
    ours, wanted = torch.autograd.grad(loss, case.inputs), torch.autograd.grad(wanted_loss, less.inputs)
    assert_close(ours[0], wanted[0])
    for mine, theirs in zip(ours[1:], wanted[1:], strict=True):
        assert_close(mine[:allowed], theirs)
        assert not mine[allowed:].any()
    case.targets[0] = VOCABULARY - 1
    assert case.ours().logprobs[0] == -torch.inf


@PRECISIONS
def test_entropy_and_its_gradient_are_the_worked_ones(worked_cases, dtype):
    cases = worked_cases["entropy"]
    logits, wanted = (
        torch.tensor([values[key] for values in (case[group] for case in cases)], dtype=dtype)
        for group, key in (("inputs", "logits"), ("expected", "grad_logits"))
    )
    logits.requires_grad_()
    entropy = head_logprobs(
        logits,
        LMHead(torch.eye(logits.shape[1], dtype=dtype), None),
        torch.zeros(len(logits), dtype=torch.int64),
        torch.ones(len(logits), dtype=dtype),
    ).entropy
    assert_close(entropy, torch.tensor([case["expected"]["entropy"] for case in cases], dtype=dtype))
    assert_close(torch.autograd.grad(entropy.sum(), logits)[0], wanted)


def test_temperature_divides_the_logits():
    """For logits [0, 1] at temperature 0.5, log softmax([0, 2])[0] = -2.127."""
    head, candidates = LMHead(torch.eye(2), None), torch.tensor([[0, 1]])
    outputs = head_logprobs(
        torch.tensor([[0.0, 1.0]]), head, torch.tensor([0]), torch.tensor([0.5]), candidates=candidates
    )
    assert outputs.logprobs.item() == pytest.approx(-2.126928)
    assert outputs.entropy.item() == pytest.approx(0.365335, rel=1e-5)
    assert outputs.head_logprobs.tolist() == [pytest.approx([-2.126928, -0.126928])]


def test_an_entropy_that_is_not_used_costs_nothing(monkeypatch):
    """The backward pass receives None for unused outputs. Zeros would cost products over the whole vocabulary."""
    seen = []
    wrapped = forward._logit_gradient
    monkeypatch.setattr(
        forward, "_logit_gradient", lambda *given: seen.append(given[-1] is None) or wrapped(*given)
    )
    case = Case(torch.float32)
    case.ours().logprobs.sum().backward()
    case.ours().entropy.sum().backward()
    assert seen == [True, False]


def test_bfloat16_factors_keep_logits_and_softmax_in_float32():
    """Rounded logits of size 20 would have errors up to 0.06, and their softmax would not sum to 1."""
    # bfloat16 represents these factors exactly, but not the sums of their products.
    hidden, head = 20 * torch.eye(64) + 0.125, LMHead(torch.eye(64) + 2**-7, None)
    targets, temperature, candidates = torch.arange(64).roll(1), torch.ones(64), torch.arange(64)[:, None]
    exact, rounded = (
        head_logprobs(hidden, head, targets, temperature, dtype, candidates)
        for dtype in (torch.float32, torch.bfloat16)
    )
    for mine, theirs in zip(rounded, exact, strict=True):
        assert mine.dtype == torch.float32
        torch.testing.assert_close(mine, theirs, rtol=1e-6, atol=1e-12)


class LargestTensor(TorchDispatchMode):
    """Records the maximum number of elements of any created tensor, including backward passes."""

    elements = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        made = function(*args, **(kwargs or {}))
        sizes = [leaf.numel() for leaf in tree_leaves(made) if isinstance(leaf, Tensor)]
        self.elements = max(self.elements, *sizes, 0)
        return made


@pytest.mark.slow
def test_no_tensor_of_a_large_vocabulary_spans_the_row():
    """With a vocabulary of 32,000 and 2,048 entries, entropies and candidates included, the largest tensor is a
    chunk."""
    generator, entries, vocabulary = torch.Generator().manual_seed(0), 2048, 32_000
    hidden = torch.randn(entries, 16, generator=generator).requires_grad_()
    weight = torch.randn(vocabulary, 16, generator=generator).requires_grad_()
    targets = torch.randint(vocabulary, (entries,), generator=generator)
    candidates = torch.randint(vocabulary, (entries, 8), generator=generator)
    with LargestTensor() as chunked:
        ours = head_logprobs(
            hidden, LMHead(weight, None), targets, torch.ones(entries), candidates=candidates
        )
        gradients = torch.autograd.grad(sum(output.mean() for output in ours), (hidden, weight))
    assert chunked.elements <= forward.CHUNK_ELEMENTS < entries * vocabulary / 7
    with LargestTensor() as whole:
        log_p = (hidden @ weight.T).log_softmax(-1)
        entropy = -(log_p.exp() * log_p).sum(-1)
        plain = TokenOutputs(log_p[range(entries), targets], entropy, log_p.gather(-1, candidates))
        wanted = torch.autograd.grad(sum(output.mean() for output in plain), (hidden, weight))
    assert whole.elements == entries * vocabulary
    for mine, theirs in zip((*ours, *gradients), (*plain, *wanted), strict=True):
        assert_close(mine, theirs)
