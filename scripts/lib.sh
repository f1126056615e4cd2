# Sourced by the other scripts: finds the repository and installs what they need.
# shellcheck shell=bash
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"
# An ordinary user's PATH leaves out what lies beside the system's own programs.
PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin

say() { printf '%s\n' "$*" >&2; }

need_cargo() {
    if ! command -v cargo >/dev/null; then
        say "cargo is missing. Get the Rust toolchain (1.90 or newer) from https://rustup.rs:"
        say "  curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs | sh -s -- -y && . \"\$HOME/.cargo/env\""
        exit 1
    fi
}

# install COMMAND=PACKAGE...: installs the packages of the commands that are missing. A name with a slash is a file.
install() {
    local pair command missing=()
    for pair in "$@"; do
        command=${pair%%=*}
        case $command in
            */*) [ -e "$command" ] || missing+=("${pair#*=}") ;;
            *) command -v "$command" >/dev/null || missing+=("${pair#*=}") ;;
        esac
    done
    [ ${#missing[@]} -gt 0 ] || return 0
    if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
        say "missing: ${missing[*]}"
        say "install them first, for instance: sudo apt-get install ${missing[*]}"
        exit 1
    fi
    say "installing: ${missing[*]}"
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
}

# Lets ordinary users open /dev/fuse, as distributions ship it.
open_fuse_device() {
    if [ "$(id -u)" = 0 ]; then
        if [ ! -e /dev/fuse ]; then
            modprobe fuse 2>/dev/null || true
        fi
        if [ ! -e /dev/fuse ]; then
            say "/dev/fuse is missing: this kernel has no FUSE, or this container doesn't get the device"
            exit 1
        fi
        chmod 0666 /dev/fuse
    fi
}
