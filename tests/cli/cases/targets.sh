# SPDX-License-Identifier: MIT
# Where results go: onto no input, and nowhere that is known to be bad before the work begins.
printf 'The sea was calm.' >text
printf 'turboquant-layers 1\n0 turbo8\n' >layers
printf 'turboquant-kmean 1\nmodel %064d\nshape 2 2 32\n' 0 >means
ln -s text soft
ln tiny.gguf hard.gguf
sums() { cksum tiny.gguf text layers means; }
sums >before
t run -m tiny.gguf -f text --save tiny.gguf
t run -m tiny.gguf -f text --save hard.gguf
t run -m tiny.gguf -f text --save ./text
t run -m tiny.gguf -f soft --save text
t run -m tiny.gguf -f text --save soft
t run -m tiny.gguf -f text --kv turbo8,layers=layers --save layers
t run -m tiny.gguf -f text --kv turbo8,kmean=means --save means
for flag in --csv --json --html --resume; do t eval -m tiny.gguf -f text -f soft $flag ./text; done
t eval -m tiny.gguf -f text --json hard.gguf
t eval -m tiny.gguf -f text --kv turbo8,layers=layers --csv layers
t eval -m tiny.gguf -f text --needle means --csv means
ln -s ../work/text out.layers
t tune -m tiny.gguf -f text --budget 4 -o out
t tune -m tiny.gguf -f text --budget 4 --json hard.gguf
t bench engine -m tiny.gguf --csv hard.gguf
t bench snapshot -m tiny.gguf --csv hard.gguf
sums | cmp - before && echo 'no input has changed'
# Two results in one file, there or not yet, are one too few.
: >there
ln -s there link
for two in '--csv a --json a' '--csv ./a --html a' '--json link --csv there' '--csv a.part --json a' \
    '--resume a --csv a'; do
    t eval -m tiny.gguf -f text $two
done
for two in '--json a.layers -o a' '-o a --json ./a.kmean' '-o a --json a.part' '-o a --resume a.kmean'; do
    t tune -m tiny.gguf -f text --budget 4 $two
done
t bench codec --csv a.svg --plot ./a.svg
t bench engine -m tiny.gguf --csv a.svg --plot a.svg
t bench snapshot -m tiny.gguf --csv a.svg --plot a.svg
# A session may be saved where it was loaded from.
"$TQ" run -m tiny.gguf -f text -n 0 --save a.tqs 2>/dev/null
t run -m tiny.gguf --load a.tqs -p b -n 0 --save a.tqs | sed -n '/saved/p' | digits
shows 'tq snapshot export a.tqs --what keys -o /dev/stdout >keys.npy'
[ -L /dev/stdout ] && echo 'still a link'
# The mode of a file that is replaced stays; a new one has what the umask leaves.
run() { "$TQ" run -m tiny.gguf -p a -n 0 "$@" >/dev/null 2>&1; }
modes() { stat -c '%a %n' "$@"; }
for mode in 600 400 666 751; do
    chmod $mode a.tqs
    (umask 027; run --save a.tqs)
    modes a.tqs
    (umask 077; "$TQ" snapshot compact a.tqs -o a.tqs >/dev/null)
    modes a.tqs
    : >a.npy
    chmod $mode a.npy
    "$TQ" snapshot export a.tqs --what keys -o a.npy
    modes a.npy
done
for mask in 022 077 002; do
    rm -f a.tqs b.tqs a.npy
    (umask $mask; run --save a.tqs; "$TQ" snapshot compact a.tqs -o b.tqs >/dev/null
    "$TQ" snapshot export a.tqs --what keys -o a.npy)
    modes a.tqs b.tqs a.npy
done
# Bad places are known before the work: the model and the snapshot that are named here are no such
# thing, which nobody has looked at.
printf x >no-model
mkdir folder no-write
mkfifo fifo
chmod 555 no-write
for out in folder folder/ nowhere/x fifo /dev/null /dev/full text/x -; do
    t run -m no-model -p a --save "$out"
    t snapshot export no-model --what keys -o "$out"
    t snapshot compact no-model -o "$out"
done
if [ -w no-write ]; then # root may write anywhere, but not make a file in /proc
    "$TQ" run -m no-model -p a --save /proc/x 2>&1
else
    "$TQ" run -m no-model -p a --save no-write/x 2>&1
fi | sed 's/: [A-Z][a-z ]*$/: WHY/; s|/proc|no-write|'
"$TQ" run -m no-model -p a --save "$(printf %0300d 0)" 2>&1
ls -A folder no-write
ls -A | grep '^\.tq-' || echo 'nothing is left behind'
# A reader who goes away, or a full disk behind stdout, costs the text and not the session: it holds
# what could be written, so that the whole text is that of one run.
long="$TQ run -m $BUNDLED -t 1 --temp 0"
$long -p 'The sea' -n 60 >whole 2>/dev/null
for out in full pipe; do
    rm -f a.tqs
    if [ $out = full ]; then
        $long -p 'The sea' -n 60 --save a.tqs >/dev/full 2>err
        echo "exit $?"
    else
        { $long -p 'The sea' -n 3000 --save a.tqs 2>err; echo "exit $?" >code; } | head -c 1 >/dev/null
        cat code
    fi
    grep '^saved\|error' err | digits
    { "$TQ" snapshot export a.tqs --what text -m "$BUNDLED" | head -c -1
    $long --load a.tqs -n 60 2>/dev/null; } | sed 's/^The sea//' >parts
    cut -c 1-100 whole | head -n 1 >x
    cut -c 1-100 parts | head -n 1 | cmp - x && echo 'goes on where the reader left'
done
$long -p 'The sea' -n 5 --json --save b.tqs >/dev/full 2>err
echo "exit $?"
grep '^saved\|error' err | digits
