# SPDX-License-Identifier: MIT
# What a scheme costs: the tables, the files, that two runs are equal, that a killed one goes on, and
# that what cannot be measured is refused by name.
text=$(dirname "$BUNDLED")/demo/harbour.txt
cp "$text" harbour.txt

# The real model: one engine agrees with the other, more bits lose less. The exact numbers depend on
# the machine's kernels.
"$TQ" eval -m "$BUNDLED" -f harbour.txt -c 64 -w 1 --kv tcq3 --kv turbo8 --peer llama --peer-kv q4_0 \
    -t 1 --json real.json >real.txt 2>err
echo "exit $?"
cat err
digits <real.txt | sed "s/ [+-]N\$/ ±N/" # the sign of a change near 0 is the machine's, too
python3 - real.json <<'END'
import json, sys
r = json.load(open(sys.argv[1]))
s = {x["name"]: x for x in r["sides"]}
kl = {k: v["kl_mean"]["value"] for k, v in s.items()}
print(list(s))
print("f32 is the reference:", kl["f32"] == 0, s["f32"]["reference"])
print("noise floor below 8 bits below 4.5 below 3:", kl["f16"] < kl["llama q4_0"] < kl["tcq3"],
      kl["turbo8"] < kl["llama q4_0"], kl["llama f16"] < kl["tcq3"] / 10)
print("peers against their own f16:", s["llama q4_0"]["reference"], s["llama f16"]["reference"])
print("bits:", [s[k]["bits_per_element"] for k in s])
print("keys:", sorted(r), sorted(r["settings"]))
END

# All outputs, on random weights. A second run writes the same bytes.
small="-m tiny.gguf --no-bos -f harbour.txt -c 64 --kv tcq3 --kv turbo:k8v3 -t 1"
"$TQ" eval $small -w 3 --csv a.csv --json a.json --html a.html >a.txt && echo "wrote all"
"$TQ" eval $small -w 3 --csv b.csv --json b.json --html b.html >b.txt
for f in csv json html txt; do cmp a.$f b.$f && echo "equal: $f"; done
ls -- *.part *.tmp 2>/dev/null
head -1 a.csv
cut -d, -f1-4 a.csv | grep tcq3 | digits | sort -u
echo "figures: $(grep -c '<figure><svg role' a.html)"
grep -oE '(src|href)="?(http|//)[^ ]*' a.html | grep -v 'www.w3.org' # none: self-contained
grep -o '<h2>[^<]*' a.html

# Steps as decoding takes them, and the arithmetic on packed bytes beside decoded rows.
"$TQ" eval $small -w 2 --batch 8 --exact --json e.json --csv e.csv >e.txt
head -1 e.txt
sed -n '/^Arithmetic/,/^$/p' e.txt | digits | sed 's/[+-]N/N/g'
grep -E 'kl_(over_exact|added)' e.csv | cut -d, -f1-4 | digits
python3 - e.json <<'END'
import json, sys
r = json.load(open(sys.argv[1]))
print("batch:", r["settings"]["batch"])
for s in r["sides"]:
    if "kl_over_exact" in s:
        e, a = s["kl_over_exact"], s["kl_added"]
        print(s["name"], "intervals hold their values:", e["low"] < e["value"] < e["high"],
              0 < a["low"] < a["value"] < a["high"], "as the ratio:",
              e == s["kl_ratio_to"][s["name"] + ",attn=dequant"])
END
"$TQ" eval $small -w 1 --exact | sed -n '/^Arithmetic/,/^$/p' | digits | sed 's/[+-]N/N/g'
"$TQ" eval $small -w 2 --batch 8 --exact --html e.html >/dev/null
grep -o 'in steps of [0-9]*\|Arithmetic: [a-z ]*' e.html

# A name leaves out what files are called, unless that is all that tells two sides apart.
printf 'turboquant-layers 1\n0 turbo8\n' >one
printf 'turboquant-layers 1\n1 turbo8\n' >two
files="eval -m tiny.gguf --no-bos -f harbour.txt -c 64 -w 1 -t 1 --kv tcq3,layers=one"
"$TQ" $files --html names.html | grep =one
grep -o '<d[td]>tcq3,layers[^<]*' names.html
"$TQ" $files --kv tcq3,layers=two --kv turbo4,layers=two | sed -n '/^Size/,/^$/p' | cut -c1-20 | grep layers

# Questions, given and made. Random weights answer none.
cat >needles.jsonl <<'END'
{"prompt": "The code for maple is 331176.\n\nQuestion: What is the code for maple?\nAnswer: The code for maple is", "answer": " 331176", "approx_tokens": 256, "depth": 0.5}

{"prompt": "The code for river is 1.", "answer": " 2"}
END
"$TQ" eval -m tiny.gguf --no-bos --needle needles.jsonl --kv tcq3 -t 1
"$TQ" eval -m tiny.gguf --no-bos --needle needles.jsonl --kv tcq3 -t 1 --html n.html >/dev/null &&
    echo "figures: $(grep -c '<figure><svg role' n.html)"
