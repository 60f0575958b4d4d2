#!/bin/sh
# SPDX-License-Identifier: MIT
# check_flags.sh TQ MAN_DIR — every option that --help shows has its entry in the man page, with the
# same spelling and the same name of its value, and the other way round.
set -u
TQ=$1 man_dir=$2
tmp=$(mktemp -d) || exit 1
trap 'rm -rf "$tmp"' EXIT

# "  -m, --model FILE      text" -> "-m, --model FILE"
help_flags() {
    sed -nE 's/^  +(-[^ ].*)$/\1/p' | sed -E 's/  .*//' | LC_ALL=C sort
}
# "**-m**, **--model** *FILE*" -> "-m, --model FILE", below the heading $2 up to the next one.
man_flags() {
    awk -v h="# $2" '/^# / { on = $0 == h } on && /^\*\*-/' "$1" | sed 's/[*\\]//g' | LC_ALL=C sort
}

bad=0
check() { # PAGE HEADING COMMAND...
    page=$1 heading=$2
    shift 2
    "$TQ" "$@" --help | help_flags >"$tmp/help"
    man_flags "$man_dir/$page" "$heading" >"$tmp/man"
    if [ ! -s "$tmp/help" ] || ! diff -u "$tmp/help" "$tmp/man"; then
        echo "flags: tq $* --help (-) and $page (+) differ" >&2
        bad=1
    fi
}
check tq.1.md OPTIONS
check tq-run.1.md OPTIONS run
check tq-chat.1.md OPTIONS chat
check tq-info.1.md OPTIONS info
check tq-eval.1.md OPTIONS eval
check tq-tune.1.md OPTIONS tune
check tq-bench.1.md 'ENGINE OPTIONS' bench engine
check tq-bench.1.md 'ATTN OPTIONS' bench attn
check tq-bench.1.md 'CACHE OPTIONS' bench cache
check tq-bench.1.md 'CODEC OPTIONS' bench codec
check tq-bench.1.md 'SNAPSHOT OPTIONS' bench snapshot
check tq-snapshot.1.md 'INFO OPTIONS' snapshot info
check tq-snapshot.1.md 'EXPORT OPTIONS' snapshot export
check tq-snapshot.1.md 'COMPACT OPTIONS' snapshot compact
exit $bad
