# SPDX-License-Identifier: MIT
"""Check of the affine-lloyd goldens of profile ref32 (tests/golden/affine-lloyd, header TQGV)."""
import glob
import os
import struct
from . import affine_lloyd as al
from .num import f16_value, f32_list, pack_lsb


def same_f32(a, b):
    """Equal words; NaN as a class, +0 == -0."""
    return len(a) == len(b) and all(x == y or (x != x and y != y) for x, y in zip(a, b))


def same_f16(a, b):
    return same_f32([f16_value(x) for x in a], [f16_value(x) for x in b])


def _sections(blob, spec):
    out, at = [], 64
    for kind, n in spec:
        size = n * {"f": 4, "b": 1, "h": 2}[kind]
        part = blob[at:at + size]
        assert len(part) == size, "file too short"
        out.append(f32_list(part) if kind == "f" else
                   list(part) if kind == "b" else list(struct.unpack("<%dH" % n, part)))
        at += size
    assert at == len(blob), "trailing bytes"
    return out


def check_file(path):
    """Return the list of fields that differ (empty: the file is reproduced)."""
    blob = open(path, "rb").read()
    h = struct.unpack("<4s15I", blob[:64])
    magic, version, kind, profile, _, bits, _, d, r, p, g = h[:11]
    assert magic == b"TQGV" and version == 1 and profile == 0, path
    bad = []

    def need(name, ok, row):
        if not ok:
            bad.append("%s row %d" % (name, row))

    if kind == 0:
        x, idx, packed, sc, ze, dec = _sections(
            blob, (("f", r * d), ("b", r * d), ("b", r * p), ("h", r * g), ("h", r * g),
                   ("f", r * d)))
        for i in range(r):
            codes, s, z = al.key_encode(x[i * d:(i + 1) * d], bits, strict=True)
            need("idx", [c & 255 for c in codes] == idx[i * d:(i + 1) * d], i)
            need("packed", list(al.key_pack(codes, bits)) == packed[i * p:(i + 1) * p], i)
            need("scale", same_f16(s, sc[i * g:(i + 1) * g]), i)
            need("zero", same_f16(z, ze[i * g:(i + 1) * g]), i)
            need("decoded", same_f32(al.key_decode(codes, s, z), dec[i * d:(i + 1) * d]), i)
            back = al.key_unpack(bytes(packed[i * p:(i + 1) * p]), bits, d)
            need("unpack", back == codes, i)
    else:
        x, rot, rms, idx, packed, sc, dec = _sections(
            blob, (("f", r * d), ("f", r * d), ("f", r * g), ("b", r * d), ("b", r * p),
                   ("h", r * g), ("f", r * d)))
        for i in range(r):
            y, codes, rr = al.value_encode(x[i * d:(i + 1) * d], bits, strict=True)
            s = al.value_scales(rr, strict=True)
            need("rotated", same_f32(y, rot[i * d:(i + 1) * d]), i)
            need("rms", same_f32(rr, rms[i * g:(i + 1) * g]), i)
            need("idx", codes == idx[i * d:(i + 1) * d], i)
            need("packed", list(pack_lsb(codes, bits)) == packed[i * p:(i + 1) * p], i)
            need("scale", same_f16(s, sc[i * g:(i + 1) * g]), i)
            need("decoded", same_f32(al.value_decode(codes, s, bits), dec[i * d:(i + 1) * d]), i)
    return bad


def check(root):
    """Check every file of profile ref32 under root/affine-lloyd. Returns (files, failures)."""
    files = sorted(glob.glob(os.path.join(root, "affine-lloyd", "**", "*.bin"), recursive=True))
    files = [f for f in files if open(f, "rb").read(16)[12:16] == bytes(4)]
    fails = []
    for f in files:
        bad = check_file(f)
        if bad:
            fails.append("%s: %s" % (os.path.basename(f), ", ".join(bad[:4])))
    return len(files), fails
