# SPDX-License-Identifier: MIT
# Saving, restoring, looking at snapshots; the prefix store.
same() { # NAME FILE FILE
    if cmp -s "$2" "$3"; then echo "same: $1"; else echo "DIFFERENT: $1"; fi
}
gen() { "$TQ" run -t 1 -m "$BUNDLED" --temp 0 "$@"; }
quiet() { gen "$@" 2>/dev/null; }
# One run against two halves, with and without more text between them; every scheme family.
for kv in turbo:k8v3 f16 tcq4,tail=64 turbo4,sink=4,start=30 affine4,skip=1; do
    quiet --kv $kv -p 'The sea was calm' -n 40 >whole
    quiet --kv $kv -p 'The sea was calm' -n 17 --save half.tqs | head -c -1 >parts
    quiet --load half.tqs -n 23 >>parts
    same "$kv, two halves" whole parts
done
quiet -p 'The sea' -n 0 --save sea.tqs
quiet --load sea.tqs -p ' was calm' -n 12 >a
quiet --load sea.tqs -f - -n 12 >b <<END
 was calm
END
same 'text from argument and stdin' a b
gen --load sea.tqs -n 1 2>&1 >/dev/null | grep -v '^machine ' | digits
# Files are equal when timelines are.
quiet -p 'The sea' -n 0 --save again.tqs
same 'two snapshots' sea.tqs again.tqs
# Refusals.
t run -m tiny.gguf --load sea.tqs -n 1 2>&1 | sed -E 's/fingerprint [0-9a-f]+/fingerprint F/; s/, [0-9a-f]+\.\.\./, F.../'
t run -m "$BUNDLED" --load sea.tqs --kv f16 -n 1 | sed "s|$BUNDLED|MODEL|"
t run -m tiny.gguf --load none.tqs -n 1
t run -m tiny.gguf --load tiny.gguf -n 1
gen --load sea.tqs -p ' and' -c 2 -n 1
echo "exit $?"
gen -p a -n 1 --save nowhere/x.tqs 2>&1 >/dev/null | grep error
gen -p a -n 1 --save /dev/full 2>&1 >/dev/null | grep error
# What is in them.
t snapshot info sea.tqs | sed -E 's/[0-9a-f]{64}/FINGERPRINT/'
"$TQ" snapshot info sea.tqs --json | python3 -c '
import json, sys; r = json.load(sys.stdin); print(sorted(r), r["tokens"], r["scheme"], len(r["layers"]))'
t snapshot verify sea.tqs
t snapshot export sea.tqs
"$TQ" snapshot export sea.tqs --what text -m "$BUNDLED"
"$TQ" snapshot export sea.tqs --what text -m tiny.gguf 2>&1 | sed -E 's/[0-9a-f]{16}\.\.\./F/g'
t snapshot export sea.tqs --what keys --layer 9 -o k.npy
t snapshot export sea.tqs --what values --head 2 -o v.npy
"$TQ" snapshot export sea.tqs --what keys --layer 1 --head 1 -o k.npy
"$TQ" snapshot export sea.tqs --what logits -o l.npy
python3 -c '
import ast, struct
for name, n in (("k.npy", 3 * 128), ("l.npy", 8192)):
    b = open(name, "rb").read()
    size = struct.unpack("<H", b[8:10])[0]
    v = struct.unpack("<%df" % n, b[10 + size:])
    print(b[:6] == b"\x93NUMPY", (10 + size) % 64, ast.literal_eval(b[10:10 + size].decode()), any(v))'
# The snapshot itself is no place for them, by whatever name; a full disk leaves what was there.
cp sea.tqs keep.tqs
ln -s sea.tqs soft.npy
ln sea.tqs hard.npy
for out in sea.tqs ./sea.tqs soft.npy hard.npy; do t snapshot export sea.tqs --what keys -o $out; done
t snapshot export soft.npy --what logits -o sea.tqs
same 'the snapshot after all this' sea.tqs keep.tqs
rm soft.npy hard.npy
cp k.npy old.npy
for what in keys values logits; do
    (trap '' XFSZ; ulimit -f 1; "$TQ" snapshot export sea.tqs --what $what -o k.npy 2>&1
    echo "exit $?") | cat
