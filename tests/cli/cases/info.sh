# SPDX-License-Identifier: MIT
# Geometry and bytes of known models.
t info tiny.gguf --memory 1M --memory 1.5GiB --memory 100
t info llama.gguf --memory 64K --kv f32 --kv turbo:k8v3,attn=dequant --kv turbo
t info tiny.gguf --memory 1M --kv f16 --kv turbo:k4v2 --json
t info --memory 1M --kv bf16 -- tiny.gguf
# A kernel for each row, and scalar serves all of them when it must.
"$TQ" info --cpu --isa scalar | awk 'NR > 4 && $2 != "scalar" { print "not scalar: " $0 } END { print (NR > 4 ? "kernels listed" : "no kernels") }'
