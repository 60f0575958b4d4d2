# SPDX-License-Identifier: MIT
# Every page of help, on stdout, exit code 0; nothing wider than 80 columns.
t --help
t -h
t run --help
t run -m x --help
t chat --help
t info --help
t eval --help
t bench --help
t bench engine --help
t bench codec --help
t --version
for c in "" run chat info eval bench "bench engine" "bench codec"; do
    "$TQ" $c --help | awk -v c="$c" 'length > 80 { print "wide: tq " c ": " $0 }'
done
