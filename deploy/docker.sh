# To be sourced: `docker` is a client that can build with secrets (BuildKit), whatever comes first on PATH.

say() { printf 'deploy: %s\n' "$*" >&2; }

# A client of its own knows BuildKit up to version 22, later ones by their plug-in buildx.
_can_build() {
    local version
    version=$("$1" version --format '{{.Client.Version}}' 2>/dev/null || true)
    version=${version%%.*}
    case $version in '' | *[!0-9]*) return 1 ;; esac
    [ "$version" -lt 23 ] || "$1" buildx version >/dev/null 2>&1
}

_find_docker() {
    local candidate
    for candidate in ${LOCKSTEP_DOCKER:-} $(type -ap docker); do
        if _can_build "$candidate"; then
            printf '%s\n' "$candidate"
            return
        fi
    done
    return 1
}

DOCKER=$(_find_docker) || { say "no Docker client that can build with BuildKit"; exit 1; }
docker() { command "$DOCKER" "$@"; }
