#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""demo.py TQ MODEL — the main job on the bundled model: each prompt once with an f16 cache and
once with turbo:k8v3, answers, speeds and cache sizes side by side. Exits 1 when the compressed
cache does not answer the retrieval question."""
import json
import os
import subprocess
import sys
import textwrap

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
SCHEMES = ("f16", "turbo:k8v3")
SECRET = "730914"  # "The code for lantern is 730914." stands in the middle of harbour.txt
COLUMN = 46


def run(tq, model, scheme, prompt, n, temp):
    cmd = [tq, "run", "-m", model, "-f", os.path.join(ROOT, "models", "demo", prompt),
           "--kv", scheme, "-c", "4096", "-n", str(n), "--temp", str(temp), "--seed", "7", "--json"]
    print(f"  running {prompt} with {scheme} ...", end="\r", file=sys.stderr, flush=True)
    p = subprocess.run(cmd, stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False)
    print(" " * 60, end="\r", file=sys.stderr, flush=True)
    if p.returncode != 0:
        sys.stderr.buffer.write(p.stderr)
        sys.exit(f"demo: {' '.join(cmd)} failed with exit code {p.returncode}")
    return json.loads(p.stdout)


def row(label, cells):
    print(f"  {label:<16}" + "".join(f"{c:<{COLUMN + 2}}" for c in cells).rstrip())


def wrapped(label, texts):
    lines = [textwrap.wrap(" ".join(t.split()), COLUMN) or [""] for t in texts]
    for i in range(max(map(len, lines))):
        row(label if i == 0 else "", [l[i] if i < len(l) else "" for l in lines])


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
    row("KV cache", [f"{kib(r['kv']['bytes'])}  (f16 would be {kib(r['kv']['f16_bytes'])}, "
                     f"{r['kv']['f16_bytes'] / r['kv']['bytes']:.2f}x)" for r in results])


def main():
    if len(sys.argv) != 3:
        sys.exit("usage: demo.py TQ MODEL.gguf")
    tq, model = sys.argv[1:]
    print(f"TurboQuant demo: {os.path.basename(model)}, each prompt with two KV caches")

    found = [run(tq, model, s, "harbour.txt", 7, 0) for s in SCHEMES]
    table("1. Retrieval. A code is hidden in the middle of a long text, among four others.\n"
          "   Question: What is the code for lantern?   (The text says: 730914)",
          "answer", found)
    print("\nThe model has 28 million parameters: expect sentences, not sense.", end="")
    story = [run(tq, model, s, "opening.txt", 80, 0.7) for s in SCHEMES]
    table("\n2. A story opening: \"It was late in the autumn when the old sailor came back to the\n"
          "   village. The\"", "goes on", story)

    ok = [SECRET in r["text"] for r in found]
    print()
    if not all(ok):
        sys.exit("demo: the code was not found with: "
                 + ", ".join(s for s, hit in zip(SCHEMES, ok) if not hit))
    saved = found[1]["kv"]
    print(f"Both caches find the code; {saved['scheme']} keeps the same "
          f"{found[1]['prompt']['tokens']:,} tokens in "
          f"{saved['f16_bytes'] / saved['bytes']:.2f}x less memory than f16.")


if __name__ == "__main__":
    main()
