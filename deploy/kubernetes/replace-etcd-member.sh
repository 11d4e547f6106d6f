#!/usr/bin/env bash
# Replaces a member of etcd that has lost its volume: it leaves the cluster of members and joins it again, with an empty volume.
#   deploy/kubernetes/replace-etcd-member.sh 1        the member lockstep-etcd-1
#   NAMESPACE=mine deploy/kubernetes/replace-etcd-member.sh 1
#
# Law: a change of the members counts when the list of members shows it, whatever its call answered. etcd refuses a change, or takes it
# without saying so, while a leader is being elected; so each is repeated until it is seen. The script may be run again at any point.
set -euo pipefail

number=${1:?which member: 0, 1 or 2}
namespace=${NAMESPACE:-lockstep}
name=lockstep-etcd-$number
peer=http://$name.lockstep-etcd-peers:2380
deadline=$((SECONDS + ${WAIT_SECONDS:-600}))

say() { printf '%s\n' "$*" >&2; }
k() { kubectl -n "$namespace" "$@"; }
# By any of the others.
etcdctl() {
    local other
    for other in 0 1 2; do
        if [ "$other" != "$number" ] && k exec "lockstep-etcd-$other" -- etcdctl "$@" 2>/dev/null; then
            return
        fi
    done
    return 1
}
# The member's line in the list: its id, then its state. Nothing where it is not listed; fails where nobody tells.
listed() { local all && all=$(etcdctl member list) && { grep -F "$peer," <<<"$all," || true; }; }
again() {
    if [ $SECONDS -ge $deadline ]; then
        say "$1 did not come about in time: see the members' logs, and run this again"
        exit 1
    fi
    say "$1: not yet, once more"
    sleep 2
}

if [ "$(k get pod "$name" -o 'jsonpath={.status.conditions[?(@.type=="Ready")].status}' 2>/dev/null)" = True ]; then
    say "$name is ready: it has not lost its volume"
    exit 1
fi

while ! line=$(listed) || [[ $line == *", started, "* ]]; do
    if [ -n "${line:-}" ]; then
        say "removing $name from the members"
        etcdctl member remove "${line%%,*}" >/dev/null || again "the removal"
    else
        again "the list of members"
    fi
done
while ! line=$(listed) || [ -z "$line" ]; do
    say "adding $name to the members"
    etcdctl member add "$name" --peer-urls="$peer" >/dev/null || again "the addition"
done

k set env statefulset/lockstep-etcd ETCD_STATE=existing
k delete pvc "data-$name" --wait=false --ignore-not-found
k delete pod "$name" --ignore-not-found
until k wait --for=condition=Ready "pod/$name" --timeout=60s; do
    again "$name in its place"
done
