#!/usr/bin/env bash
# Installs what `make bench-peers` measures beside Lockstep, and what drives it. Neither tests nor CI need any of it.
# RabbitMQ, its C client and PostgreSQL are Debian's; ActiveMQ Artemis comes from Maven Central into build/peers.
set -euo pipefail
cd "$(dirname "$0")/.."

artemis_version=2.40.0
say() { printf 'setup: %s\n' "$*" >&2; }
has_program() { PATH="$PATH:/usr/sbin:/sbin" command -v "$1" >/dev/null; }

missing=()
has_program rabbitmq-server || missing+=(rabbitmq-server)
[ -e /usr/include/amqp.h ] || missing+=(librabbitmq-dev)
[ -e /usr/include/postgresql/libpq-fe.h ] || missing+=(libpq-dev)
has_program cc || missing+=(gcc)
has_program c++ || missing+=(g++)
[ -e /usr/include/proton/engine.h ] || missing+=(libqpid-proton11-dev)  # the client of Lockstep's proxy
compgen -G '/usr/lib/postgresql/*/bin/initdb' >/dev/null || missing+=(postgresql)
has_program mvn || missing+=(maven)
has_program javac || missing+=(openjdk-17-jdk-headless)
{ ldconfig -p 2>/dev/null || /sbin/ldconfig -p; } | grep -q libaio || missing+=(libaio1)
has_program unzip || missing+=(unzip)
[ -e /usr/include/valgrind/callgrind.h ] || missing+=(valgrind)  # counts instructions for make bench-cpu

if [ ${#missing[@]} -gt 0 ]; then
    if [ "$(id -u)" = 0 ] && has_program apt-get; then
        say "installing ${missing[*]}"
        # RUNLEVEL: the packages' own services are not started; the benchmark starts nodes of its own.
        export DEBIAN_FRONTEND=noninteractive RUNLEVEL=1
        apt-get update -qq && apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null ||
            say "could not install ${missing[*]}"
    else
        say "missing on this machine: ${missing[*]} (Debian's names)"
    fi
fi

artemis=build/peers/apache-artemis-$artemis_version
if [ ! -d "$artemis" ] && has_program mvn && has_program unzip; then
    say "fetching ActiveMQ Artemis $artemis_version"
    mkdir -p build/peers
    if mvn -q -B org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy \
        -Dartifact="org.apache.activemq:apache-artemis:$artemis_version:zip:bin" \
        -DoutputDirectory="$PWD/build/peers" >/dev/null; then
        unzip -q -o "build/peers/apache-artemis-$artemis_version-bin.zip" -d build/peers
        rm "build/peers/apache-artemis-$artemis_version-bin.zip"
    else
        say "could not fetch Artemis: it will not be measured"
    fi
fi
