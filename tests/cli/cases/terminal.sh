# SPDX-License-Identifier: MIT
# What happens at a terminal: a pseudo-terminal of a chosen width, and keys pressed there.
cat >pty_run.py <<'END'
import fcntl, os, pty, select, signal, struct, termios, time

class Terminal:
    def __init__(self, columns, args):
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            time.sleep(0.2)  # the width is set
            os.execv(args[0], args)
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        self.got = b""

    def read(self, until=None, seconds=60):
        """What comes, up to a text, or to the end."""
        end = time.monotonic() + seconds
        while until is None or until not in self.got:
            if not select.select([self.fd], [], [], max(0, end - time.monotonic()))[0]:
                print("TIMEOUT waiting for", until, self.got)
                os.kill(self.pid, signal.SIGKILL)
                break
            try:
                data = os.read(self.fd, 4096)
            except OSError:
                break
            if not data:
                break
            self.got += data
        at = len(self.got) if until is None else self.got.find(until) + len(until)
        now, self.got = self.got[:at], self.got[at:]
        return now

    def type(self, keys):
        os.write(self.fd, keys)

    def wait(self):
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
END
# The progress of a prompt never reaches the last column, or it would wrap and stay.
cat >narrow.py <<'END'
import re, sys
from pty_run import Terminal
for columns in (20, 40):
    t = Terminal(columns, sys.argv[1:])
    lines = re.findall(r"\r([^\r\n\x1b]*)\x1b\[K", t.read().decode())
    shown = [s for s in lines if s.startswith("prompt: ")]
    print(columns, "columns: shown", bool(shown), "fits", max(map(len, lines)) < columns,
          "erased", lines[-1] == "", "exit", t.wait())
END
i=0
while [ $i -lt 400 ]; do
    echo 'The sea was calm.'
    i=$((i + 1))
done >long.txt
python3 narrow.py "$TQ" run -m "$BUNDLED" -t 1 -f long.txt -c 16384 -n 0
# What is said after an answer without a newline has a line of its own.
cat >saved.py <<'END'
import sys
from pty_run import Terminal
t = Terminal(80, sys.argv[1:])
lines = t.read().decode().splitlines()
print("on its own line:", any(s.startswith("saved  ") for s in lines), "exit", t.wait())
END
python3 saved.py "$TQ" run -m "$BUNDLED" -t 1 -p 'The sea was' -n 3 --temp 0 --save tty.tqs
# Ctrl-C cancels a line that was begun and leaves at an empty one, twice in a row.
cat >keys.py <<'END'
import sys
from pty_run import Terminal
t = Terminal(80, sys.argv[1:])
def press(keys):
    t.type(keys)
    return b"Ctrl-C again" in t.read(b"\n> ")
def begin(keys):
    t.type(keys)
    t.read(keys)  # the echo: the terminal has it
t.read(b"for help")
t.read(b"\n> ")
begin(b"half a line")
print("hint after a begun line:", press(b"\x03"))
print("hint after an empty one:", press(b"\x03"))
begin(b"another")
print("hint after a begun line:", press(b"\x03"))
t.type(b"joined \\\r")
t.read(b"... ")
print("hint after a joined line:", press(b"\x03"))
t.type(b"/nonsense\r")
print("the next line is whole:", b"command /nonsense;" in t.read(b"\n> "))
print("hint after an empty one:", press(b"\x03"))
t.type(b"\x03")
t.read()
print("exit", t.wait())
END
python3 keys.py "$TQ" chat -m tiny.gguf --template chatml -t 1
# Ctrl-C ends an answer; what is said of it stands between the answer and the next question.
cat >stop_answer.py <<'END'
import sys
from pty_run import Terminal
t = Terminal(80, sys.argv[1:])
t.read(b"\n> ")
t.type(b"Tell me a long story\r")
t.read(b"story\r\n")
t.read(b" ")  # of the answer
t.type(b"\x03")
print("no empty line:", t.read(b"> ").endswith(b"\r\n(interrupted)\r\n> "))
t.type(b"/exit\r")
t.read()
print("exit", t.wait())
END
python3 stop_answer.py "$TQ" chat -m "$BUNDLED" --template chatml -t 1 --temp 0
# More threads than CPUs: one line of warning, from each command that takes -t.
cat >pinned.py <<'END'
import os, subprocess, sys
cpu = min(os.sched_getaffinity(0))
p = subprocess.run(sys.argv[1:], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                   stderr=subprocess.PIPE, preexec_fn=lambda: os.sched_setaffinity(0, {cpu}))
print("exit", p.returncode)
print("".join(s + "\n" for s in p.stderr.decode().splitlines() if "warning: -t" in s), end="")
END
for t in 1 2; do
    python3 pinned.py "$TQ" run -m tiny.gguf -t $t -p a -n 1
    python3 pinned.py "$TQ" chat -m tiny.gguf -t $t
    python3 pinned.py "$TQ" bench engine -m tiny.gguf -t $t -p 1 -n 1 -r 1
done
# The note on a context beyond the model's fits a line of 80.
"$TQ" run -m tiny.gguf -t 1 -p a -n 0 -c 1000 2>&1 | grep 'trained for' | awk '{ print length($0) <= 80, $0 }'
