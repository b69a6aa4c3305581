#!/usr/bin/env bash
# The walk-through of training on a cluster, with "machines" that are all this host: partition, copy, train, test, evaluate.
#
#   ./run.sh [FLAGS]              4 machines, 127.0.0.1 to 127.0.0.4; they share a file system
#   ./run.sh --namespaces [FLAGS] 2 machines with a network, an address and a folder of their own; as root
#
# FLAGS go to kgdist-dist-train, after those of the walk-through. These variables change the rest:
#   DATASET=wordnet   or FB15k and others that kgdist knows, which are downloaded unless $DATA has them
#   DATA=             folder with data sets
#   TRAINERS=1        training processes of each machine
#   SERVERS=1         servers of each machine, on ports from PORT=30050 on
#   PYTHON=python3    one that has kgdist
# Everything happens in a temporary folder: sshd and its keys, too. Nothing of your own ssh configuration is read or changed.
set -euo pipefail

DATASET=${DATASET:-wordnet} DATA=${DATA:-} TRAINERS=${TRAINERS:-1} SERVERS=${SERVERS:-1} PORT=${PORT:-30050}
PYTHON=$("${PYTHON:-python3}" -c 'import sys, kgdist; print(sys.executable)')
PATH=$PATH:/usr/sbin:/sbin

impossible() { # exit code 77: there is no fault, this host cannot
    echo "not possible here: $1" >&2
    exit 77
}
kgdist() { # kgdist partition ... is kgdist-partition ... of that Python
    echo "+ kgdist-${1//_/-} ${*:2}" >&2
    "${inside[@]}" "$PYTHON" -m "kgdist.cli.$1" "${@:2}"
}

command -v sshd >/dev/null || impossible "no sshd (on Debian and Ubuntu: apt-get install openssh-server)"
inside=() # words before a command that make it run on machine 0
if [ "${1:-}" = --namespaces ]; then
    shift
    names=("kgdist-$$-0" "kgdist-$$-1") addresses=(10.98.0.1 10.98.0.2)
    [ "$(id -u)" -eq 0 ] || impossible "network namespaces need root"
    command -v ip >/dev/null || impossible "no ip (on Debian and Ubuntu: apt-get install iproute2)"
else
    names=() addresses=(127.0.0.1 127.0.0.2 127.0.0.3 127.0.0.4)
fi

T=$(mktemp -d) started=()
finish() {
    for pid in "${started[@]}"; do kill "$pid" 2>/dev/null || true; done
    wait
    for name in "${names[@]}"; do ip netns del "$name" 2>/dev/null || true; done
    rm -rf "$T"
}
trap finish EXIT
my_task=$T/my_task # the workspace
mkdir "$my_task"

# ---- Step 1: the machines. On real ones, this is done: they have addresses, an sshd, and your public key.

ssh-keygen -q -t ed25519 -N '' -C kgdist -f "$T/id"
ssh-keygen -q -t ed25519 -N '' -C kgdist -f "$T/host_key"
if [ ${#names[@]} -gt 0 ]; then
    for name in "${names[@]}"; do
        ip netns add "$name" || impossible "no network namespaces"
        ip -n "$name" link set lo up
    done
    ip -n "${names[0]}" link add eth0 type veth peer name eth0 netns "${names[1]}"
    for n in 0 1; do
        ip -n "${names[n]}" addr add "${addresses[n]}/24" dev eth0
        ip -n "${names[n]}" link set eth0 up
    done
    inside=(ip netns exec "${names[0]}")
    port=22
else
    port=$("$PYTHON" -c 'import socket; s = socket.socket(); s.bind(("", 0)); print(s.getsockname()[1])')
fi

cat >"$T/sshd_config" <<END
Port $port
HostKey $T/host_key
AuthorizedKeysFile $T/id.pub
PermitRootLogin yes
PasswordAuthentication no
KbdInteractiveAuthentication no
UsePAM no
StrictModes no
PidFile none
Subsystem sftp internal-sftp
SetEnv "PYTHONPATH=${PYTHONPATH:-}"
END
[ "$(id -u)" -ne 0 ] || mkdir -p /run/sshd
if [ ${#names[@]} -gt 0 ]; then
    mkdir "$T/disk_1" # what machine 1 has in the place of the workspace
    "${inside[@]}" "$(command -v sshd)" -D -e -f "$T/sshd_config" 2>"$T/sshd_0.log" & started+=($!)
    ip netns exec "${names[1]}" sh -c 'mount --bind "$1" "$2" && exec "$3" -D -e -f "$4"' - \
        "$T/disk_1" "$my_task" "$(command -v sshd)" "$T/sshd_config" 2>"$T/sshd_1.log" & started+=($!)
else
    listen=(); for address in "${addresses[@]}"; do listen+=(-o "ListenAddress=$address"); done
    "$(command -v sshd)" -D -e -f "$T/sshd_config" "${listen[@]}" 2>"$T/sshd_0.log" & started+=($!)
fi
for _ in $(seq 100); do
    [ "$(cat "$T"/sshd_?.log 2>/dev/null | grep -c 'Server listening')" -ge "${#addresses[@]}" ] && break
    sleep 0.1
done

for address in "${addresses[@]}"; do
    if [ "$port" = 22 ]; then echo "$address $(cat "$T/host_key.pub")"; else echo "[$address]:$port $(cat "$T/host_key.pub")"; fi
done >"$T/known_hosts"
printf 'Host *\n  Port %s\n  UserKnownHostsFile %s\n' "$port" "$T/known_hosts" >"$T/ssh_config"
ssh_flags=(--ssh_config "$T/ssh_config" --ssh_key "$T/id")

# ---- Step 2: the data

[ -z "$DATA" ] || cp -r "$DATA/$DATASET" "$my_task/"
kgdist partition --dataset "$DATASET" -k "${#addresses[@]}" --data_path "$my_task"
for address in "${addresses[@]}"; do echo "$address $PORT $SERVERS"; done >"$my_task/ip_config.txt"
kgdist copy --path "$my_task" --ip_config "$my_task/ip_config.txt" --dataset "$DATASET" --data_path "$my_task" "${ssh_flags[@]}"

# ---- Step 3: the job

kgdist dist_train --path "$my_task" --ip_config "$my_task/ip_config.txt" \
    --num_client_proc "$TRAINERS" --model_name TransE_l2 --dataset "$DATASET" --data_path "$my_task" --hidden_dim 400 \
    --gamma 19.9 --lr 0.25 --batch_size 1000 --neg_sample_size 200 --max_step 500 --log_interval 100 \
    --batch_size_eval 16 --test -adv --regularization_coef 1.00E-09 --num_thread 1 "${ssh_flags[@]}" "$@"

# ---- The model is on machine 0.

ls -l "$my_task/ckpts/TransE_l2_${DATASET}_0"
kgdist eval --model_path "$my_task/ckpts/TransE_l2_${DATASET}_0"
