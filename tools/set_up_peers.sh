#!/bin/sh
# Makes an environment of other frameworks, on top of the packages of the main environment.
#
#   tools/set_up_peers.sh VENV PEERS REQUIREMENTS [ALONE]
#
# PEERS sees the packages of VENV, so torch is not installed twice, and VENV stays as it is. The packages of the file
# ALONE are installed without their dependencies.
set -eu

venv=$1
peers=$2
requirements=$3
alone=${4:-}
[ ! -f "$peers/installed" ] || [ "$requirements" -nt "$peers/installed" ] ||
    { [ -n "$alone" ] && [ "$alone" -nt "$peers/installed" ]; } || exit 0
echo "installing other frameworks into $peers: some minutes"
"$venv/bin/python" -m venv --without-pip "$peers"
packages=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
own=$("$peers/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
# addsitedir follows the links to editable packages there, of which this one is.
echo "import site; site.addsitedir('$packages')" >"$own/main-environment.pth"
install() {
    "$peers/bin/python" -m pip --disable-pip-version-check install "$@" && return
    echo "the frameworks of $requirements are not installed: the package index cannot be reached or lacks one of them" >&2
    exit 1
}
install --requirement "$requirements"
[ -z "$alone" ] || install --no-deps --requirement "$alone"
touch "$peers/installed"
