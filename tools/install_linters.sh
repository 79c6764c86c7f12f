#!/bin/sh
# What checks the files of examples/deploy, each by its own makers: promtool, caddy, docker-compose
# and systemd-analyze. Where one cannot be had its test is skipped, and says so; in CI ($CI is set)
# this fails instead, so that nothing is green because it was not tried. $1: the folder for programs
# that this machine lacks. Debian's packages of Prometheus and Caddy start a server when they are
# installed, so they are unpacked there.
without() {
    echo "$1: not all of examples/deploy is checked" >&2
    [ -z "${CI:-}" ]
    exit
}
folder="$1"
PATH="$folder/usr/bin:$PATH"
lacks() {
    ! command -v "$1" >/dev/null 2>&1
}
unpacked="" installed=""
lacks promtool && unpacked="prometheus"
lacks caddy && unpacked="$unpacked caddy"
lacks docker-compose && ! docker compose version >/dev/null 2>&1 && installed="docker-compose"
lacks systemd-analyze && installed="$installed systemd"
[ -z "$unpacked$installed" ] && exit 0
if lacks apt-get; then
    without "no$unpacked $installed and no apt-get"
fi
as_root=""
if [ "$(id -u)" -ne 0 ]; then
    if ! sudo -n true 2>/dev/null; then
        without "no$unpacked $installed and no right to install them"
    fi
    as_root="sudo -n"
fi
quick="-o Acquire::Retries=1 -o Acquire::http::Timeout=15 -o DPkg::Lock::Timeout=60"
export DEBIAN_FRONTEND=noninteractive
mkdir -p "$folder"
# shellcheck disable=SC2086  # options and packages are words
{
    timeout 120 $as_root apt-get $quick update -qq
    if [ -n "$installed" ]; then
        timeout 300 $as_root apt-get $quick install -y -qq --no-install-recommends $installed
    fi
    if [ -n "$unpacked" ]; then
        (cd "$folder" && timeout 300 apt-get $quick download -qq $unpacked)
        for package in "$folder"/*.deb; do
            dpkg-deb -x "$package" "$folder" && rm "$package"
        done
    fi
} >/dev/null 2>&1
for program in promtool caddy systemd-analyze; do
    lacks "$program" && without "$program could not be installed"
done
lacks docker-compose && ! docker compose version >/dev/null 2>&1 \
    && without "docker-compose could not be installed"
exit 0
