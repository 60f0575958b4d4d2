# SPDX-License-Identifier: MIT
# The benchmark runs, reports each side and writes its rows.
"$TQ" bench engine -m "$BUNDLED" -t 1 -p 16 -n 4 -r 2 --kv f16 --kv turbo:k8v3 --peer llama \
    --csv rows.csv >out 2>/dev/null
echo "exit $?"
tail -n +2 out | digits
sed -E 's/^"[^"]*","[^"]*",//; s/,-?[0-9.]+,"/,LOAD,"/; s/,[0-9]+\.[0-9]+,[0-9]+\.[0-9]+,/,TPS,TPS,/; s/[0-9]+$/SAME/' rows.csv
"$TQ" bench engine -m "$BUNDLED" -t 1 --ctx 8,24 -n 2 -r 1 2>/dev/null | tail -n +3 | digits
# A row for each format, or the reason why there is none.
"$TQ" bench codec -r 1 --isa scalar --csv codec.csv 2>/dev/null | tail -n +4 | sed -E 's/[0-9]+\.[0-9]+/N/g; s/ +/ /g; s/N N [0-9]{4,} /N N N /g'
"$TQ" bench codec -r 1 --isa scalar --dim 88 2>/dev/null | tail -n +7 | sed -E 's/[0-9]+\.[0-9]+/N/g; s/ +/ /g; s/N N [0-9]{4,} /N N N /g'
echo "$(grep -c scalar codec.csv) rows"; head -2 codec.csv | cut -d, -f5- | sed -E "s/[0-9]+\.[0-9]+/N/g"
# The store: sizes are exact, times are anybody's guess.
cache="--clock cpu --layers 2 --kv-heads 2 --n-kv 130 -r 2 --memory 1M"
"$TQ" bench cache $cache --kv f16 --kv tcq4 --kv tcq3,tail=64 --csv cache.csv 2>/dev/null |
    sed -n '2,8p' | sed -E 's/ +[0-9.]+ [KM]iB$/ RESIDENT/; s/ +/ /g'
sed 's/3,tail/3 tail/' cache.csv | cut -d, -f5-14,18
head -1 cache.csv | tr , '\n' | tail -8 | tr '\n' ' '
echo
sed 's/3,tail/3 tail/' cache.csv | awk -F, 'NR > 1 { for (i = 21; i <= 27; i++) if (!($i > 0)) print "no time:", $0 }'
t bench cache --kv tcq4,kmean=f
t bench cache --dk 88 --kv tcq4
t bench cache --n-kv 63
t bench cache --memory 1G --memory 2G
t bench cache --clock moon
t bench cache --clock cpu -t 2
t bench cache --csv none/cache.csv --n-kv 64 --layers 1 -r 1 --kv f16 2>&1 | grep error
# Attention: every side is there, with its error; times are anybody's guess.
attn="--n-kv 8,64 -r 2 --heads 6 --kv-heads 2 --dk 64 -t 1"
fields() { sed -E 's/ +/ /g; s/[0-9]+\.[0-9]+e[-+][0-9]+/E/g; s/[0-9]+\.[0-9]+/N/g; s/[0-9]+%/P/g; s/(kernels:) .*/\1 ISA/'; }
"$TQ" bench attn $attn --kv f16 --kv turbo3 --peer f16 --peer q8_0/q4_0@head --csv attn.csv 2>/dev/null |
    tail -n +2 | fields
cut -d, -f7-16 attn.csv
head -1 attn.csv | cut -d, -f17-
# ggml's kernels are those that it was built with, whatever ours are told to be.
"$TQ" bench attn $attn --isa scalar --kv f16 --peer f16 --csv isa.csv >isa 2>/dev/null
ggml=$(sed -n "s/^ggml's own kernels: //p" isa)
sed 's/"//g' isa.csv | awk -F, -v ggml="$ggml" 'NR > 1 { print $13, $2 == ($13 == "tq" ? "scalar" : ggml) ? "its own" : $2 }'
# The errors do not depend on the machine in their first digit: f16 and f32 near the original, 3 bits
# far from it, ours near what is stored.
"$TQ" bench attn --n-kv 256 -r 1 --heads 4 --kv-heads 1 --kv f32 --kv f16 --kv turbo3 --peer q8_0 \
    --csv err.csv >/dev/null 2>&1
awk -F, 'NR > 1 { e = $23; gsub(/"/, "", $14)
    ok = $14 == "f32" ? e < 1e-5 : $14 == "f16" ? e < 2e-3 : $14 == "q8_0" ? e < 0.05 : e > 0.02 && e < 0.5
    print $13, $14, ok ? "as expected" : "error " e, $24 == "" || $24 < 2e-2 ? "" : "stored " $24 }' err.csv
# Integer attention adds little to the scheme's own error, also at a size at which rows that are alike
# once made it look like much.
"$TQ" bench attn --n-kv 1024 -r 1 --heads 8 --kv-heads 2 --dk 192 --dv 128 -t 1 --kv turbo4 --kv tcq4 \
    --kv turbo4,attn=dequant --kv tcq4,attn=dequant --peer none --csv own.csv >/dev/null 2>&1
sed 's/,attn=/ /' own.csv | awk -F, 'NR > 1 { gsub(/"/, ""); e[$14] = $23 }
    END { for (s in e) if (s !~ / / && e[s] > 1.03 * e[s " dequant"]) print s, e[s], e[s " dequant"]
          print length(e), "errors" }'
# Rows that are read in f16 count as such, in bytes and in what the result is compared with.
"$TQ" bench attn --n-kv 100 -r 1 --heads 2 --kv-heads 1 --dk 64 -t 1 --kv turbo4,tail=200 --kv f16 \
    --kv turbo4,tail=10 --peer none --csv tail.csv >/dev/null 2>&1
