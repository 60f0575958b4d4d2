# SPDX-License-Identifier: MIT
# Every page of help, on stdout, exit code 0; nothing wider than 80 columns.
t --help
t -h
t run --help
t run -m x --help
t chat --help
t info --help
t eval --help
t tune --help
t bench --help
t bench engine --help
t bench cache --help
t bench codec --help
t bench snapshot --help
t snapshot --help
t snapshot info --help
t snapshot verify --help
t snapshot export --help
t snapshot compact --help
t --version
for c in "" run chat info eval tune bench "bench engine" "bench cache" "bench codec" "bench snapshot" snapshot \
    "snapshot info" "snapshot verify" "snapshot export" "snapshot compact"; do
    "$TQ" $c --help | awk -v c="$c" 'length > 80 { print "wide: tq " c ": " $0 }'
done
