# shellcheck shell=bash
# Helpers of .ci/run: steps with timings, and what a bare machine lacks. Sourced, not run.

CI_STARTED=$SECONDS
CI_REPORT=()
CI_CURRENT=""

# step NAME COMMAND...: runs the command, notes its time; a failure ends the run (errexit).
step() {
    CI_CURRENT=$1
    shift
    printf '\n==> %s: %s\n' "$CI_CURRENT" "$*"
    local began=$SECONDS
    "$@"
    CI_REPORT+=("$(printf '%5d s  %s' $((SECONDS - began)) "$CI_CURRENT")")
    CI_CURRENT=""
}

# skip NAME REASON
skip() {
    printf '\n==> %s: skipped: %s\n' "$1" "$2"
    CI_REPORT+=("$(printf 'skipped  %s: %s' "$1" "$2")")
}

# optional_script NAME PATH: a step whose script need not be in this checkout.
optional_script() {
    if [ -x "$2" ]; then step "$1" "$2"; else skip "$1" "$2 is not there"; fi
}

# The minimum Rust version that Cargo.toml states.
msrv() { sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml; }

# Prints the table of steps, also after a failure, and keeps the exit status.
finish() {
    local status=$?
    printf '\n'
    [ ${#CI_REPORT[@]} -eq 0 ] || printf '%s\n' "${CI_REPORT[@]}"
    printf '%5d s  in all\n' $((SECONDS - CI_STARTED))
    if [ "$status" -ne 0 ]; then
        printf 'FAILED%s\n' "${CI_CURRENT:+: $CI_CURRENT}"
    else
        printf 'ok\n'
    fi
    exit "$status"
}

# Installs Debian packages when run as root; otherwise says which ones are missing.
install_packages() {
    if [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null; then
        export DEBIAN_FRONTEND=noninteractive
        apt-get update -qq
        apt-get install -y -qq --no-install-recommends "$@" >/dev/null
    else
        echo "please install: $*" >&2
        return 1
    fi
}

prepare() {
    if ! command -v cargo >/dev/null && [ -r "$HOME/.cargo/env" ]; then
        # shellcheck disable=SC1091
        . "$HOME/.cargo/env"
    fi
    if ! command -v cargo >/dev/null; then
        echo "cargo is missing: install Rust from https://rustup.rs" >&2
        exit 1
    fi
    command -v cc >/dev/null || install_packages gcc libc6-dev
    # Only the instruction count needs valgrind; its script says so where it stays missing.
    command -v valgrind >/dev/null || install_packages valgrind || true
    cargo fmt --version >/dev/null 2>&1 || rustup component add rustfmt
    cargo clippy --version >/dev/null 2>&1 || rustup component add clippy
    export CARGO_TERM_COLOR=${CARGO_TERM_COLOR:-never}
    # Every crate is built once: what incremental builds keep would only cost time and disk space.
    export CARGO_INCREMENTAL=${CARGO_INCREMENTAL:-0}

    rustc --version
    echo "$(nproc) cores"
    if [ -e /dev/nvidiactl ] || ldconfig -p 2>/dev/null | grep -q 'libcuda\.so'; then
        echo "GPU: a CUDA driver is installed; tests that need a GPU use it"
    else
        echo "GPU: none (no CUDA driver); tests that need one skip and say so"
    fi
}
