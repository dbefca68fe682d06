#!/bin/sh
# Runs the tests of the model, of parallelism and of the runtime with other versions of torch.
#
#   tools/test_versions.sh VENV INDEX VERSION...
#
# Each version has an environment of its own that sees the packages of VENV, so only torch is installed again.
# INDEX is a URL, or empty for pip's own index.
set -eu

venv=$1
index=$2
shift 2
failed=
for version in "$@"; do
    environment=$venv-torch-$version
    if [ ! -f "$environment/installed" ]; then
        echo "installing torch $version into $environment"
        rm -rf "$environment"
        "$venv/bin/python" -m venv --without-pip "$environment"
        packages=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
        own=$("$environment/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
        # addsitedir follows the links to editable packages there, of which this one is.
        echo "import site; site.addsitedir('$packages')" >"$own/main-environment.pth"
        "$environment/bin/python" -m pip --disable-pip-version-check install --quiet \
            ${index:+--index-url "$index"} "torch==$version"
        touch "$environment/installed"
    fi
    "$environment/bin/python" -c "import torch; print('testing with torch', torch.__version__)"
    "$environment/bin/python" -m pytest -q -n "${TEST_PROCESSES:-2}" --dist loadfile --basetemp target/pytest-versions \
        tests/model tests/parallel tests/runtime || failed="$failed $version"
done
[ -z "$failed" ] || {
    echo "hydraulis: tests fail with torch$failed" >&2
    exit 1
}
