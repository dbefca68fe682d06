#!/bin/sh
# Checks the tools, and makes the virtual environment that the Makefile installs into.
#
#   tools/set_up.sh VENV [ASKED_PYTHON [ASKED_TORCH_INDEX]]
#
# Everything that is missing is listed at once, each with its remedy, before anything is made. An existing
# environment is kept, unless another Python or another index for torch is asked for by name: then it is made
# anew, because packages built for the one are of no use to the other. A folder of that name which this script
# has not made is left alone. ASKED_TORCH_INDEX is a URL, or `default`.
set -eu

venv=$1
asked_python=${2-}
asked_index=${3-}
index=$asked_index
[ "$index" != default ] || index=
python=${asked_python:-python3}

missing=0
miss() {
    [ "$missing" -gt 0 ] || echo "hydraulis: the set-up needs more than there is:" >&2
    missing=$((missing + 1))
    echo "  - $1" >&2
    echo "    $2" >&2
}

# is_at_least FOUND LEAST: compares the first two numbers of two versions.
is_at_least() {
    major=${1%%.*} minor=${1#*.} minor=${minor%%.*}
    [ "$major" -gt "${2%%.*}" ] || { [ "$major" -eq "${2%%.*}" ] && [ "$minor" -ge "${2#*.}" ]; }
}

check_python() {
    pythons=$(sed -n 's/.*:: Python :: \(3\.[0-9]*\)",/\1/p' pyproject.toml)
    least=$(echo "$pythons" | head -n 1)
    newest=$(echo "$pythons" | tail -n 1)
    wanted="Python $least to $newest"
    name="make PYTHON=python$newest ..."
    if ! found=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null); then
        miss "$wanted: '$python' does not run" "install Python, or name another interpreter: $name"
    elif ! is_at_least "$found" "$least" || ! is_at_least "$newest" "$found"; then
        miss "$wanted: '$python' is Python $found" "name another interpreter: $name"
    elif ! "$python" -c 'import venv, ensurepip' 2>/dev/null; then
        miss "Python's venv and ensurepip: '$python' lacks them" "on Debian and Ubuntu: apt install python$found-venv"
    fi
}

check_rust() {
    least=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)
    remedy="install it from https://rustup.rs, or update it: rustup update stable"
    if ! found=$(rustc --version 2>/dev/null) || ! cargo --version >/dev/null 2>&1; then
        miss "Rust $least or newer: rustc and cargo do not run" "$remedy"
    else
        found=${found#rustc }
        is_at_least "$found" "$least" || miss "Rust $least or newer: rustc is ${found%% *}" "$remedy"
    fi
}

check_c_compiler() {
    cc --version >/dev/null 2>&1 ||
        miss "a C compiler: cc does not run" "Rust links with it; on Debian and Ubuntu: apt install build-essential"
}

check_folder() {
    [ ! -e "$venv" ] || [ -f "$marker" ] ||
        miss "a free name for the virtual environment: '$venv' was made by something else" "move it away"
}

identity() {
    "$1" -c 'import sys; print(sys.base_prefix, sys.version)' 2>/dev/null
}

is_without_torch() {
    case $(cat "$marker") in asked\ *) ;; *) false ;; esac
}

# There is none, it was not finished, no longer runs, or was made with something else than is asked for by name.
is_needed() {
    [ -f "$marker" ] && [ "$(cat "$marker")" != unfinished ] || return 0
    [ -z "$asked_python" ] || [ "$(identity "$venv/bin/python")" = "$(identity "$asked_python")" ] || return 0
    [ -z "$asked_index" ] || [ "$(cat "$marker")" = "$index" ] || is_without_torch || return 0
    ! identity "$venv/bin/python" >/dev/null
}

cd "$(dirname "$0")/.."
# Holds the index that torch came from, empty for the default one; until torch is there, `asked` and the index.
marker=$venv/torch-index
needed=false
is_needed && needed=true
# Once there is an environment, what runs in it is what counts.
"$needed" || python=$venv/bin/python
check_python
check_rust
check_c_compiler
check_folder
[ "$missing" -eq 0 ] || exit 1

if "$needed"; then
    [ ! -e "$venv" ] || echo "hydraulis: replacing $venv"
    echo "hydraulis: making $venv with $(identity "$python" | sed 's/^[^ ]* \([^ ]*\).*/Python \1/;q')"
    rm -rf "$venv"
    mkdir "$venv"
    echo unfinished >"$marker"
    "$python" -m venv "$venv"
    echo "asked $index" >"$marker"
elif is_without_torch; then
    # Asked for in this call, or none: one that failed was for that call alone.
    echo "asked $index" >"$marker"
fi
