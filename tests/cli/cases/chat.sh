# SPDX-License-Identifier: MIT
# A conversation from a pipe. What is said is the model's affair; who says it where is ours.
chat() { "$TQ" chat -m "$BUNDLED" --temp 0 -n 6 -t 1 "$@" 2>err; }
printf 'What is the code for falcon?\nAnd now?\n' | chat >two
echo "exit $?"
digits <err
[ "$(wc -l <two)" -ge 2 ] || echo 'too few answers'
printf 'What is the code for falcon?\nAnd now?' | chat >again
cmp -s two again || echo 'the answers depend on the last newline'
# A reset conversation starts like a new one.
printf 'What is the code for falcon?\n/reset\nWhat is the code for falcon?\n' | chat >reset
printf 'What is the code for falcon?\n' | chat >one
cat one one | cmp -s - reset || echo 'after /reset the answer differs'
# Keys and values of the first turn are reused: the second costs only its own tokens.
printf 'What is the code for falcon?\n/stats\nWhy?\n/stats\n' | chat >/dev/null
grep '^prompt' err | awk '{ print ($2 > 0 && $2 - last < 40 ? "few new tokens" : "too many: " $2 - last); last = $2 }'
# Another answer to the same question, and a question that is taken back and asked again.
printf 'What is the code for falcon?\n/retry\n/back\nWhat is the code for falcon?\n' | chat >retried
cat one one one | cmp -s - retried || echo 'another answer at temperature 0'
# However long it is, and later in a conversation, too: both start from the same logits.
long() { "$TQ" chat -m "$BUNDLED" --template chatml --temp 0 -n 40 -t 1 "$@" 2>err; }
for kv in tcq4 turbo:k8v3 turbo4,tail=64 f16; do
    printf 'Tell me a long story\n' | long --kv $kv >one
    printf 'Tell me a long story\nAnd then?\n' | long --kv $kv >two
    tail -c +$(($(wc -c <one) + 1)) two >second
    printf 'Tell me a long story\n/retry\n/retry\nAnd then?\n/retry\n/retry\n' | long --kv $kv >retried
    cat one one two second second | cmp -s - retried || echo "$kv: another answer at temperature 0"
done
printf '/retry\n/back\nWhat is it?\n/back\n/back\n' | chat >/dev/null
echo "exit $?"
grep -v '^tiny-' err | digits
# After a long answer a tail cannot go back: the prompt is computed again, or kept.
for keep in 0 1000; do
    printf 'What is the code for falcon?\n/retry\n/reset\nWhat is the code for falcon?\n/stats\n' |
        "$TQ" chat -m "$BUNDLED" --temp 0 -t 1 -n 130 --kv turbo4,tail=8 --keep $keep >/dev/null 2>err
    grep -E '^(reused|prompt)' err | awk '{ print $1, ($2 > 1 ? "many" : $2) }'
done
# Room for kept prompts that no memory holds: the option that asks for it is named.
if sh -c 'ulimit -v 4000000; "$0" --version; exit $?' "$TQ" >/dev/null 2>&1; then
    (ulimit -v 4000000; printf 'a\n' | chat --kv f32 --keep 16777216)
    sed -E 's/^[0-9.]+ .iB are free: they hold [0-9,]+ tokens/N are free: they hold N tokens/' err
else # a sanitizer needs more address space than that
    echo 'tq chat: error: out of memory: the KV cache for a context of 4096 tokens and 16777216 kept ones takes 256.06 GiB; use a smaller --keep'
    echo 'N are free: they hold N tokens, those of -c and --keep together.'
fi
# Commands and lines that are not sent.
printf '/help\n/stat\n/nonsense\n   \n\377\n/exit\nnot read\n' | chat
echo "exit $?"
cat err | digits
# A backslash joins lines.
printf 'What is the \\\ncode for falcon?\n/stats\n' | chat >joined
grep -c '^answer' err
# The context fills up: said, and the program goes on.
printf 'one\ntwo\nthree\n/reset\nfour\n' | chat -c 24 >/dev/null
echo "exit $?"
digits <err | sort | uniq -c | sed 's/^ *//'
# So is a line that is far too long to be tokenised; a script sees it at the exit code.
head -c 1000000 /dev/zero | tr '\0' a | chat -c 24
echo "exit $?"
tail -n 2 err
# The smallest context that was named is enough.
need=$(printf 'one' | chat -c 4 >/dev/null; sed -n 's/.*-c \([0-9]*\) or more.*/\1/p' err)
printf 'one' | chat -c $((need - 1)) >/dev/null
echo "exit $?"
printf 'one' | chat -c "$need" >/dev/null
echo "exit $?"
# No template.
t chat -m tiny.gguf --template nonsense
t chat -m tiny.gguf
