# What the scripts share; sourced, never run. Everything runs from the checkout's root.
cd "$(dirname "${BASH_SOURCE[0]}")/.."

say() { printf '== %s\n' "$*" >&2; }

stop() { # stop with 2: the request cannot be met as it stands, and the text says what to type
    printf '\n%s\n' "$*" >&2
    exit 2
}

# Debian or Ubuntu, and allowed to install from its packages.
can_apt() { [ "$(id -u)" = 0 ] && [ -r /etc/debian_version ] && command -v apt-get >/dev/null; }

apt_install() {
    local log
    log=$(mktemp)
    say "Installing from this system's packages: $*"
    if ! { apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -y -q \
        --no-install-recommends -o DPkg::Lock::Timeout=120 "$@"; } >"$log" 2>&1 </dev/null; then
        tail -n 20 "$log" >&2
        stop "apt-get could not install $*. Its whole output: $log"
    fi
    rm -f "$log"
}
