#!/bin/sh
# Installs Debian packages into an image: those that its base does not have already. A base that has them all needs no network.
set -eu
missing=
for package in "$@"; do
    dpkg-query --show --showformat='${db:Status-Status}\n' "$package" 2>/dev/null | grep -qx installed || missing="$missing $package"
done
[ -n "$missing" ] || exit 0
export DEBIAN_FRONTEND=noninteractive
# A package must not start its service while an image is made.
printf '#!/bin/sh\nexit 101\n' >/usr/sbin/policy-rc.d
chmod 755 /usr/sbin/policy-rc.d
apt-get update -qq
# What is lost with power here is made again: nothing waits for the disk.
# shellcheck disable=SC2086  # one word for each package
apt-get install -y -qq --no-install-recommends -o Dpkg::Options::=--force-unsafe-io $missing >/dev/null
rm -rf /usr/sbin/policy-rc.d /var/lib/apt/lists/* /var/cache/apt/*.bin /var/log/apt /var/log/dpkg.log
