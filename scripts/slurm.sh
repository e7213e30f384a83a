#!/bin/bash
# A real Slurm of one node, in a folder of its own: a job that is asked to leave in the middle goes
# back into the queue by itself and ends with the weights of a run that nobody asked.
#
#     scripts/slurm.sh                             # all-reduce
#     scripts/slurm.sh averaging:period=16         # others, one job after the other
#     PYTHON=.venv/bin/python scripts/slurm.sh     # if another python3 has Regatta
#
# Needs root and Debian's packages slurm-wlm and munge (or others' of the same programs), and installs
# nothing. Everything listens on loopback, and is stopped in the end.
set -euo pipefail

for program in munged slurmctld slurmd sbatch srun scancel scontrol squeue sinfo; do
    if ! command -v "$program" > /dev/null; then
        echo "$program is missing; on Debian: apt-get install slurm-wlm munge" >&2
        exit 2
    fi
done
if [ "$(id -u)" -ne 0 ]; then
    echo "slurmd and munged want to be started by root" >&2
    exit 2
fi

PYTHON=$(command -v "${PYTHON:-python3}")
HERE=$(cd "$(dirname "$0")" && pwd)
PLACE=$(mktemp -d)
NODE=$(hostname -s)
export SLURM_CONF=$PLACE/slurm.conf
export PYTHONPATH=$HERE/..${PYTHONPATH:+:$PYTHONPATH}

stop() {
    scancel --partition=all 2> /dev/null && sleep 1
    for daemon in slurmd slurmctld munged; do
        if [ -s "$PLACE/$daemon.pid" ]; then kill "$(cat "$PLACE/$daemon.pid")" 2> /dev/null || true; fi
    done
    sleep 1
    rm -rf "$PLACE"
}
trap stop EXIT
trap 'exit 1' INT TERM

say() { echo; echo "== $*"; }
plain() { sed "s#$PLACE#FOLDER#g; s#$PYTHON#python3#g; s/\\b$NODE\\b/NODE/g"; }

until_true() { # SECONDS WHAT COMMAND...: until the command succeeds
    local deadline=$((SECONDS + $1)) what=$2
    shift 2
    until "$@"; do
        if [ $SECONDS -gt $deadline ]; then
            echo "it did not come about that $what" >&2
            tail -n 20 "$PLACE"/*.log "$PLACE"/*.out >&2 || true
            exit 1
        fi
        sleep 0.2
    done
}

# -- one node ------------------------------------------------------------------------------------

mkdir "$PLACE/state" "$PLACE/spool"
(umask 077 && head -c 1024 /dev/urandom > "$PLACE/munge.key")
munged --force --key-file="$PLACE/munge.key" --socket="$PLACE/munge.socket" \
    --pid-file="$PLACE/munged.pid" --log-file="$PLACE/munged.log" --seed-file="$PLACE/munge.seed"
cat > "$SLURM_CONF" << CONF
ClusterName=one
SlurmctldHost=$NODE(127.0.0.1)
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket=$PLACE/munge.socket,cred_expire=5
CredType=cred/munge
SlurmctldPort=26817
SlurmdPort=26818
StateSaveLocation=$PLACE/state
SlurmdSpoolDir=$PLACE/spool
SlurmctldPidFile=$PLACE/slurmctld.pid
SlurmdPidFile=$PLACE/slurmd.pid
SlurmctldLogFile=$PLACE/slurmctld.log
SlurmdLogFile=$PLACE/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
ReturnToService=2
AccountingStorageType=accounting_storage/none
NodeName=$NODE NodeAddr=127.0.0.1 CPUs=$(nproc) State=UNKNOWN
PartitionName=all Nodes=$NODE Default=YES MaxTime=INFINITE State=UP
CONF
slurmctld
slurmd
is_idle() { sinfo -h -o %T 2> /dev/null | grep -q idle; }
until_true 30 "the node is idle" is_idle
say "a cluster of one node"
sinfo --version
sinfo | plain

# -- a job that has to leave -----------------------------------------------------------------------

cd "$PLACE"
regatta() { "$PYTHON" -m regatta "$@"; }

state() { scontrol show job "$1" | sed -n 's/.*JobState=\([A-Z]*\).*/\1/p'; }
is() { [ "$(state "$1")" = "$2" ]; }
restarted() { scontrol show job "$1" | grep -q "Restarts=$2 "; }
trains() { grep -qs '"progress"' "$1/events.jsonl"; }

leave_and_go_on() { # NAME STRATEGY
    local run=$PLACE/$1 job
    set -- "$1" train teacher -s "$2" --set stop.epochs=4 --set stop.target=none
    say "$2 $3 $4 $5: the batch script"
    regatta launch slurm --tasks 2 --sbatch "--output=$PLACE/$1.out" -o "$1.sh" -- "${@:2}" -o "$run"
    plain < "$1.sh"
    job=$(sbatch --parsable "$1.sh")
    until_true 60 "the job trains" trains "$run"
    say "scancel --signal=USR1 $job"
    scancel --signal=USR1 "$job"
    until_true 60 "the job is in the queue again" restarted "$job" 1
    echo "job $job: $(scontrol show job "$job" | grep -o 'Restarts=[0-9]*')"
    until_true 120 "the job is done" is "$job" COMPLETED
    echo "job $job: $(state "$job")"
    say "what it printed"
    plain < "$1.out"
    say "the same by srun, undisturbed"
    srun --quiet -n 2 "$PYTHON" -m regatta "${@:2}" -o "$run-whole" | tail -n 1 | plain
    "$PYTHON" "$HERE/digests.py" "$run" | tee "$1.left"
    "$PYTHON" "$HERE/digests.py" "$run-whole" | tee "$1.whole"
    cmp "$1.left" "$1.whole"
    regatta replay "$run" | tail -n 1
}

for strategy in "${@:-all-reduce}"; do
    leave_and_go_on "${strategy%%:*}" "$strategy"
done
say "ended as if undisturbed"
