# SPDX-License-Identifier: MIT
# The benchmark runs, reports each side and writes its rows.
"$TQ" bench engine -m "$BUNDLED" -t 1 -p 16 -n 4 -r 2 --kv f16 --kv turbo:k8v3 --peer llama \
    --csv rows.csv >out 2>/dev/null
echo "exit $?"
tail -n +3 out | digits
sed -E 's/"[^"]*",//; s/^"[^"]*","[^"]*","[^"]*",//; s/,-?[0-9.]+,"/,LOAD,"/; s/,[0-9]+\.[0-9]+,[0-9]+\.[0-9]+,/,TPS,TPS,/; s/[0-9]+$/SAME/' rows.csv
"$TQ" bench engine -m "$BUNDLED" -t 1 --ctx 8,24 -n 2 -r 1 2>/dev/null | tail -n +3 | digits
# A row for each format, or the reason why there is none.
"$TQ" bench codec -r 1 --isa scalar | tail -n +3 | sed -E 's/[0-9]+\.[0-9]+/N/g; s/ +/ /g'
"$TQ" bench codec -r 1 --isa scalar --dim 88 | tail -n +6 | sed -E 's/[0-9]+\.[0-9]+/N/g; s/ +/ /g'
