#!/bin/sh
# Chromium for the test of the report page. Where no browser can be had the test is skipped, and says
# so; in CI ($CI is set) this fails instead, so that nothing is green because it was not tried.
without() {
    echo "$1: the report page is not tested" >&2
    [ -z "${CI:-}" ]
    exit
}
for name in "${CAPRI_BROWSER:-chromium}" chromium chromium-browser google-chrome google-chrome-stable; do
    command -v "$name" >/dev/null 2>&1 && exit 0
done
if ! command -v apt-get >/dev/null 2>&1; then
    without "no browser and no apt-get"
fi
as_root=""
if [ "$(id -u)" -ne 0 ]; then
    if ! sudo -n true 2>/dev/null; then
        without "no browser and no right to install one"
    fi
    as_root="sudo -n"
fi
quick="-o Acquire::Retries=1 -o Acquire::http::Timeout=15 -o DPkg::Lock::Timeout=60"
export DEBIAN_FRONTEND=noninteractive
# shellcheck disable=SC2086  # options are words
{
    timeout 120 $as_root apt-get $quick update -qq
    timeout 480 $as_root apt-get $quick install -y -qq --no-install-recommends chromium fonts-dejavu-core
} >/dev/null 2>&1
command -v chromium >/dev/null 2>&1 || without "Chromium could not be installed"