done
same 'the older export' k.npy old.npy
ls -A | grep -c '^\.tq-'
t snapshot compact sea.tqs -o small.tqs
t snapshot compact small.tqs -o small.tqs
gen --load small.tqs -n 1 2>&1 | grep error
quiet --load small.tqs -p ' was calm' -n 12 >b
same 'from a compact snapshot' a b
t snapshot export small.tqs --what logits -o l.npy
# Damage is named.
cp sea.tqs bad.tqs
size=$(wc -c <sea.tqs)
printf X | dd of=bad.tqs bs=1 seek=$((size - 3000)) conv=notrunc 2>/dev/null
t snapshot verify bad.tqs
t run -m "$BUNDLED" --load bad.tqs -n 1 | sed "s|$BUNDLED|MODEL|"
head -c 5000 sea.tqs >bad.tqs
t snapshot info bad.tqs
# The prefix store: the second run takes up what the first has computed.
text=$(head -c 700 "${BUNDLED%/*}/demo/harbour.txt")
for i in 1 2; do
    gen -p "$text" -n 12 --prefix-store store >out$i 2>err
    sed -n '/^reused/p' err | digits
done
same 'cold and hit' out1 out2
gen -p "$text" -n 12 --prefix-store store --prefix-salt other 2>&1 >/dev/null | grep -c '^reused'
page=$(ls store/*.page | head -n 1)
printf X | dd of="$page" bs=1 seek=2000 conv=notrunc 2>/dev/null
for i in 1 2; do # this page belongs to one of the two salts
    if [ $i = 1 ]; then gen -p "$text" -n 12 --prefix-store store >out2 2>err$i
    else gen -p "$text" -n 12 --prefix-store store --prefix-salt other >out2 2>err$i; fi
    same "after damage, $i" out1 out2
done
cat err1 err2 | grep -c 'warning: prefix store .* is set aside as .bad and computed again: damaged'
ls store/*.bad | wc -l
gen -p a -n 1 --prefix-store none/store 2>&1 | grep warning
gen -p "$text" -n 1 --prefix-store small --prefix-limit 1K 2>&1 | sed -n '/^tq.*warning/p' | digits
ls small/*.page 2>/dev/null | wc -l
# Also for a prompt shorter than a page.
gen -p a -n 1 --prefix-store small --prefix-limit 1K 2>&1 | sed -n '/^tq.*warning/p' | digits
# What lies in the folder of a store says what it is, and is no session.
rm -rf store
gen -p "$text" -n 1 --kv turbo4,tail=8 --prefix-store store >/dev/null 2>&1
for end in page end; do
    cp "$(ls store/*.$end | head -n 1)" "one.$end"
    t snapshot info "one.$end" | sed -E 's/[0-9a-f]{64}/FINGERPRINT/' | digits
    "$TQ" snapshot info "one.$end" --json | grep '"kind"'
    gen --load "one.$end" -p a -n 1 2>&1 | grep error
done
# Files of a scheme: the same file goes on, another one is refused; means of another model, too.
printf 'turboquant-layers 1\n0 turbo8\n' >layers
gen -p 'The harbour' -n 8 --kv turbo4,layers=layers --save mixed.tqs >/dev/null 2>&1
gen --load mixed.tqs -n 4 >/dev/null 2>&1
echo "exit $?"
t snapshot info mixed.tqs | sed -n '/scheme\|Scheme/p'
# Where the file lies is no part of the scheme: it is found beside the snapshot, or where --kv says.
mkdir elsewhere
(cd elsewhere; "$TQ" run -m "$BUNDLED" -t 1 --load ../mixed.tqs -n 1 2>&1 | grep -o 'turbo4,layers=.*'
mv ../layers moved
"$TQ" run -m "$BUNDLED" -t 1 --load ../mixed.tqs -n 1
echo "exit $?"
"$TQ" run -m "$BUNDLED" -t 1 --load ../mixed.tqs -n 1 --kv turbo4,layers=moved 2>&1 | grep -o 'turbo4,layers=.*'
mv moved ../layers)
t run -m "$BUNDLED" --kv turbo4,layers=elsewhere/none -p a -n 1 | sed "s|$BUNDLED|MODEL|"
echo '# more' >>layers
t run -m "$BUNDLED" --load mixed.tqs -n 1 | sed "s|$BUNDLED|MODEL|"
printf 'turboquant-kmean 1\nmodel %064d\nshape 4 2 64\n' 0 >means
t run -m "$BUNDLED" --kv turbo4,kmean=means -p a -n 1 | sed "s|$BUNDLED|MODEL|"
# Restoring against computing, the disk beside it.
"$TQ" bench snapshot -m "$BUNDLED" -t 1 -p 200 -r 1 2>/dev/null >bench.txt
echo "exit $?"
sed 1,2d bench.txt | digits # the machine is anyone's
sed -nE 's/^([0-9]+) times from memory$/\1/p' bench.txt | awk '{ print ($1 >= 20) }'
ls tq-bench.* 2>/dev/null | wc -l
