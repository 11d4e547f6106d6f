#!/usr/bin/env bash
# Builds the images that the compose files name.
#   deploy/build-images.sh [SERVICE...]    default: what compose.yaml needs; `all`: pipeline and prometheus, too
# BASE_IMAGE and JAVA_BASE_IMAGE name what they stand on; without them Debian's image of a registry is used if it can be had, else
# one that base-image.sh makes. LOCKSTEP_IMAGE and LOCKSTEP_TAG are those of .env.
#
# How this machine fetches Python packages (pip's configuration, the bundle of certificates) goes into the build as secrets: no layer
# has it.
set -euo pipefail
cd "$(dirname "$0")/.."
source deploy/docker.sh
export DOCKER_BUILDKIT=1

set -a
# What is in the environment counts more than .env.
eval "$(grep -E '^LOCKSTEP_(IMAGE|TAG)=' deploy/.env | sed -E 's/^([A-Z_]+)=(.*)$/\1=${\1:-\2}/')"
set +a

services=("$@")
[ ${#services[@]} -gt 0 ] || services=(etcd store broker coordinator proxy cli)
[ "${services[*]}" != all ] || services=(etcd store broker coordinator proxy cli postgres_participant prometheus pipeline)

if [ -z "${BASE_IMAGE:-}" ]; then
    BASE_IMAGE=$(sed -n 's/^ARG BASE_IMAGE=//p' deploy/Dockerfile)
    if ! docker image inspect "$BASE_IMAGE" >/dev/null 2>&1 && ! timeout 60 "$DOCKER" pull --quiet "$BASE_IMAGE" >/dev/null 2>&1; then
        BASE_IMAGE=lockstep-base:bookworm
        deploy/base-image.sh "$BASE_IMAGE"
    fi
fi
JAVA_BASE_IMAGE=${JAVA_BASE_IMAGE:-$BASE_IMAGE}

secrets=$(mktemp -d)
trap 'rm -rf "$secrets"' EXIT
chmod 700 "$secrets"
for bundle in "${SSL_CERT_FILE:-}" /etc/ssl/certs/ca-certificates.crt /etc/pki/tls/certs/ca-bundle.crt /etc/ssl/ca-bundle.pem; do
    [ -f "$bundle" ] && break
done
touch "$secrets/ca_bundle" "$secrets/pip_configuration"
[ ! -f "$bundle" ] || cat "$bundle" >"$secrets/ca_bundle"
# pip's settings from its files and from the environment, which counts more; paths of this machine mean nothing there. Without pip
# there are none.
echo "[global]" >"$secrets/pip_configuration"
# An empty one would be taken for a broken one.
[ ! -s "$secrets/ca_bundle" ] || echo "cert = /run/secrets/ca_bundle" >>"$secrets/pip_configuration"
if python3 -m pip --version >/dev/null 2>&1; then
    python3 -m pip config list 2>/dev/null | python3 -c '
import ast, sys
settings = {}
for line in sys.stdin:
    name, _, value = line.strip().partition("=")
    section, _, option = name.rpartition(".")
    option = option.lower().replace("_", "-")
    if section in ("global", ":env:", "install") and option in (
        "index-url", "extra-index-url", "trusted-host", "proxy", "timeout", "default-timeout", "retries", "client-cert"
    ):
        rank = ("global", "install", ":env:").index(section)
        settings[option] = max(settings.get(option, (0, "")), (rank, " ".join(ast.literal_eval(value).split())))
for option, (_, value) in settings.items():
    print(option, "=", value)
' >>"$secrets/pip_configuration"
fi

for service in "${services[@]}"; do
    say "building $LOCKSTEP_IMAGE-${service//_/-}:$LOCKSTEP_TAG"
    # The host's network: a bridge of the engine's own may have no way to where packages are.
    docker build --quiet --network host --file deploy/Dockerfile \
        --build-arg SERVICE="$service" --build-arg BASE_IMAGE="$BASE_IMAGE" --build-arg JAVA_BASE_IMAGE="$JAVA_BASE_IMAGE" \
        --secret id=pip_configuration,src="$secrets/pip_configuration" --secret id=ca_bundle,src="$secrets/ca_bundle" \
        --tag "$LOCKSTEP_IMAGE-${service//_/-}:$LOCKSTEP_TAG" . >/dev/null
done
