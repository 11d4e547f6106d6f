#!/usr/bin/env bash
# Makes a base image of Debian on this machine, for where no image registry can be reached: debootstrap and `docker import`.
#   deploy/base-image.sh [IMAGE]    default: lockstep-base:bookworm. Needs root, debootstrap and a Docker engine.
# It is made again only when this file has changed. LOCKSTEP_CACHE (default ~/.cache/lockstep) keeps what was downloaded.
set -euo pipefail
cd "$(dirname "$0")"
source ./docker.sh

image=${1:-lockstep-base:bookworm}
suite=bookworm
# What the images install, so that they need not fetch it one by one.
packages=ca-certificates,python3,etcd-server,etcd-client
cache=${LOCKSTEP_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/lockstep}
stamp=$(sha256sum <base-image.sh | cut -c1-32)

made=$(docker image inspect --format '{{index .Config.Labels "lockstep.base"}}' "$image" 2>/dev/null || true)
if [ "$made" = "$stamp" ]; then
    exit 0
fi
if [ "$(id -u)" != 0 ]; then
    say "base-image.sh needs root: debootstrap makes a root file system."
    exit 1
fi
PATH=$PATH:/usr/sbin:/sbin
command -v debootstrap >/dev/null || { say "base-image.sh needs debootstrap."; exit 1; }

work=$(mktemp -d)
trap 'mountpoint -q "$work" && umount "$work"; rm -rf "$work"' EXIT
# In memory if it can be: dpkg waits for the disk after every file.
mount -t tmpfs -o size=2G,mode=700 lockstep-base "$work" 2>/dev/null || true
mkdir -p "$cache/debs"
say "making $image with debootstrap"
if ! debootstrap --variant=minbase --include="$packages" --cache-dir="$cache/debs" "$suite" "$work/root" >"$work/log" 2>&1; then
    tail -5 "$work/log" >&2
    exit 1
fi
mirror=$(sed -n 's/^deb \([^ ]*\) .*/\1/p' "$work/root/etc/apt/sources.list" | head -1)
{
    echo "deb $mirror $suite main"
    echo "deb $mirror $suite-updates main"
    echo "deb ${mirror%/}-security $suite-security main"
} >"$work/root/etc/apt/sources.list"
# Nothing of this machine, and nothing that only an installation needs.
rm -rf "$work"/root/etc/{hostname,resolv.conf} "$work"/root/var/cache/apt/archives/*.deb "$work"/root/var/lib/apt/lists/* \
    "$work"/root/var/log/{bootstrap.log,dpkg.log,apt} "$work"/root/usr/share/{doc,man,locale}
tar --directory "$work/root" --numeric-owner --create . \
    | docker import --change "LABEL lockstep.base=$stamp" --change 'CMD ["/bin/bash"]' - "$image" >/dev/null
