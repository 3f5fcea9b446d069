#!/usr/bin/env bash
# Restart the trainings behind results/ on any machine: bash results/queue/start.sh FOLDER
#
# FOLDER gets two clones of this repository with environments of their own, so that work here disturbs no training:
#   FOLDER/long   the paper's 300-epoch training, with the code it was started with, from the checkpoint kept here
#   FOLDER/code   everything else (python -m benchmarks.queue), with the present code; skips what results/ holds
# Both run under nice on one thread each. The same command continues them after any interruption; stop them with Ctrl-C.
# REGROW_DATA must name the folder that holds cifar10/*.parquet.
set -euo pipefail
folder=$(realpath -m "${1:?usage: bash results/queue/start.sh FOLDER}")
: "${REGROW_DATA:?set REGROW_DATA to the folder that holds cifar10/*.parquet}"
here=$(cd "$(dirname "$0")/../.." && pwd)
kept=$here/results/queue/long
long_commit=20b086a408ac96c17131413c2e111857b5d09598

clone() {  # clone NAME [COMMIT]: a clone with an environment, made once
    if [ ! -d "$folder/$1" ]; then
        git clone --quiet "$here" "$folder/$1"
        if [ -n "${2:-}" ]; then git -C "$folder/$1" checkout --quiet "$2"; fi
        make -C "$folder/$1" install
    fi
}

# Keep freed memory and use huge pages: allocating the activations again in every step costs a fifth of the time.
export GLIBC_TUNABLES=glibc.malloc.hugetlb=1 MALLOC_MMAP_MAX_=0 MALLOC_TOP_PAD_=268435456
export MALLOC_TRIM_THRESHOLD_=100000000000

main() {  # a function, so that a script that changes while it runs, as after git pull, is not read again
    mkdir -p "$folder/runs"
    if [ ! -f "$here/results/cifar10-resnet20.jsonl" ]; then start_long; fi
    clone code
    (
        cd "$folder/code"
        exec nice -n 10 .venv/bin/python -m benchmarks.queue "$folder/runs/cpu"
    ) > "$folder/code.log" 2>&1 &
    trap 'kill $(jobs -p)' INT TERM  # a shell lets its background processes ignore Ctrl-C
    echo "training in $folder/runs; see long.log and code.log there. Records: $folder/code/results"
    wait || wait  # a signal ends the first one; the trainings then save their state
}

start_long() {  # the paper's 300-epoch training, until it is recorded
    clone long "$long_commit"
    run=$folder/runs/resnet20-dpf90-paper
    if [ ! -d "$run" ] && [ -f "$kept/checkpoint.pt" ]; then
        mkdir -p "$run"
        cp "$kept"/{checkpoint.pt,metrics.jsonl} "$run/"
        cp "$kept/recipe.txt" "$run/recipe.toml"
        cp "$kept/machines.jsonl" "$folder/"
    fi
    # The record of the long run names every machine that it ran on, with the epoch at which each took over.
    epoch=$(cat "$run/metrics.jsonl" 2>/dev/null | wc -l)
    cpu=$(awk -F ' *: *' '/^model name/ {n=$2} /^cpu family/ {f=$2} /^model[ \t]*:/ {m=$2} /^$/ {exit}
        END {print n " (family " f ", model " m ")"}' /proc/cpuinfo)
    printf '{"epoch": %d, "cpu": "%s", "date": "%s"}\n' "$epoch" "$cpu" "$(date -I)" >> "$folder/machines.jsonl"

    (
        cd "$folder/long"
        exec nice -n 10 .venv/bin/regrow train cifar-resnet20 --every 16 --channels-last --threads 1 --out "$run"
    ) > "$folder/long.log" 2>&1 &
}

main
