# SPDX-License-Identifier: MIT
# An output that cannot be written is a failure with a reason.
[ -w /dev/full ] || { echo 'no /dev/full here; skipped'; exit 77; }
shows 'tq --help >&-'
shows 'tq info tiny.gguf >&-'
shows 'tq run -m tiny.gguf -p a -n 5 >&-'
shows 'tq --help >/dev/full'
shows 'tq info tiny.gguf --json >/dev/full'
shows 'tq run -m tiny.gguf -p a -n 5 >/dev/full'
shows 'tq run -m tiny.gguf -p a -n 5 --json >/dev/full'
shows 'echo hello | tq chat -m tiny.gguf --template chatml -n 5 >/dev/full'
# The reader leaves: the writer notices, however much it still had to say.
shows '{ tq run -m tiny.gguf -p a -n 200 --temp 0; echo "tq: $?" >&2; } | head -c 1 >/dev/null'
# stdin and stderr closed are no reason to fail.
shows 'tq info tiny.gguf --memory 1M --kv f16 <&- 2>&-'
