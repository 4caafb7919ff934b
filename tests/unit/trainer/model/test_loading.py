"""Loading of architectures that can be packed exactly, errors for others, and lossless saving."""

from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from braidrl.configs.model import ModelConfig
from braidrl.packing import pack
from braidrl.trainer.model.forward import LMHead, to_device, token_logprobs
from braidrl.trainer.model.loading import load_model, pack_exactly, save_model
from braidrl.transport.types import TrainingSample


@pytest.fixture
def model(tiny_model_dir: Path) -> PreTrainedModel:
    return load_model(ModelConfig(path=str(tiny_model_dir)), "cpu")


def test_a_tied_model_survives_training_and_saving(model, tiny_model_dir, tmp_path):
    length = 12
    sample = TrainingSample(
        token_ids=np.arange(40, 40 + length, dtype=np.int32),
        mask=np.zeros(length, bool),
        sampling_logprobs=np.zeros(length, np.float32),
        ce_weights=(np.arange(length) > 0).astype(np.float32),
    )
    micro = to_device(pack([sample], max_tokens=64)[0], "cpu")
    token_logprobs(model, micro).logprobs.sum().backward()
    torch.optim.SGD(model.parameters(), lr=0.01).step()
    save_model(model, tiny_model_dir, tmp_path / "saved", torch.float32)
    elsewhere = AutoModelForCausalLM.from_pretrained(tmp_path / "saved")
    assert elsewhere.lm_head.weight is elsewhere.model.embed_tokens.weight
    assert elsewhere.config.dtype == torch.float32
    assert "braid" not in (tmp_path / "saved" / "config.json").read_text()
    ids = torch.from_numpy(sample.token_ids).long()
    theirs = elsewhere(input_ids=ids[None]).logits[0, :-1].log_softmax(-1).gather(-1, ids[1:, None])[:, 0]
    torch.testing.assert_close(theirs, token_logprobs(model, micro).logprobs, rtol=1e-5, atol=1e-5)
    before, after = (AutoTokenizer.from_pretrained(path) for path in (tiny_model_dir, tmp_path / "saved"))
    messages = [{"role": "user", "content": "hi"}]
    assert before.apply_chat_template(messages) == after.apply_chat_template(messages)


def test_weights_are_saved_in_the_published_type(model, tiny_model_dir, tmp_path):
    save_model(model, tiny_model_dir, tmp_path / "saved", torch.bfloat16)
    elsewhere = AutoModelForCausalLM.from_pretrained(tmp_path / "saved")
    assert elsewhere.dtype == torch.bfloat16
    assert model.dtype == torch.float32
    for (name, ours), theirs in zip(model.named_parameters(), elsewhere.parameters(), strict=True):
        assert torch.equal(ours.bfloat16(), theirs), name


SMALL = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def build(family: str, **settings) -> PreTrainedModel:
    torch.manual_seed(0)
    config = getattr(transformers, f"{family}Config")(**SMALL | settings)
    return AutoModelForCausalLM.from_config(config, dtype=torch.float32)


@pytest.mark.parametrize(
    ("family", "settings"),
    [
        ("Llama", {"attention_dropout": 0.5}),
        ("Qwen2", {}),
        ("Mistral", {"sliding_window": 4096}),
        ("Gemma2", {"attn_logit_softcapping": None, "final_logit_softcapping": 1.0, "head_dim": 8}),
        ("Cohere", {"logit_scale": 4.0}),
        ("Granite", {"logits_scaling": 0.25}),
        ("GPT2", {"n_embd": 32, "n_layer": 2, "n_head": 4, "resid_pdrop": 0.5}),
        ("Phi", {}),
        ("Mixtral", {"num_local_experts": 4}),
    ],
)
def test_other_architectures_pass_the_probe(family, settings):
    """The probe compares packed with plain log-probs. Heads with scales, caps and biases are supported."""
    model = pack_exactly(build(family, **settings), longest_path=512)
    assert model.training


@pytest.mark.parametrize(
    ("family", "settings", "message"),
    [
        ("Mistral", {"sliding_window": 128}, "sliding window of 128 tokens, but samples may have 512"),
        ("Gemma2", {"head_dim": 8}, "does not support softcap"),
        ("GptOss", {"num_local_experts": 4, "sliding_window": 4096, "head_dim": 8}, "does not support s_aux"),
        ("Mamba", {}, "linear_attention layers"),
        ("Lfm2", {"layer_types": ["conv", "full_attention"]}, "conv layers"),
        ("Bloom", {"n_layer": 2, "n_head": 4}, "0 of its 2 layers use forest attention"),
    ],
)
def test_architectures_that_cannot_be_packed_are_refused(family, settings, message):
    with pytest.raises(ValueError, match=message):
        pack_exactly(build(family, **settings), longest_path=512)


def test_a_head_that_is_not_known_is_refused(monkeypatch):
    """Any difference between the plain and the packed forward, here an ignored logit scale, fails the probe."""
    monkeypatch.setattr(LMHead, "of", classmethod(lambda cls, model: cls(model.lm_head.weight, None)))
    with pytest.raises(ValueError, match="packed log-probs differ"):
        pack_exactly(build("Cohere", logit_scale=4.0))
