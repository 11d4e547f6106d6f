#!/bin/sh
# The user that everything runs as, and the directories that are its own: a named volume takes their owner when it is first used.
set -eu
groupadd --gid 10001 lockstep
useradd --uid 10001 --gid 10001 --no-create-home --home-dir /var/lib/lockstep --shell /usr/sbin/nologin lockstep
mkdir -p /var/lib/lockstep /run/lockstep
chown lockstep:lockstep /var/lib/lockstep /run/lockstep
