# SPDX-License-Identifier: MIT
# Every table fits a terminal of 80 columns, and no line ends with a space.
cp "$(dirname "$BUNDLED")/demo/harbour.txt" .
cat >measure.py <<'END'
import sys
lines = sys.stdin.buffer.read().decode().split("\n")[int(sys.argv[1]):]
wide = [l for l in lines if len(l) > 80]
print(sys.argv[2], "fits" if not wide and len(lines) > 4 else "DOES NOT FIT")
for l in wide + [l + "|" for l in lines if l.endswith(" ")]:
    print("   ", l)
END
# measure NAME SKIP ARGS...: SKIP lines at the start name the CPU or a file, which may be long.
measure() {
    name=$1 skip=$2
    shift 2
    "$TQ" "$@" 2>/dev/null | python3 measure.py "$skip" "$name"
}
model="-m $BUNDLED -t 1"
two='--kv turbo:k8v3 --kv turbo:k8v3,tail=64'
peers='--peer f16 --peer q8_0 --peer q4_0 --peer q8_0/q4_0@head'
measure codec 1 bench codec -r 1
measure attn 1 bench attn $two $peers --n-kv 4096 -r 1 --heads 2 --kv-heads 1 --dk 64 -t 1
measure cache 1 bench cache $two --kv f16 --layers 1 --n-kv 4096 -r 1
measure engine 2 bench engine $model $two --peer llama --peer-kv f16 --peer-kv q8_0 -p 100 -n 2 -r 1
measure snapshot 1 bench snapshot $model -p 64 -r 1
measure info 3 info "$BUNDLED"
long='turbo:k8v3,skip=1,sink=4,tail=64,start=128'
measure 'info, much' 3 info "$BUNDLED" --memory 1M --memory 1G --memory 8G --memory 64G --memory 1T \
    --memory 2T --parallel 8 --kv f16 --kv $long
eval="eval $model -f harbour.txt --kv turbo:k8v3,tail=64 --kv tcq3,mean --peer llama --peer-kv q8_0
    --peer-kv q4_0 --peer-kv q5_0 --peer-kv q5_1 --peer-kv f16"
measure eval 0 $eval -c 96 -w 2
echo '{"prompt": "The code for river is 1.", "answer": " 2", "approx_tokens": 16384, "depth": 0.25}' >needles.jsonl
measure 'eval, needles' 0 eval -m tiny.gguf --no-bos -t 1 -f harbour.txt -c 64 -w 1 --kv tcq3 \
    --needle needles.jsonl
"$TQ" eval $model -f harbour.txt --kv f16 --kv tcq4,tail=64 -c 80 -w 1 2>/dev/null | grep -A1 'tail=N'
"$TQ" eval $model -f harbour.txt --kv tcq4 -c 80 -w 1 2>/dev/null | grep 'tail=N' ||
    echo 'without tail= no note'
