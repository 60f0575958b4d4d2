# SPDX-License-Identifier: MIT
# Wrong command lines: exit code 2, the flag and what it takes named, nothing done.
t
t rnu
t --hlep
t --version x
t ""
t run
t run -m tiny.gguf
t run -m tiny.gguf -p a -f b
t run stray -m tiny.gguf -p a
t run -m
t run -m -p a
t run --model=
t run -p a -m ''
# Numbers.
for v in -5 -1 1e300 2.5 12x '' 99999999999999999999 16777217 0x10 ' 5' nan +5; do
    t run -n "$v"
done
t run -c 0
t run -c -1
t run -c 16777217
t run --ctx=99999999999999999999999
t run -t 0
t run -t 257
t bench engine -m a -t 257
t run -t -0
for v in -1 1e300 1e-9 nan inf 0x1p3 1,5 '' . e; do
    t run --temp "$v"
done
t run --top-k -1
t run --top-p 0
t run --top-p 1.5
t run --min-p -0.1
t run --seed -1
t run --seed 4294967296
# Names.
t run -n 5 --predict 6
t run --json --json
t run --json=yes
t run --ctx-size 5
t run --thread=3
t run --jsno
t run --entirely-unknown
t run -x
t run -nX
# Schemes and instruction sets, before the model is opened.
for s in '' turbo7 tcq8 turbo4 turbo4,tail=x turbo+4 turbo: turbo:k3v3 turbo:k8v3,attn=slow 'f16 ' q8_0 TURBO; do
    t run -m none.gguf -p a --kv "$s"
done
# Which sets there are depends on the machine.
shows 'tq run -m none.gguf -p a --isa sse9 2>err; e=$?; sed "s/available: .*/available: .../" err; exit $e'
t chat
t chat -m none.gguf -n 0
t chat -m none.gguf --kv turbo16
t info
t info a b
t info ''
t info --cpu a
t info a --isa scalar
shows 'tq info --cpu --isa sse9 2>err; e=$?; sed "s/available: .*/available: .../" err; exit $e'
t info a --memory 5Q
t info a --memory -5
t info a --memory 0
t info a --memory 1e9
t info a --memory 9999999999T
t info a --memory ''
t bench
t bench engin
t bench engine
t bench engine -m a -p 5 --ctx 6
t bench engine -m a --ctx 5,,6
t bench engine -m a --ctx 5,x
t bench engine -m a --ctx 5,
t bench engine -m a --peer vllm
t bench engine -m a --peer-kv f16
t bench engine -m a -r 0
t bench engine -m a -n 0
t bench engine -m a --kv nope
t bench codec --dim 0
t bench codec --dim 2000
t bench codec --dim 17
t bench codec extra
t run -m a -p b --prefix-limit 1G
t run -m a -p b --prefix-store d --prefix-limit 1G --prefix-limit 2G
t run -m a --load s --prefix-store d
t run -m a --load s -p b -f c
t snapshot
t snapshot inof
t snapshot info
t snapshot info a b
t snapshot compact a
t snapshot export a --what heads
t snapshot export a --what text
t snapshot export a --what keys
t snapshot export a -o b
t snapshot export a --layer 1
t snapshot export a -m b
t bench snapshot
# A count is in a list once.
t bench attn --n-kv 64,128,64
