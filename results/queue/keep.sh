#!/usr/bin/env bash
# Bring what the queue in FOLDER has finished into results/, with the long run's checkpoint: keep.sh FOLDER
set -euo pipefail
shopt -s nullglob
folder=$(realpath "${1:?usage: bash results/queue/keep.sh FOLDER}")
here=$(cd "$(dirname "$0")/../.." && pwd)
cp "$folder"/code/results/cifar10-resnet20-cpu.jsonl "$here/results/" 2>/dev/null || true
cp "$folder"/code/results/tuning/cifar10-resnet8.jsonl "$here/results/tuning/" 2>/dev/null || true
(cd "$here" && .venv/bin/python -m reproduce.migrate results/*.jsonl results/tuning/*.jsonl && .venv/bin/python -m benchmarks.tuning)
run=$folder/runs/resnet20-dpf90-paper kept=$here/results/queue/long
if [ -f "$run/result.json" ]; then
    cp "$folder/machines.jsonl" "$run/"
    (cd "$here" && .venv/bin/python -m reproduce.migrate "$run/result.json" \
        && .venv/bin/python -m benchmarks.collect "$run" -o results/cifar10-resnet20.jsonl)
    rm -rf "$kept"
    echo "the long run is finished and recorded; its checkpoint is removed"
else
    mkdir -p "$kept"
    cp "$run"/{checkpoint.pt,metrics.jsonl} "$folder/machines.jsonl" "$kept/"
    cp "$run/recipe.toml" "$kept/recipe.txt"  # under another name: it is not a run of the present code
    echo "kept the long run at epoch $(wc -l < "$kept/metrics.jsonl")"
fi
