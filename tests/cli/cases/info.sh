# SPDX-License-Identifier: MIT
# Geometry and bytes of known models.
t info tiny.gguf --memory 1M --memory 1.5GiB --memory 100
t info llama.gguf --memory 640K --kv f32 --kv turbo:k8v3,attn=dequant --kv turbo
# The cache's bytes hold a few structures whose size is the compiler's.
shows 'tq info tiny.gguf --memory 1M --kv f16 --kv turbo:k4v2 --json | sed "s/_bytes\": [0-9]\{6,7\},/_bytes\": N,/"'
t info --memory 1M --kv bf16 -- tiny.gguf
# The planner: what --parallel sessions get, and what that takes.
t info tiny.gguf --memory 8M --memory 1 --parallel 8 --kv turbo4 --kv turbo4,sink=4,tail=64 --kv turbo4,skip=1
for n in 0 -1 1025 4294967297 1e3 x ''; do
    t info tiny.gguf --parallel "$n"
done
for m in 0 -1 4T4 1e999 18446744073709551616 4GG ''; do
    t info tiny.gguf --memory "$m" --parallel 2
done
t info --cpu --parallel 2
# A kernel for each row, and scalar serves all of them when it must.
"$TQ" info --cpu --isa scalar | awk 'NR > 4 && $2 != "scalar" { print "not scalar: " $0 } END { print (NR > 4 ? "kernels listed" : "no kernels") }'
# Files of a scheme: layers are counted as they are, and whatever is wrong is named.
printf '# a test\nturboquant-layers 1\n0 f16\n' >one
t info tiny.gguf --memory 1M --kv turbo4 --kv turbo4,layers=one
printf 'turboquant-layers 1\n1 turbo8\n7 turbo8\n' >bad
t info tiny.gguf --kv turbo4,layers=bad
t info tiny.gguf --kv turbo4,layers=none
t info tiny.gguf --kv turbo4,kmean=one
