#!/bin/sh
# Makes the environment of `make peers`: other frameworks, on top of the packages of the main environment.
#
#   tools/set_up_peers.sh VENV PEERS
#
# PEERS sees the packages of VENV, so torch is not installed twice, and VENV stays as it is.
set -eu

venv=$1
peers=$2
[ ! -f "$peers/installed" ] || [ tools/peers/requirements.txt -nt "$peers/installed" ] ||
    [ tools/peers/frameworks.txt -nt "$peers/installed" ] || exit 0
echo "installing other frameworks into $peers: some minutes"
"$venv/bin/python" -m venv --without-pip "$peers"
packages=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
own=$("$peers/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
# addsitedir follows the links to editable packages there, of which this one is.
echo "import site; site.addsitedir('$packages')" >"$own/main-environment.pth"
"$peers/bin/python" -m pip --disable-pip-version-check install --requirement tools/peers/requirements.txt
"$peers/bin/python" -m pip --disable-pip-version-check install --no-deps --requirement tools/peers/frameworks.txt
touch "$peers/installed"
