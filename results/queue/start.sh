#!/usr/bin/env bash
# Restart the trainings behind results/ on any machine: bash results/queue/start.sh FOLDER
#
# FOLDER gets two clones of this repository with environments of their own, so that work here disturbs no training:
#   FOLDER/long   the paper's 300-epoch training, with the code it was started with, from the checkpoint kept here
#   FOLDER/code   everything else (python -m benchmarks.queue), with the code and without the records that are here
# Both run under nice on one thread each. The same command continues them after any interruption; stop them with Ctrl-C.
# REGROW_DATA must name the folder that holds cifar10/*.parquet. `python -m benchmarks.keep FOLDER` brings results here.
set -euo pipefail

main() {  # a function, so that a script that changes while it runs, as after git pull, is not read again
    folder=$(realpath -m "${1:?usage: bash results/queue/start.sh FOLDER}")
    : "${REGROW_DATA:?set REGROW_DATA to the folder that holds cifar10/*.parquet}"
    REGROW_DATA=$(realpath "$REGROW_DATA")
    export REGROW_DATA
    cd "$(dirname "$0")/../.."

    if [ ! -d "$folder/code" ]; then  # renamed when it is complete, because an interrupted one would be taken for it
        rm -rf "$folder/.code.partial"
        git clone --quiet . "$folder/.code.partial"
        mv "$folder/.code.partial" "$folder/code"
    fi
    make -C "$folder/code" install  # nothing if the environment is complete

    # Keep freed memory and use huge pages: allocating the activations again in every step costs a fifth of the time.
    export GLIBC_TUNABLES=glibc.malloc.hugetlb=1 MALLOC_MMAP_MAX_=0 MALLOC_TOP_PAD_=268435456
    export MALLOC_TRIM_THRESHOLD_=100000000000
    exec nice -n 10 "$folder/code/.venv/bin/python" -m benchmarks.start "$folder"
}

main "$@"