sed 's/,tail=/ /' tail.csv |
    awk -F, 'NR > 1 { print $14, $16, $24 < (NR == 4 ? 2e-2 : 1e-5) ? "as read" : $24 }'
# Queries whose first reads rows in f16 that the last does not; a name that is longer than its column.
"$TQ" bench attn --n-kv 65,300 -r 1 --q-len 11 --heads 1 --kv-heads 1 -t 1 --kv turbo4,tail=33 \
    --kv turbo4,start=64 --kv turbo4,sink=4,tail=64,attn=dequant --kv f16 --peer f16 2>/dev/null |
    tail -n +2 | fields
# A query block, values of another size, data in the caches, two threads.
"$TQ" bench attn --n-kv 40 -r 1 --q-len 20 --heads 2 --kv-heads 2 --dk 64 --dv 128 --hot -t 2 --kv tcq4 \
    --peer none 2>/dev/null | tail -n +2 | fields
# What is wrong is named, before anything is measured.
t bench attn --n-kv 16777217
t bench attn --n-kv 10,x
t bench attn --n-kv 4 --q-len 5
t bench attn --heads 9 --kv-heads 2
t bench attn --heads 99999999999999999999
t bench attn --q-len 4097
t bench attn --dk 8
t bench attn --dk 88 --kv turbo4
t bench attn --dk 48 --kv f16 --peer q4_0
t bench attn --kv turbo99
t bench attn --kv turbo4,kmean=f
t bench attn --kv turbo4,skip=1
t bench attn --peer q9
t bench attn --peer f16@tail
t bench attn --peer none --peer f16
t bench attn --clock moon
t bench attn --clock cpu -t 2
t bench attn --sigma 1e300
t bench attn --plot picture.gif
t bench attn -r 0
t bench attn --n-kv 1 --csv none/attn.csv
"$TQ" bench attn --n-kv 16777216 --kv-heads 1024 --heads 1024 2>&1 | digits | sed 's/[KMGTPE]iB/B/g'
# Without gnuplot it says so; with one, it gets the script and the data.
mkdir bin
PATH=$PWD/bin "$TQ" bench attn --plot a.svg
echo "exit $?"
cat >bin/gnuplot <<'END'
#!/bin/sh
cat >script
printf '<svg></svg>IEND\256B\140\202' # the ends of both kinds
END
chmod +x bin/gnuplot
PATH=$PWD/bin:$PATH "$TQ" bench attn $attn --kv f16 --kv turbo3 --peer f16 --plot "it's.png" >/dev/null 2>&1
echo "exit $?"
grep -E '^(set xtics|plot|  )' script
grep -c '^[0-9]' script
[ -s "it's.png" ] && echo "drawn"
PATH=$PWD/bin:$PATH "$TQ" bench cache $cache --kv f16 --kv tcq4 --plot c.svg >/dev/null 2>&1
echo "exit $?"
grep -E '^(set xtics)' script
PATH=$PWD/bin:$PATH "$TQ" bench codec -r 1 --isa scalar --plot d.svg >/dev/null 2>&1
grep -E '^(plot|  )' script | sed 's/ with.*//'
PATH=$PWD/bin:$PATH "$TQ" bench engine -m "$BUNDLED" -t 1 --ctx 8,16 -n 2 -r 1 --plot e.svg >/dev/null 2>&1
grep -E '^(set xtics|plot|  )' script
PATH=$PWD/bin:$PATH "$TQ" bench snapshot -m "$BUNDLED" -t 1 -p 8,16 -r 1 --plot s.svg --csv s.csv >/dev/null 2>&1
grep -E '^(set xtics|plot|  )' script | sed 's/ with.*//'
cut -d, -f5-8 s.csv
# A disk that is full: nothing stands under the name asked for, neither new nor in the place of an
# older file. A limit of the shell on the bytes of a file serves as that disk.
tiny='--n-kv 64 --layers 1 -r 1 --kv f16'
shape='--n-kv 64 -r 1 --heads 2 --kv-heads 1 --dk 64 --kv f16 --peer none -t 1'
model="-m $BUNDLED -t 1 -p 8 -r 1"
full() { (ulimit -f "$1"; shift; "$TQ" "$@" 2>&1 >/dev/null) | grep error; ls none.* old.* 2>/dev/null; }
for cmd in "cache $tiny" "attn $shape" "engine $model -n 1" 'codec -r 1 --isa scalar'; do
    full 0 bench $cmd --csv none.csv
done
echo older >old.csv
full 0 bench cache $tiny --csv old.csv
cat old.csv
printf '#!/bin/sh\ncat >/dev/null\necho "<svg>"\n' >bin/gnuplot
PATH=$PWD/bin:$PATH "$TQ" bench cache $tiny --plot none.svg 2>&1 >/dev/null | grep error
ls none.* 2>/dev/null
# Devices and FIFOs are written as they are, a link stays one, permissions stay.
"$TQ" bench cache $tiny --csv /dev/stdout 2>/dev/null | grep -c '^"\|^cpu,isa'
"$TQ" bench cache $tiny --csv /dev/full 2>&1 >/dev/null | grep error
mkfifo pipe
cat pipe >piped &
"$TQ" bench cache $tiny --csv pipe >/dev/null 2>&1
wait
[ -p pipe ] && wc -l <piped
ln -s old.csv soft.csv
chmod 600 old.csv
"$TQ" bench cache $tiny --csv soft.csv >/dev/null 2>&1
[ -L soft.csv ] && wc -l <old.csv && ls -l old.csv | cut -c1-10
ls | grep tmp
chmod 400 old.csv
[ "$(id -u)" = 0 ] || "$TQ" bench cache $tiny --csv old.csv 2>&1 | grep -c error
true
