# SPDX-License-Identifier: MIT
# Generation: prompts, limits, the closing table and the JSON object.
# The closing table of a busy machine has one line more.
idle() { grep -v '^machine '; }
gen() { "$TQ" run -m "$@" 2>/dev/null; }
same() { # NAME FILE FILE
    if cmp -s "$2" "$3"; then echo "same: $1"; else echo "DIFFERENT: $1"; fi
}
# One file or argument, one newline at the end more or less: the same prompt.
printf 'The sea\n' >p.txt
gen "$BUNDLED" -t 1 -f p.txt -n 8 --temp 0 >a
gen "$BUNDLED" -t 1 -p 'The sea' -n 8 --temp 0 >b
"$TQ" run -t 1 -m "$BUNDLED" -f - -n 8 --temp 0 <p.txt 2>/dev/null >c
same 'prompt from file and argument' a b
same 'prompt from stdin and argument' b c
gen "$BUNDLED" -t 1 -p '<|im_start|>user' -n 1 --temp 0 --json | python3 -c '
import json, sys; print("text:", json.load(sys.stdin)["prompt"]["tokens"] > 4)'
gen "$BUNDLED" -t 1 -p '<|im_start|>user' --special -n 1 --temp 0 --json | python3 -c '
import json, sys; print("special:", json.load(sys.stdin)["prompt"]["tokens"] <= 4)'
# Limits.
t run -m tiny.gguf -p 'a b c d e f g h' -c 4 -n 3
"$TQ" run -t 1 -m "$BUNDLED" -p 'a b c' -n 0 2>&1 | idle | digits
"$TQ" run -t 1 -m "$BUNDLED" -p '' -n 2 --temp 0 2>&1 | idle | tail -n 4 | digits
"$TQ" run -t 1 -m "$BUNDLED" -p 'The sea' -c 8 -n 100 --temp 0 2>&1 | idle | tail -n 4 | digits
# The smallest context that was named is enough.
t run -m tiny.gguf -p 'a b c d e f g h' -c 14 -n 1
"$TQ" run -t 1 -m tiny.gguf -p 'a b c d e f g h' -c 15 -n 1 --temp 0 >/dev/null 2>&1
echo "exit $?"
# Far too large a prompt is refused before it is tokenised, a context that no memory holds by size.
head -c 3000000 /dev/zero | tr '\0' a >huge.txt
timeout 20 "$TQ" run -t 1 -m tiny.gguf -f huge.txt -c 64 2>&1
echo "exit $?"
if sh -c 'ulimit -v 4000000; "$0" --version; exit $?' "$TQ" >/dev/null 2>&1; then
    (ulimit -v 4000000; "$TQ" run -t 1 -m "$BUNDLED" -p a -c 16777216 --kv f32 2>&1 >/dev/null) |
        sed -E 's/^[0-9.]+ .iB are free: they hold [0-9,]+ tokens/N are free: they hold N tokens/'
else # a sanitizer needs more address space than that
    echo 'tq run: error: out of memory: the KV cache for a context of 16777216 tokens takes 256.00 GiB; use a smaller -c'
    echo 'N are free: they hold N tokens.'
fi
# The table of a run beside other work says so.
case $(awk -v n="$(nproc)" '{ print ($1 + n > n + 1) }' /proc/loadavg) in
1) "$TQ" run -t "$(nproc)" -m tiny.gguf -p a -n 1 2>&1 >/dev/null | grep -c '^machine .*load average' ;;
*) echo 1 ;; # an idle machine: nothing to see
esac
# The JSON object: its members, their types, and bytes as the formula says.
for n in 0 1 5; do
    "$TQ" run -t 1 -m "$BUNDLED" -p 'The sea' -n $n --temp 0 --kv turbo:k8v3 --json 2>&1 | python3 -c '
import json, sys
r = json.load(sys.stdin)
kv = r["kv"]
print(sorted(r), sorted(kv), r["stop"], r["decode"]["tokens"], kv["scheme"])
layers, heads, d = 8, 2, 128
assert kv["bytes_per_token"] == layers * heads * d * (8 + 3 + 1.5) / 8, kv
assert kv["bytes"] == kv["tokens"] * kv["bytes_per_token"]
assert kv["f16_bytes"] == kv["tokens"] * layers * heads * d * 4
assert kv["tokens"] == r["prompt"]["tokens"] + max(0, r["decode"]["tokens"] - 1)
assert (r["decode"]["tokens_per_second"] is None) == (r["decode"]["tokens"] < 2)
'
done
# Options that leave nothing to compress are said.
"$TQ" run -m "$BUNDLED" -t 1 -n 2 --kv turbo4,skip=4 -p hi 2>&1 >/dev/null | grep skip
