# SPDX-License-Identifier: MIT
# The best formats of the layers: the report, the files and that they work, that two runs are equal,
# that a killed one goes on, and that what cannot be tuned is refused by name.
cp "$(dirname "$BUNDLED")/demo/harbour.txt" harbour.txt
small="-m tiny.gguf --no-bos -f harbour.txt -c 64 --calibrate 2 --scan 1 --choose 2 -w 3 -t 1"

# The real model. Which candidate is the best of a few windows is up to the machine's kernels; that
# the mean of the keys helps, that sums predict, and the places of everything are not.
"$TQ" tune -m "$BUNDLED" -f harbour.txt -c 96 --calibrate 3 --scan 1 --choose 7 -w 3 -t 1 \
    --budget 4.25 -o real --json real.json >real.txt 2>err
echo "exit $?"
grep -v " left$" err | digits
sed -n '1,9p' real.txt | digits
grep -oE '^(Static|Cost|Candidates|Held out|Layers|Result|Use)' real.txt
head -2 real.layers | digits
head -4 real.kmean | cut -c1-40 | digits
cat >check.py <<'END'
import json, sys
t = json.load(open(sys.argv[1]))
chosen = next(c for c in t["candidates"] if c["label"] == t["chosen"])
uniform = [c for c in t["candidates"] if c["uniform"]]
print("within the budget:", all(c["bytes_per_token"] <= t["budget_bytes_per_token"] for c in t["candidates"]))
mean = lambda c: sum(c["held_out_kl"]) / len(c["held_out_kl"])
print("not worse than uniform, or fell back:",
      t["fell_back"] or all(mean(chosen) <= mean(u) for u in uniform if u["held_out_kl"]))
print("answer:", "layers=" in t["kv"] or t["fell_back"])
if t["model"].startswith("tiny-qwen3"):
    print("mean kept:", t["key_mean"]["kept"], t["key_mean"]["ratio"]["value"] < 0.95)
    print("the sum predicts:", 0.7 < chosen["predicted_kl"] / t["chosen_scan_kl"] < 1.4)
    print("better than uniform:", not t["fell_back"] and t["ratio"]["value"] < 0.95)
    rows = t["scan"]["kl_by_layer"]
    names = t["scan"]["schemes"]
    at = [names.index(n) for n in ("tcq2v6", "tcq3v6", "tcq4v6", "tcq5v6", "tcq6")]
    print("fewer bits cost more:", all(r[a] > r[b] for r in rows for a, b in zip(at, at[1:])))
END
python3 check.py real.json
# The printed scheme gives in an evaluation what was promised.
kv=$(sed -n 's/^Use: --kv //p' real.txt)
"$TQ" eval -m "$BUNDLED" -f harbour.txt -c 96 -w 2 -t 1 --kv "$kv" --kv tcq4 --json e.json >/dev/null
python3 -c '
import json
kl = [s["kl_mean"]["value"] for s in json.load(open("e.json"))["sides"]]
print("better than tcq4 in an evaluation:", 0 < kl[2] < kl[3])'

# Two runs are equal.
"$TQ" tune $small --budget 4.25 -o a --json a.json >a.txt 2>/dev/null
echo "exit $?"
"$TQ" tune $small --budget 4.25 -o b --json b.json >b.txt 2>/dev/null
cmp a.layers b.layers
sed 's/\bb\./a./g' b.txt | cmp a.txt - && echo "equal: txt"
sed 's/\bb\./a./g' b.json | cmp a.json - && echo "equal: json"
ls -- *.part *.tmp 2>/dev/null
python3 check.py a.json

# Killed while it scans, a run goes on and ends as an unbroken one does.
cat >killed.py <<'END'
import json, os, signal, subprocess, sys, time
def facts():
    try:
        return len(json.load(open("c.part"))["facts"])
    except (OSError, ValueError):
        return 0
p = subprocess.Popen(sys.argv[1:], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
while facts() < 10 and p.poll() is None:
    time.sleep(0.001)
p.kill()
print("killed:", p.wait() == -signal.SIGKILL)
END
python3 killed.py "$TQ" tune $small --budget 4.25 -o c --json c.json
[ -e c.json ] && echo "THE KILLED RUN HAD ENDED"
"$TQ" tune $small --budget 4.25 -o c --json c.json >c.txt 2>/dev/null
sed 's/\bc\./a./g' c.txt | cmp a.txt - && echo "equal to an unbroken run"
[ -e c.part ] && echo "STATE LEFT BEHIND"

# Ctrl-C.
cat >stop.py <<'END'
import os, signal, subprocess, sys, time
p = subprocess.Popen(sys.argv[1:], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                     preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler))
while not os.path.exists("i.part") and p.poll() is None:
    time.sleep(0.001)
