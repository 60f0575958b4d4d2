# SPDX-License-Identifier: MIT
# The same text for any number of threads and for equal seeds. That of random weights is noise; that
# it is the same noise is what this case pins.
gen() { "$TQ" run -m "$@" 2>/dev/null; }
same() { # NAME FILE FILE
    if cmp -s "$2" "$3"; then echo "same: $1"; else echo "DIFFERENT: $1"; fi
}
text='The sea was calm and the old'
for kv in f16 turbo:k8v3; do
    for t in 1 2 3; do
        gen tiny.gguf -p "$text" -n 10 --temp 0 --kv $kv -t $t >greedy$t
        gen tiny.gguf -p "$text" -n 10 --seed 7 --kv $kv -t $t >sampled$t
    done
    [ -s greedy1 ] || echo "no text: $kv"
    same "$kv, greedy, 1 and 2 threads" greedy1 greedy2
    same "$kv, greedy, 1 and 3 threads" greedy1 greedy3
    same "$kv, seed 7, 1 and 2 threads" sampled1 sampled2
    same "$kv, seed 7, 1 and 3 threads" sampled1 sampled3
    gen tiny.gguf -p "$text" -n 10 --seed 7 --kv $kv -t 1 >again
    same "$kv, seed 7 twice" sampled1 again
    gen tiny.gguf -p "$text" -n 10 --seed 8 --kv $kv -t 1 >other
    cmp -s sampled1 other && echo "SAME TEXT FOR SEEDS 7 AND 8: $kv"
done
# Threads spin while they wait, which is slow on a busy machine: few tokens of the real model.
for t in 1 2 3; do
    gen "$BUNDLED" -p 'The sea' -n 3 --temp 0 -t $t >bundled$t
done
same "bundled model, 1 and 2 threads" bundled1 bundled2
same "bundled model, 1 and 3 threads" bundled1 bundled3
