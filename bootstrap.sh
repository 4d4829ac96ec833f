#!/bin/sh
# Makes .venv in a checkout and installs pystreams into it, built in place,
# with what the demo and the tests need.  Run it again after changing C.
#
# PYTHON=/path/to/python chooses the interpreter of a new .venv.
set -eu

say() {
    printf 'bootstrap: %s\n' "$*"
}

die() {
    printf 'bootstrap: %s\n' "$*" >&2
    exit 1
}

has_headers() {
    "$1" -c 'import os.path, sys, sysconfig
header = os.path.join(sysconfig.get_path("include"), "Python.h")
sys.exit(not os.path.isfile(header))'
}

install_headers() {
    package=python$("$1" -c 'import sys
print("%d.%d" % sys.version_info[:2])')-dev
    sudo=
    [ "$(id -u)" = 0 ] || sudo=sudo
    hint="Python.h is missing; install it with: apt-get install $package"
    command -v apt-get >/dev/null || die "$hint"
    [ -z "$sudo" ] || command -v sudo >/dev/null || die "$hint"
    say "Python.h is missing: installing $package with ${sudo:+sudo }apt-get"
    {
        $sudo apt-get update -q &&
            DEBIAN_FRONTEND=noninteractive \
                $sudo apt-get install -qy --no-install-recommends "$package"
    } >/dev/null || die "$hint"
    has_headers "$1" ||
        die "$package is installed, but $1 is another Python without headers"
}

cd "$(dirname "$0")"
[ -f setup.py ] || die "run it from a checkout of pystreams"

# This file is there only if an earlier run was interrupted while it made the
# venv.  Such a venv is not whole.
if [ -e .venv/unfinished ]; then
    say "removing the .venv that an interrupted run left"
    rm -rf .venv
fi
if [ ! -x .venv/bin/python ]; then
    python=${PYTHON:-python3}
    command -v "$python" >/dev/null || die "$python is not on this machine"
    "$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' ||
        die "$python is older than Python 3.10; choose another by PYTHON=..."
    say "making .venv with $python"
    mkdir -p .venv
    : >.venv/unfinished
    "$python" -m venv .venv || {
        rm -rf .venv
        die "no venv could be made; on Debian: apt-get install python3-venv"
    }
    rm .venv/unfinished
elif [ -n "${PYTHON:-}" ]; then
    say ".venv is there, so PYTHON is not used; remove it for another Python"
fi
has_headers .venv/bin/python || install_headers .venv/bin/python
command -v "${CC:-cc}" >/dev/null || command -v gcc >/dev/null ||
    die "there is no C compiler; on Debian: apt-get install gcc libc6-dev"

.venv/bin/python -m pip --version >/dev/null 2>&1 ||
    die ".venv has no pip that works; remove .venv, and run this again"

say "building and installing pystreams into .venv"
.venv/bin/python -m pip install --quiet --disable-pip-version-check \
    --editable '.[demo,test]'
say "done: .venv/bin/python -m pystreams"
