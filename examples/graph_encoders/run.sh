#!/usr/bin/env bash
# A graph encoder with attributes, from files to ranks, by any engine:
#
#   ./run.sh GRAPH ENTITIES SCHEMA [ENGINE [FLAGS]]
#
#   GRAPH     folder with train.txt, valid.txt and test.txt, names of head, relation and tail separated by tabs
#   ENTITIES  table of the entities' attributes, SCHEMA what its columns are
#   ENGINE    one (kgdist-train, when not given), or a --backend of kgdist-dist-train: local, ssh (the machines of ip_config.txt in
#             this folder), ray, ray-train
#   FLAGS     go to the training, after those below: the later of two equal flags counts
#
# Everything is written into the folder WORK=work; PARTS=2 is how many workers there are; PYTHON=python3 is one that has kgdist.
set -euo pipefail

GRAPH=$1 ENTITIES=$2 SCHEMA=$3 ENGINE=${4:-one}
shift $(($# < 4 ? $# : 4))
WORK=${WORK:-work} PARTS=${PARTS:-2} PYTHON=${PYTHON:-python3}
NAME=$(basename "$GRAPH")
kgdist() { # kgdist partition ... is kgdist-partition ... of that Python
    echo "+ kgdist-${1//_/-} ${*:2}" >&2
    "$PYTHON" -m "kgdist.cli.$1" "${@:2}"
}

mkdir -p "$WORK"
WORK=$(cd "$WORK" && pwd)
GRAPH=$(cd "$GRAPH" && pwd) # files of a data set are looked for below --data_path
graph=(--dataset "$NAME" --data_path "$WORK" --format raw_udd_hrt
    --data_files "$GRAPH/train.txt" "$GRAPH/valid.txt" "$GRAPH/test.txt")
model=(--model_name DistMult --encoder rgcn --num_bases 30 --attributes "$WORK/attributes" --hidden_dim 100 --encoder_dim 100
    --gamma 10 --neg_sample_size 256 --batch_size 8192 --lr 0.1 -adv -rc 0 --max_step 1000 --valid --eval_interval 250 --test
    --save_path "$WORK/ckpts")

[ -d "$WORK/attributes" ] || # of a run before
    kgdist preprocess --entities "$ENTITIES" --schema "$SCHEMA" "${graph[@]}" --out "$WORK/attributes"
if [ "$ENGINE" = one ]; then
    kgdist train "${graph[@]}" "${model[@]}" "$@"
else
    [ -d "$WORK/parts/$NAME" ] ||
        kgdist partition "${graph[@]}" -k "$PARTS" --edges --expand 2 --out "$WORK/parts/$NAME"
    machines=()
    case $ENGINE in
    local)
        for n in $(seq "$PARTS"); do echo "127.0.0.1 $((30800 + 10 * n))"; done >"$WORK/ip_config.txt"
        machines=(--ip_config "$WORK/ip_config.txt")
        ;;
    ssh) machines=(--ip_config ip_config.txt --copy) ;;
    esac
    kgdist dist_train --backend "$ENGINE" --path "$WORK" "${machines[@]}" --data_path parts --dataset "$NAME" "${model[@]}" "$@"
fi