p.send_signal(signal.SIGINT)
print(p.communicate()[1].decode().splitlines()[-1])
print("exit", p.returncode)
END
python3 stop.py "$TQ" tune $small --budget 4.25 -o i

# A state that was asked for stays, and serves another budget; memory instead of bits.
"$TQ" tune $small --budget 4.25 -o s --resume s.state >/dev/null 2>&1
"$TQ" tune $small --budget 5.5 -o s --resume s.state >s.txt 2>err
grep -o 'but for .* before' err | digits
"$TQ" tune $small --context 1000 --memory 256K -o m --resume s.state 2>/dev/null | sed -n '1p;$p'

# One window of each kind; lines fit 80 columns; a run that goes on counts the same passes.
one="-m tiny.gguf --no-bos -f harbour.txt -c 64 --calibrate 1 --scan 1 --choose 1 -w 1 -t 1"
"$TQ" tune $one --budget 4.25 -o one --resume one.state >one.txt 2>err
sed -n 's/ passes .*//p' err >passes
grep -E '^(Made|Over|Predicted|Held)|more format' one.txt | digits
"$TQ" tune $one --budget 4.25 -o one --resume one.state 2>err >again.txt
sed -n 's/ passes .*//p' err | cmp - passes && cmp one.txt again.txt && echo "as many passes"
head -2 one.kmean | tail -1
for report in real.txt a.txt s.txt one.txt; do
    python3 -c '
import sys
print(*(s for s in open(sys.argv[1], encoding="utf-8").read().splitlines()
        if len(s) > 80 and not s.startswith("Use:")), sep="\n", end="")' $report
done

# Damaged states, and those of others.
bad_state() {
    printf '%s' "$1" >bad.state
    "$TQ" tune $small --budget 4 --resume bad.state >/dev/null
    echo "exit $?"
}
bad_state ''
bad_state 'not JSON'
bad_state '[]'
bad_state '{}'
"$TQ" tune -m tiny.gguf --no-bos -f harbour.txt -c 64 --from 9 --calibrate 2 --scan 1 --choose 2 \
    -w 3 -t 1 --budget 4 --resume s.state >/dev/null
cat >spoil.py <<'END'
import json, sys
s = json.load(open("s.state"))
{
    "nan": lambda: s["facts"][1].__setitem__(2, "1"),
    "huge": lambda: s["facts"][2].__setitem__(2, 1e9),
    "window": lambda: s["facts"][0].__setitem__(1, 99),
    "short": lambda: s["facts"][3].pop(),
    "sums": lambda: s["sums"].pop(),
    "sum": lambda: s["sums"].__setitem__(5, None),
    "many": lambda: s.__setitem__("n_summed", 99),
    "type": lambda: s.__setitem__("facts", {}),
    "version": lambda: s.__setitem__("tq_tune_state", 99),
}[sys.argv[1]]()
json.dump(s, open("bad.state", "w"))
END
for kind in nan huge window short sums sum many type version; do
    python3 spoil.py $kind
    "$TQ" tune $small --budget 4 --resume bad.state >/dev/null
    echo "$kind: exit $?"
done

# Budgets and texts that are none.
t tune $small --budget 1.5
t tune $small --budget 16
t tune $small --budget 4.25x
t tune $small --budget 0
t tune $small --budget 100B
t tune $small --context 100000 --memory 1K
t tune $small --budget 4.25 --context 100
t tune $small --context 100
t tune -m tiny.gguf --no-bos -f harbour.txt -c 64 -w 9999 --budget 4 -t 1
t tune -m tiny.gguf -f harbour.txt -c 64 --budget 4 -t 1
t tune -m head88.gguf --no-bos -f harbour.txt -c 64 --budget 4 -t 1
printf 'too short' >short.txt
t tune -m tiny.gguf --no-bos -f short.txt -c 64 --budget 4 -t 1
t tune -m unknown.gguf -f harbour.txt --budget 4

# Command lines.
t tune
t tune -m tiny.gguf
t tune -m tiny.gguf -f harbour.txt
t tune -m tiny.gguf -f - --budget 4
t tune -m tiny.gguf -f harbour.txt --budget 4 -o a,b
mkdir -p dir
for name in . .. dir/ dir/. ./..; do
    t tune -m tiny.gguf -f harbour.txt --budget 4 -o $name
done
t tune -m tiny.gguf -f harbour.txt --budget 4 -o nowhere/a
t tune -m tiny.gguf -f harbour.txt --budget 4 --json nowhere/a.json
t tune -m tiny.gguf -f harbour.txt --budget 4 --base tcq9
t tune -m tiny.gguf -f harbour.txt --budget 4 --base tcq4,kmean=x
t tune -m tiny.gguf -f harbour.txt --budget 4 -c 64 --from 63
t tune -m tiny.gguf -f harbour.txt --budget 4 -w 0