# Beyond what the model was trained for: one warning, of the longest.
python3 -c '
for n in 40, 290, 40, 270:
    print("{\"prompt\": \"%s\", \"answer\": \" 2\"}\n" % ("The sea. " * (n // 9)))' >long.jsonl
"$TQ" eval -m tiny.gguf --no-bos --needle long.jsonl --kv tcq3 -t 1 2>&1 >/dev/null | grep warning: | digits
head -3 long.jsonl >one.jsonl
"$TQ" eval -m tiny.gguf --no-bos --needle one.jsonl --kv tcq3 -t 1 2>&1 >/dev/null | grep warning: | digits
"$TQ" eval -m tiny.gguf --no-bos -f harbour.txt -c 64 -w 1 --needle synthetic --needle-ctx 1280 \
    --needle-count 1 --kv tcq3 -t 1 | tail -5

# Killed after its first window, a run goes on and ends as an unbroken one does.
cat >killed.py <<'END'
import os, signal, subprocess, sys, time
p = subprocess.Popen(sys.argv[1:], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
while not os.path.exists("c.json.part") and p.poll() is None:
    time.sleep(0.001)
p.kill()
print("killed:", p.wait() == -signal.SIGKILL)
END
python3 killed.py "$TQ" eval $small -w 40 --json c.json
[ -e c.json ] && echo "THE KILLED RUN HAD ENDED"
python3 -c 'import json; n = len(json.load(open("c.json.part"))["records"]); print("some, not all:", 0 < n < 160)'
cp c.json.part left.part
"$TQ" eval $small -w 40 --json c.json >c.txt
"$TQ" eval $small -w 40 --json d.json >d.txt
cmp c.json d.json && cmp c.txt d.txt && echo "equal to an unbroken run"
[ -e c.json.part ] && echo "STATE LEFT BEHIND"
# A state that was asked for stays, and serves other outputs without computing.
"$TQ" eval $small -w 2 --resume s.state >/dev/null
cp s.state before.state
"$TQ" eval $small -w 2 --resume s.state --csv s.csv >/dev/null
cmp s.state before.state && [ -s s.csv ] && echo "kept"

# Nothing is put beside a device.
"$TQ" eval $small -w 1 --json /dev/stdout | grep -cE '"kl_mean"|^tcq3'
"$TQ" eval $small -w 1 --json /dev/stdout >both.txt
grep -cE '"kl_mean"|^tcq3' both.txt
ls /dev/stdout.* 2>/dev/null
[ -L /dev/stdout ] && echo 'still a link'
# Nor is a link replaced.
: >aim.json
ln -s aim.json way.json
"$TQ" eval $small -w 1 --json way.json >/dev/null
[ -L way.json ] && grep -c '"kl_mean"' aim.json
# A disk that is full: the tables are out, and what was measured is kept.
"$TQ" eval $small -w 1 --json /dev/full --resume full.state >full.txt
echo "exit $?, $(grep -c tcq3 full.txt) rows, state: $(ls full.state)"
many=$(for i in $(seq 63); do printf ' --kv tcq4,tail=%d' $i; done)
"$TQ" eval -m tiny.gguf --no-bos -f harbour.txt -c 64 $many

# Ctrl-C.
cat >stop.py <<'END'
import os, signal, subprocess, sys, time
p = subprocess.Popen(sys.argv[1:], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                     preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler))
while not os.path.exists("i.json.part") and p.poll() is None:
    time.sleep(0.001)
p.send_signal(signal.SIGINT)
print(p.communicate()[1].decode(), end="")
print("exit", p.returncode)
END
python3 stop.py "$TQ" eval $small -w 140 --json i.json

# Damaged states, and those of others.
bad_state() {
    printf '%s' "$1" >bad.state
    "$TQ" eval $small -w 2 --resume bad.state >/dev/null
    echo "exit $?"
}
bad_state ''
bad_state 'not JSON'
bad_state '[]'
bad_state '{}'
"$TQ" eval $small -w 2 --kv turbo4 --resume s.state >/dev/null # another list of sides
"$TQ" eval $small -w 3 --resume s.state >/dev/null
"$TQ" eval -m tiny.gguf --no-bos -f harbour.txt -c 64 --from 9 --kv tcq3 --kv turbo:k8v3 -t 1 -w 2 \
    --resume s.state >/dev/null
"$TQ" eval $small -w 2 --batch 8 --resume s.state >/dev/null
# A file that the scheme names has other contents now.
mixed="-m tiny.gguf --no-bos -f harbour.txt -c 64 --kv tcq3,layers=mixed -t 1 -w 1"
printf 'turboquant-layers 1\n0 turbo8\n' >mixed
"$TQ" eval $mixed --resume m.state >/dev/null && "$TQ" eval $mixed --resume m.state >/dev/null
echo "exit $?"
printf 'turboquant-layers 1\n0 turbo6\n' >mixed
"$TQ" eval $mixed --resume m.state >/dev/null
cat >spoil.py <<'END'
import json, sys
def spoil(change):
    s = json.load(open("s.state"))
    change(s)
    json.dump(s, open("bad.state", "w"))
spoil({
    "nan": lambda s: s["records"][1].__setitem__("kl_mean", "1"),
    "huge": lambda s: s["records"][2].__setitem__("same_top", 2),
    "short": lambda s: s["records"].pop(),
    "long": lambda s: s["records"].extend(s["records"]),
    "bucket": lambda s: s["records"][0]["bucket_kl"].pop(),
    "hits": lambda s: s["hits"].append("0000"),
    "type": lambda s: s.__setitem__("records", {}),
    "version": lambda s: s.__setitem__("tq_eval_state", 99),
}[sys.argv[1]])
END
for kind in nan huge short long bucket hits type version; do
    python3 spoil.py $kind
    "$TQ" eval $small -w 2 --resume bad.state >/dev/null
    echo "$kind: exit $?"
done

# Texts that are none.
printf 'too short' >short.txt
: >empty.txt
printf 'abc\001\002' >control.txt
printf '\377\376a\0b\0' >utf16.txt
printf 'a\0b\0c\0d\0e\0f\0g\0h\0' >nul.txt
for f in short empty control utf16 nul missing; do
    t eval -m tiny.gguf --no-bos -f $f.txt -c 64
done
t eval -m tiny.gguf --no-bos -f . -c 64
t eval -m tiny.gguf --no-bos -f /dev/null -c 64
t eval -m tiny.gguf --no-bos -f /dev/zero -c 64
t eval -m tiny.gguf --no-bos -f harbour.txt -f harbour.txt -c 64 -w 1
t eval -m tiny.gguf --no-bos -f "$TQ" -c 64 2>&1 | sed "s|$TQ|TQ|g; s/offset [0-9]*/offset N/; s/0x../0xNN/; s/control character/byte/; s/not a UTF-8 text/not a text/"
t eval -m tiny.gguf --no-bos -f harbour.txt -c 64 -w 100000
t eval -m tiny.gguf -f harbour.txt -c 64 -w 1
t eval -m llama.gguf -f harbour.txt -c 64 -w 1 --kv tcq3,tail=9999999999
t eval -m head88.gguf --no-bos -f harbour.txt -c 64 -w 1 --kv tcq3
t eval -m unknown.gguf -f harbour.txt

# Needle files that are none.
bad_needles() {
    printf '%s\n' "$1" >bad.jsonl
    t eval -m tiny.gguf --no-bos --needle bad.jsonl
}
bad_needles ''
bad_needles 'word'
bad_needles '[1]'
bad_needles '{"prompt": "a", "answer": ""}'
bad_needles '{"prompt": "", "answer": "b"}'
bad_needles '{"prompt": "a", "answer": 2}'
bad_needles '{"prompt": 1, "answer": "b"}'
bad_needles '{"prompt": "a", "answer": "b", "depth": 1.5}'
bad_needles '{"prompt": "a", "answer": "b", "approx_tokens": -4}'
bad_needles '{"prompt": "a", "prompt": "a", "answer": "b"}'
t eval -m tiny.gguf --no-bos --needle missing.jsonl

# Before the work: where results go, and the program that draws.
t eval -m tiny.gguf --no-bos -f harbour.txt --json nowhere/a.json
t eval -m tiny.gguf --no-bos -f harbour.txt --csv .
shows 'PATH=/nonexistent tq eval -m tiny.gguf --no-bos -f harbour.txt -c 64 --html x.html'
printf '#!/bin/sh\necho "no such terminal" >&2\nexit 1\n' >gnuplot
chmod +x gnuplot
shows 'PATH=$PWD tq eval -m tiny.gguf --no-bos -f harbour.txt -c 64 --html x.html'

# Command lines.
t eval
t eval -m tiny.gguf
t eval -m tiny.gguf -f -
t eval -m tiny.gguf -f harbour.txt --peer vllm
t eval -m tiny.gguf -f harbour.txt --peer-kv q8_0
t eval -m tiny.gguf -f harbour.txt --kv turbo9
t eval -m tiny.gguf -f harbour.txt -c 8
t eval -m tiny.gguf -f harbour.txt -w 0
t eval -m tiny.gguf -f harbour.txt --batch 257
t eval -m tiny.gguf -f harbour.txt --needle synthetic --exact
t eval -m tiny.gguf -f harbour.txt -c 64 --from 63
t eval -m tiny.gguf --needle needles.jsonl -w 3
t eval -m tiny.gguf -f harbour.txt --needle-count 3
t eval -m tiny.gguf --no-bos -f harbour.txt --peer llama --peer-kv q9_9
