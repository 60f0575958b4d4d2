#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""demo.py TQ MODEL — the main job on the bundled model: each prompt once with an f16 cache and
once with turbo:k8v3, answers, speeds and cache sizes side by side. Exits 1 when the compressed
cache does not answer the retrieval question."""
import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
SCHEMES = ("f16", "turbo:k8v3")
SECRET = "730914"  # "The code for lantern is 730914." stands in the middle of harbour.txt
LABEL = 12
COLUMN = max(24, min(46, (shutil.get_terminal_size((100, 24)).columns - LABEL - 2) // 2 - 2))


def run(tq, model, scheme, prompt, n, temp):
    cmd = [tq, "run", "-m", model, "-f", os.path.join(ROOT, "models", "demo", prompt),
           "--kv", scheme, "-c", "4096", "-n", str(n), "--temp", str(temp), "--seed", "4", "--json"]
    note = f"  running {prompt} with {scheme} ..."
    if sys.stderr.isatty():
        print(f"{note}\r", end="", file=sys.stderr, flush=True)
    p = subprocess.run(cmd, stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False)
    if sys.stderr.isatty():
        print(" " * len(note) + "\r", end="", file=sys.stderr, flush=True)
    if p.returncode != 0:
        sys.stderr.buffer.write(p.stderr)
        how = f"exit code {p.returncode}"
        if p.returncode < 0:
            how = signal.Signals(-p.returncode).name
        sys.exit(f"demo: {' '.join(cmd)} failed: {how}")
    return json.loads(p.stdout)


def turns(tq, model, prompt, n, temp, rounds):
    """The schemes take turns; of each the first text and the best speeds."""
    results = [run(tq, model, s, prompt, n, temp) for s in SCHEMES]
    for _ in range(rounds - 1):
        for best, scheme in zip(results, SCHEMES):
            again = run(tq, model, scheme, prompt, n, temp)
            for part in ("prompt", "decode"):
                best[part]["tokens_per_second"] = max(best[part]["tokens_per_second"],
                                                      again[part]["tokens_per_second"])
    return results


def row(label, cells):
    print(f"  {label:<{LABEL}}" + "".join(f"{c:<{COLUMN + 2}}" for c in cells).rstrip())


def wrapped(label, texts):
    lines = [textwrap.wrap(" ".join(t.split()), COLUMN) or [""] for t in texts]
    for i in range(max(map(len, lines))):
        row(label if i == 0 else "", [l[i] if i < len(l) else "" for l in lines])


def share(kv):
    return f"{100 * kv['bytes'] / kv['f16_bytes']:.0f} %"


def kib(n):
    return f"{n / 1024:,.0f} KiB"


def table(title, label, results):
    print(f"\n{title}")
    row("", [r["kv"]["scheme"] for r in results])
    row("", ["-" * COLUMN] * len(results))
    wrapped(label, [r["text"] for r in results])
    row("prompt", [f"{r['prompt']['tokens']} tokens, {r['prompt']['tokens_per_second']:,.0f} "
                   "tokens/s" for r in results])
    row("decode", [f"{r['decode']['tokens']} tokens, {r['decode']['tokens_per_second']:,.0f} "
                   "tokens/s" for r in results])
    row("KV cache", [f"{kib(r['kv']['bytes'])}, {share(r['kv'])} of f16" for r in results])


def main():
    if len(sys.argv) != 3:
        sys.exit("usage: demo.py TQ MODEL.gguf")
    tq, model = sys.argv[1:]
    print(f"TurboQuant demo: {os.path.basename(model)}, each prompt with two KV caches")

    found = turns(tq, model, "harbour.txt", 7, 0, 2)
    table("1. Retrieval. A code is hidden in the middle of a long text, among four others.\n"
          "   Question: What is the code for lantern?   (The text says: 730914)",
          "answer", found)
    story = turns(tq, model, "opening.txt", 80, 0.7, 3)
    table("2. A story opening (28 million parameters: expect sentences, not sense).\n"
          "   \"It was late in the autumn when the old sailor came back to the village. The\"",
          "goes on", story)

    ok = [SECRET in r["text"] for r in found]
    print()
    if not all(ok):
        sys.exit("demo: the code was not found with: "
                 + ", ".join(s for s, hit in zip(SCHEMES, ok) if not hit))
    saved = found[1]["kv"]
    print(f"Both caches find the code; {saved['scheme']} keeps the {saved['tokens']:,} tokens in "
          f"{share(saved)} of f16's memory.")
    load = os.getloadavg()[0]
    if load > (os.cpu_count() or 1) + 1:
        print(f"Other work is running (load average {load:.1f}): the speeds are low and uneven.")


if __name__ == "__main__":
    main()
