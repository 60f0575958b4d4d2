#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""resident.py TQ MODEL PROMPT — the KV bytes that tq reports are the bytes that it keeps.

Fills a context of 4096 tokens once with an f16 and once with a turbo:k8v3 cache, and compares the
difference of the peak resident sizes with the difference of the reported KV bytes."""
import json
import os
import sys
import tempfile


def run(tq, model, prompt, scheme):
    """The parsed JSON of a run, and its peak resident bytes."""
    with tempfile.TemporaryFile() as out:
        pid = os.fork()
        if pid == 0:
            os.dup2(out.fileno(), 1)
            os.execv(tq, [tq, "run", "-m", model, "-f", prompt, "--kv", scheme, "-c", "4096", "-n",
                          "0", "-t", "1", "--json"])
        _, status, usage = os.wait4(pid, 0)
        if status != 0:
            sys.exit(f"{scheme}: tq run failed with status {status}")
        out.seek(0)
        return json.load(out)["kv"], usage.ru_maxrss * 1024


def main():
    tq, model, source = sys.argv[1:]
    with open(source, encoding="utf-8") as f:
        text = f.read()
    with tempfile.NamedTemporaryFile("w", suffix=".txt", encoding="utf-8") as prompt:
        prompt.write((text + "\n" + text)[:15700])  # about 4000 tokens
        prompt.flush()
        f16, f16_rss = run(tq, model, prompt.name, "f16")
        turbo, turbo_rss = run(tq, model, prompt.name, "turbo:k8v3")
    n = f16["tokens"]
    print(f"{n} tokens; f16 {f16['bytes']} bytes, resident {f16_rss}; "
          f"turbo:k8v3 {turbo['bytes']} bytes, resident {turbo_rss}")
    ok = 3800 <= n <= 4096 and turbo["tokens"] == n
    # 8 layers of 2 KV heads of D = 128: D * (K + V + 1.5) / 8 per head and token
    ok &= turbo["bytes"] == n * 8 * 2 * 128 * (8 + 3 + 1.5) / 8
    ok &= f16["bytes"] == n * 8 * 2 * 128 * 2 * 2
    reported, seen = f16["bytes"] - turbo["bytes"], f16_rss - turbo_rss
    print(f"difference: reported {reported}, resident {seen} ({seen / reported:.3f})")
    sys.exit(0 if ok and 0.95 <= seen / reported <= 1.05 else 1)


if __name__ == "__main__":
    main()
