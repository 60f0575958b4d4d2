#!/bin/sh
# SPDX-License-Identifier: MIT
# run_case.sh TQ MAKE_MODELS SOURCE_DIR CASE — run cases/CASE.sh in a fresh folder and compare what
# it prints with cases/CASE.exp, byte for byte. UPDATE=1 writes the expectation instead: read the
# difference before committing it.
#
# A case is plain sh. In reach: $TQ, $BUNDLED (the bundled model), the files of make_models in the
# current folder, and
#   t ARGS...      run tq and print command, stdout ("1> "), stderr ("2> ") and exit code
#   shows ARGS...  the same for a shell command line
#   digits         filter: every number becomes N, but exit codes stay
# Paths in the output never depend on where the test runs: files are named relatively.
set -u
TQ=$1 make_models=$2 source_dir=$3 name=$4
cases=$source_dir/tests/cli/cases
BUNDLED=$source_dir/models/tiny-qwen3-28m.q8_0.gguf
tmp=$(mktemp -d) || exit 1
trap 'rm -rf "$tmp"' EXIT
export TQ BUNDLED
unset NO_COLOR
export TERM=dumb LC_ALL=C

# What a terminal user sees, in a form that can be compared. A last line without newline is marked.
mark() {
    sed "s/^/$1> /" "$2"
    [ ! -s "$2" ] || [ -z "$(tail -c 1 "$2")" ] || echo '\'
}
outcome() {
    mark 1 "$tmp/out"
    mark 2 "$tmp/err"
    echo "exit $1"
    echo
}
t() {
    printf '$ tq'
    for arg; do
        case $arg in
        '' | *[!A-Za-z0-9_.,:/=+-]*) printf " '%s'" "$arg" ;;
        *) printf ' %s' "$arg" ;;
        esac
    done
    echo
    "$TQ" "$@" </dev/null >"$tmp/out" 2>"$tmp/err"
    outcome $?
}
shows() {
    printf '$ %s\n' "$1"
    sh -c "tq() { \"\$TQ\" \"\$@\"; }; $1" </dev/null >"$tmp/out" 2>"$tmp/err"
    outcome $?
}
digits() {
    sed -E '/^exit /!s/[0-9]+(,[0-9]{3})*(\.[0-9]+)?/N/g; s/ +/ /g'
}

mkdir "$tmp/work" && cd "$tmp/work" || exit 1
"$make_models" . || exit 1
(. "$cases/$name.sh") >"$tmp/actual" 2>&1
code=$?
if [ $code -eq 77 ]; then
    cat "$tmp/actual"
    exit 77
fi
if [ "${UPDATE:-0}" = 1 ]; then
    cp "$tmp/actual" "$cases/$name.exp"
fi
if ! diff -u "$cases/$name.exp" "$tmp/actual"; then
    echo "cli: $name differs; UPDATE=1 $0 $* accepts it" >&2
    exit 1
fi
exit $code
