#!/bin/bash
# Ranks started by Open MPI's mpirun and by MPICH's mpiexec.hydra: they train, leave when asked, go
# on, and end with the weights of a run that nobody asked.
#
#     scripts/mpi.sh              # PYTHON=.venv/bin/python, if another python3 has Regatta
#
# Needs Debian's packages openmpi-bin and mpich (or one of them; others' programs of these names will
# do), and installs nothing.
set -euo pipefail

PYTHON=$(command -v "${PYTHON:-python3}")
HERE=$(cd "$(dirname "$0")" && pwd)
PLACE=$(mktemp -d)
trap 'rm -rf "$PLACE"' EXIT
trap 'exit 1' INT TERM
export PYTHONPATH=$HERE/..${PYTHONPATH:+:$PYTHONPATH}
export TERM=dumb # mpirun gives its ranks a terminal; plain lines are easier to keep
WORDS=(train teacher --set stop.epochs=4 --set stop.target=none --resumable)

say() { echo; echo "== $*"; }

until_trains() { # FOLDER
    local deadline=$((SECONDS + 60))
    until grep -qs '"progress"' "$1/events.jsonl"; do
        if [ $SECONDS -gt $deadline ]; then echo "it did not begin to train" >&2; exit 1; fi
        sleep 0.2
    done
}

leave_and_go_on() { # NAME STRATEGY STARTER...
    local run=$PLACE/$1 name=$1 code=0 starter
    local words=("${WORDS[@]}" -s "$2" -o "$run")
    shift 2
    say "$* regatta ${words[*]}" | sed "s#$PLACE#FOLDER#g"
    "$@" "$PYTHON" -m regatta "${words[@]}" > "$PLACE/$name.out" 2>&1 &
    starter=$!
    until_trains "$run"
    kill -USR1 $starter
    wait $starter || code=$?
    sed "s#$PLACE#FOLDER#g" "$PLACE/$name.out"
    echo "exit code $code, after SIGUSR1"
    say "the same command again"
    "$@" "$PYTHON" -m regatta "${words[@]}" 2>&1 | sed "s#$PLACE#FOLDER#g" | tail -n 4
    say "undisturbed"
    "$@" "$PYTHON" -m regatta "${words[@]}" -o "$run-whole" > /dev/null
    "$PYTHON" "$HERE/digests.py" "$run" | tee "$PLACE/left"
    "$PYTHON" "$HERE/digests.py" "$run-whole" | tee "$PLACE/whole"
    cmp "$PLACE/left" "$PLACE/whole"
    "$PYTHON" -m regatta replay "$run" | tail -n 1
}

found=0
for open_mpi in mpirun.openmpi mpirun; do
    if command -v $open_mpi > /dev/null && $open_mpi --version | grep -q "Open"; then
        $open_mpi --version | head -n 1
        as_root=()
        if [ "$(id -u)" -eq 0 ]; then as_root=(--allow-run-as-root); fi
        leave_and_go_on open-mpi all-reduce $open_mpi -n 2 --oversubscribe "${as_root[@]}"
        found=1
        break
    fi
done
if command -v mpiexec.hydra > /dev/null; then
    mpiexec.hydra --version | grep -m 1 Version
    leave_and_go_on mpich averaging:period=16 mpiexec.hydra -n 2
    found=1
fi
if [ $found -eq 0 ]; then
    echo "neither mpirun nor mpiexec.hydra is here; on Debian: apt-get install openmpi-bin mpich" >&2
    exit 2
fi
say "all ended as if undisturbed"
