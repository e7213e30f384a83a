#!/bin/bash
# `regatta launch hosts` over real ssh: two hosts, made of network namespaces with an sshd each. A run
# starts on both, ends everywhere when a rank dies on one, is saved by ctrl-C, and leaves nobody
# behind when the launcher itself is killed.
#
#     scripts/ssh.sh              # PYTHON=.venv/bin/python, if another python3 has Regatta
#
# Needs root and Debian's packages openssh-server, openssh-client and iproute2 (or others' of the same
# programs), and installs nothing. The keys are made here and thrown away; the daemons listen inside
# the namespaces alone, which nobody outside reaches, and are stopped in the end.
set -euo pipefail

PATH=$PATH:/usr/sbin:/sbin
for program in ip sshd ssh ssh-keygen; do
    if ! command -v "$program" > /dev/null; then
        echo "$program is missing; on Debian: apt-get install openssh-server openssh-client iproute2" >&2
        exit 2
    fi
done
if [ "$(id -u)" -ne 0 ]; then
    echo "network namespaces are made by root only" >&2
    exit 2
fi

PYTHON=$(command -v "${PYTHON:-python3}")
HERE=$(cd "$(dirname "$0")" && pwd)
PLACE=$(mktemp -d)
ONE=regatta-$$-1
OTHER=regatta-$$-2
made=
export PYTHONPATH=$HERE/..${PYTHONPATH:+:$PYTHONPATH}

stop() {
    for host in "$ONE" "$OTHER"; do
        ip netns pids "$host" 2> /dev/null | xargs -r kill 2> /dev/null || true
        ip netns del "$host" 2> /dev/null || true
    done
    if [ -n "$made" ]; then rmdir /run/sshd; fi
    rm -rf "$PLACE"
}
trap stop EXIT
trap 'exit 1' INT TERM

say() { echo; echo "== $*"; }

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

# -- two hosts -----------------------------------------------------------------------------------

host() { # NAMESPACE NAME ADDRESS
    ip -n "$1" link set lo up
    ip -n "$1" addr add "$3/24" dev cable
    ip -n "$1" link set cable up
    cat > "$PLACE/$2.sshd" << CONF
ListenAddress $3
Port 22
HostKey $PLACE/host-key
AuthorizedKeysFile $PLACE/key.pub
PidFile none
StrictModes no
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin prohibit-password
# Both are one machine: this tells Regatta that they are to share no memory.
SetEnv REGATTA_HOST=$2
CONF
    ip netns exec "$1" "$(command -v sshd)" -f "$PLACE/$2.sshd" -E "$PLACE/$2.log"
    cat >> "$PLACE/ssh" << CONF
Host $2
    HostName $3
CONF
}

if [ ! -d /run/sshd ]; then # an empty folder that sshd locks itself into; Debian's service makes it
    mkdir /run/sshd
    made=yes
fi
ssh-keygen -q -t ed25519 -N "" -f "$PLACE/host-key"
ssh-keygen -q -t ed25519 -N "" -f "$PLACE/key"
cat > "$PLACE/ssh" << CONF
IdentityFile $PLACE/key
IdentitiesOnly yes
UserKnownHostsFile $PLACE/known
StrictHostKeyChecking accept-new
LogLevel ERROR
CONF
ip netns add "$ONE"
ip netns add "$OTHER"
ip -n "$ONE" link add cable type veth peer name cable netns "$OTHER"
host "$ONE" node1 10.77.0.1
host "$OTHER" node2 10.77.0.2

# -- runs on both --------------------------------------------------------------------------------

cd "$PLACE"
SSH="ssh -F $PLACE/ssh -o BatchMode=yes -o ServerAliveInterval=15"
launch() { # HOSTS WORDS...: started on node1
    local where=$1
    shift
    # A shell that reads a script lets what it starts beside itself ignore ctrl-C.
    exec env --default-signal=INT ip netns exec "$ONE" "$PYTHON" -m regatta launch hosts "$where" --master 10.77.0.1 \
        --ssh "$SSH" --env PYTHONPATH -- "$@"
}
shown() { echo "regatta launch hosts $1 --master 10.77.0.1 -- ${*:2}"; }
ranks() { pgrep -f "regatta train teacher .* -o $PLACE/$1\$" || true; }
nobody() { ! pgrep -f -- "-o $PLACE/$1\$" > /dev/null; }
trains() { grep -qs '"progress"' "$PLACE/$1/events.jsonl"; }

begin() { # NAME WORDS...: in the background, until it trains
    local name=$1
    shift
    shown node1:1,node2:1 train teacher "$@" -o "$name"
    (launch node1:1,node2:1 train teacher "$@" -o "$PLACE/$name" > "$name.out" 2>&1) &
    launcher=$!
    until_true 60 "$name trains" trains "$name"
}
ended() { # NAME: what it printed, and how it ended
    local code=0
    { wait $launcher || code=$?; } 2> /dev/null # of who was killed the shell would tell again
    sed "s#$PLACE/##g; s#$PYTHON#python3#g" "$1.out"
    echo "exit code $code"
    until_true 20 "nobody is left" nobody "$1"
    echo "processes left: 0"
}

say "a run on two hosts"
begin whole -s ring --set stop.epochs=2 --set stop.target=none
ended whole
"$PYTHON" -m regatta replay "$PLACE/whole" | tail -n 1

say "a rank dies on node2"
begin dies -s all-reduce --set stop.epochs=100000 --set stop.target=none
# shellcheck disable=SC2046
kill -KILL $(comm -12 <(ranks dies | sort) <(ip netns pids "$OTHER" | sort))
ended dies

say "ctrl-C"
begin asked -s all-reduce --set stop.epochs=100000 --set stop.target=none
kill -INT $launcher
ended asked
"$PYTHON" -m regatta replay "$PLACE/asked" | tail -n 1

say "the launcher is killed"
begin killed -s all-reduce --set stop.epochs=100000 --set stop.target=none
kill -KILL $launcher
ended killed

say "a host that is not there"
shown node1:1,10.77.0.9:1 train teacher -s ring -o absent
(launch node1:1,10.77.0.9:1 train teacher -s ring -o "$PLACE/absent" > absent.out 2>&1) &
launcher=$!
ended absent
