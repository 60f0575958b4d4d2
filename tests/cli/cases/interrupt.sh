# SPDX-License-Identifier: MIT
# Ctrl-C. A child of a script ignores SIGINT unless it is told otherwise, hence python3.
cat >sigint.py <<'END'
import signal, subprocess, sys
# Sends SIGINT when the first byte of text has come.
args = sys.argv[1:]
p = subprocess.Popen(args, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                     preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler))
first = p.stdout.read(1)
p.send_signal(signal.SIGINT)
out, err = p.communicate(timeout=60)
print("exit", p.returncode)
print("text ends with a newline:", (first + out).endswith(b"\n"))
print(err.decode(), end="")
END
python3 sigint.py "$TQ" run -m "$BUNDLED" -p 'The sea' -t 1 -n 3000 --temp 0.8 | grep -v '^machine ' | digits
# What was saved before stays when the prompt is incomplete; an answer is saved as far as it came.
cat >sigprompt.py <<'END'
import os, signal, subprocess, sys, time
# Sends SIGINT, or $SIGNAL, as soon as the program catches it, which is when the prompt begins.
sent = signal.Signals[os.environ.get("SIGNAL", "SIGINT")]
p = subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                     stderr=subprocess.PIPE,
                     preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler))
def catches():
    with open("/proc/%d/status" % p.pid) as f:
        return any(int(line[7:], 16) >> sent - 1 & 1 for line in f if line.startswith("SigCgt:"))
while p.poll() is None and not catches():
    time.sleep(0.001)
p.send_signal(sent)
err = p.communicate(timeout=60)[1]
print("exit", p.returncode)
print(err.decode(), end="")
END
# With the tiny model: an interrupt is seen after 512 tokens, for which the bundled one takes 9 s with
# sanitizers.
tiny="$TQ run -m tiny.gguf -t 1"
$tiny -p 'The sea' -n 0 --save old.tqs 2>/dev/null
cp old.tqs keep.tqs
cat "${BUNDLED%/*}"/demo/*.txt | head -c 60000 >long.txt
for more in '' '--load keep.tqs' '--prefix-store store'; do
    python3 sigprompt.py $tiny -f long.txt -c 40000 -n 1 --save old.tqs $more |
        sed -n '/^exit/p; /saved/p' | digits
    cmp old.tqs keep.tqs && echo 'the old snapshot is there'
done
run="$TQ run -m $BUNDLED -t 1"
python3 sigint.py $run -p 'The sea' -n 3000 --save old.tqs | sed -n '/^exit/p; /^saved/p' | digits
cmp -s old.tqs keep.tqs || echo 'a new snapshot is there'
"$TQ" snapshot verify old.tqs | digits
# In a chat the first one ends the answer, and the program waits for the next line.
cat >sigchat.py <<'END'
import signal, subprocess, sys
p = subprocess.Popen(sys.argv[1:], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                     stderr=subprocess.PIPE, bufsize=0,
                     preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler))
p.stdin.write(b"Tell me a long story.\n")
p.stdout.read(1)
p.send_signal(signal.SIGINT)
note = b""
while b"(interrupted)" not in note:
    c = p.stderr.read(1)
    if not c:
        break
    note += c
p.stdin.write(b"/stats\n/exit\n")
out, err = p.communicate(timeout=60)
print("exit", p.returncode)
print((note + err).decode(), end="")
END
python3 sigchat.py "$TQ" chat -t 1 -m "$BUNDLED" --temp 5 --top-k 0 --top-p 1 --min-p 0 | digits
# Twice at the prompt leaves.
cat >sigtwice.py <<'END'
import signal, subprocess, sys
p = subprocess.Popen(sys.argv[1:], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                     stderr=subprocess.PIPE, bufsize=0,
                     preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler))
def wait_for(text):
    got = b""
    while text not in got:
        c = p.stderr.read(1)
        if not c:
            sys.exit("ended early")
        got += c
wait_for(b"/help for help")
p.send_signal(signal.SIGINT)
wait_for(b"Ctrl-C again")
p.send_signal(signal.SIGINT)
p.communicate(timeout=60)
print("exit", p.returncode)
END
python3 sigtwice.py "$TQ" chat -t 1 -m "$BUNDLED"
# A benchmark stops and keeps the contexts that are complete.
cat >sigbench.py <<'END'
import signal, subprocess, sys
p = subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                     stderr=subprocess.PIPE, bufsize=0,
                     preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler))
out = b""
while b"turbo4" not in out:
    out += p.stdout.read(1)
p.send_signal(signal.SIGINT)
rest, err = p.communicate(timeout=60)
rows = open("rows.csv").read().splitlines()
print("exit", p.returncode)
print(err.decode().splitlines()[-1])
print("tables as in the CSV:", (out + rest).count(b"turbo4") == len(rows) // 2 > 0)
print("all contexts:", len(rows) == 121)
END
python3 sigbench.py "$TQ" bench attn --n-kv $(seq -s, 64 123) -r 2 --kv f16 --kv turbo4 --peer none -t 1 \
    --csv rows.csv
# Before a context is complete nothing is shown, and what the files held stays.
echo older >k.csv
python3 sigprompt.py "$TQ" bench attn --n-kv 16384 -t 1 --kv f16 --peer none --csv k.csv --plot k.svg |
    grep -v warning
cat k.csv
ls k.*
# SIGTERM and SIGHUP do the same.
for signal in SIGTERM SIGHUP; do
    SIGNAL=$signal python3 sigprompt.py "$TQ" bench attn --n-kv 16384 -t 1 --kv f16 --peer none \
        --csv k.csv --plot k.svg | grep -v warning
    cat k.csv
    ls k.*
done
SIGNAL=SIGTERM python3 sigprompt.py $tiny -f long.txt -c 40000 -n 1 --save old.tqs |
    sed -n '/^exit/p; /saved/p' | digits
