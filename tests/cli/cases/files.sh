# SPDX-License-Identifier: MIT
# Files that are no model: exit code 1 and a reason.
for cmd in 'info' 'run -p a -m' 'chat -m'; do
    : >empty.gguf
    mkdir -p folder.gguf
    head -c 100 tiny.gguf >cut100.gguf
    size=$(wc -c <tiny.gguf)
    head -c $((size - 1000)) tiny.gguf >cut.gguf
    printf 'not a model at all, but a text of some length' >text.gguf
    # The first byte of the magic, and the version.
    { printf 'g'; tail -c +2 tiny.gguf; } >magic.gguf
    { printf 'GGUF\377'; tail -c +6 tiny.gguf; } >version.gguf
    for f in missing folder empty cut100 cut text magic version unknown; do
        t $cmd $f.gguf
    done
done
# A FIFO without a writer does not make anyone wait, whatever its name.
mkfifo fifo
for cmd in 'info' 'run -p a -m' 'chat -m' 'bench engine -m'; do
    shows "timeout 20 \"\$TQ\" $cmd fifo"
done
# Names with a line end, an escape sequence, broken UTF-8 and a C1 control are shown, not obeyed.
odd=$(printf 'a\nb\033[31m\377caf\303\251\302\233')
"$TQ" info "$odd" 2>&1
"$TQ" run -m "$odd" -p a 2>&1
"$TQ" run -m tiny.gguf -f "$odd" 2>&1
"$TQ" run -m tiny.gguf -p a --kv "$odd" 2>&1
"$TQ" run -m tiny.gguf -p a --isa "$odd" 2>&1 | sed 's/available: .*/available: .../'
"$TQ" "$odd" 2>&1
"$TQ" chat -m tiny.gguf --template "$odd" 2>&1 </dev/null | sed 's/built in: .*/built in: .../'
"$TQ" bench engine -m tiny.gguf -n 1 -p 1 -r 1 --csv "$odd/x" 2>&1
# One bit flipped anywhere in the header: a model that differs or a refusal with a reason, but never
# a crash.
cat >flip.py <<'END'
import subprocess, sys
tq = sys.argv[1]
data = open("tiny.gguf", "rb").read()
header = data.find(b"blk.1.ffn_down.weight")
assert header > 1000
bad = refused = 0
for i in range(60):
    at = header * i // 60
    flipped = bytearray(data)
    flipped[at] ^= 1 << (i % 8)
    open("flip.gguf", "wb").write(flipped)
    for cmd in (["info", "flip.gguf", "--memory", "1M"], ["run", "-m", "flip.gguf", "-p", "a", "-n", "1"]):
        p = subprocess.run([tq] + cmd, stdin=subprocess.DEVNULL, capture_output=True, timeout=60)
        refused += p.returncode == 1
        if p.returncode not in (0, 1) or (p.returncode == 1 and b": error: " not in p.stderr):
            print("bit", i % 8, "of byte", at, cmd[0], "exit", p.returncode, p.stderr)
            bad += 1
print("flips:", bad, "crashes or silent failures;", "some refused" if refused > 10 else "TOO FEW REFUSED")
END
python3 flip.py "$TQ"
# A head size that the scheme does not take; f16 takes it.
t run -m head88.gguf -p a --kv turbo:k8v3
t info head88.gguf --memory 1M
t info head88.gguf --memory 1M --kv turbo:k8v3
# Prompts.
printf 'caf\303\251 and \377 more' >latin.txt
printf 'cut \303' >half.txt
t run -m tiny.gguf -f latin.txt
t run -m tiny.gguf -f half.txt
t run -m tiny.gguf -f missing.txt
printf 'two\0parts' >nul.txt
t run -m tiny.gguf -f nul.txt
shows 'tq run -m tiny.gguf -f - < nul.txt'
shows 'tq chat -m tiny.gguf --template chatml < nul.txt'
t run -m tiny.gguf -f .
shows 'tq run -m tiny.gguf -f - < latin.txt'
shows 'tq run -m tiny.gguf -p "$(printf "a\355\240\200")"'
shows 'tq chat -m tiny.gguf --template chatml -s "$(printf "\200")"'
t bench engine -m tiny.gguf --csv missing/out.csv -n 1 -p 1 -r 1
# Nothing to read from.
shows 'tq run -m tiny.gguf -f - -n 1 <&-'
shows 'tq chat -m tiny.gguf --template chatml <&-'
