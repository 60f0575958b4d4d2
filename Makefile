# The front door. CMake does the work (CMakePresets.json); these are the commands to remember.
# `make help` lists them.
SHELL = /bin/bash
PREFIX ?= /usr/local
CMAKE_FLAGS ?=
JOBS ?= $(shell nproc 2>/dev/null || echo 2)
CTEST = ctest --output-on-failure --no-tests=error -j $(JOBS)

.PHONY: all release demo check test install bench asan tsan fuzz aarch64 format clean help

all: release

help:
	@echo 'make                 build libturboquant and tq into build/release'
	@echo 'make demo            install what is missing (apt), build, run the bundled model'
	@echo 'make check           the same for the tests: every test, sanitizers, gcc and clang'
	@echo 'make test            the tests of the release build alone'
	@echo 'make install         install into PREFIX (/usr/local); DESTDIR is honoured'
	@echo 'make bench           kernel and engine benchmarks'
	@echo 'make asan|tsan|fuzz  build and run the tests under a sanitizer or libFuzzer'
	@echo 'make aarch64         build the core for AArch64 and run its tests under qemu'
	@echo 'make format          clang-format every C file in place'
	@echo 'make clean           remove build/ (the cached llama.cpp stays)'
	@echo
	@echo 'CMAKE_FLAGS="-D..."  more options for configure, e.g. -DTQ_LLAMA_SOURCE_DIR=<tree>'
	@echo 'JOBS=N               parallel jobs (all processors)'

# Programs only: a plain `make` installs nothing and does not need what the tests need.
release:
	@{ command -v cmake && command -v ninja; } >/dev/null || \
		{ echo 'cmake and ninja are needed; "tools/setup.sh build" installs them' >&2; exit 1; }
	@cmake --preset release -DTQ_TESTS=OFF $(CMAKE_FLAGS)
	@cmake --build --preset release -j $(JOBS)

demo:
	@tools/setup.sh build
	@$(MAKE) --no-print-directory release
	@tools/demo.sh build/release

check:
	@CMAKE_FLAGS='$(CMAKE_FLAGS)' JOBS='$(JOBS)' tools/check.sh

test:
	@tools/setup.sh check
	@cmake --preset ci $(CMAKE_FLAGS)
	@cmake --build --preset ci -j $(JOBS)
	@$(CTEST) --test-dir build/ci

asan tsan fuzz aarch64:
	@tools/setup.sh check
	@cmake --preset $@ $(CMAKE_FLAGS)
	@cmake --build --preset $@ -j $(JOBS)
	@ctest --preset $@ -j $(JOBS)

# The prefix is given at install time. A tree that is built is not configured again: root, in
# `sudo make install`, has another cache of llama.cpp.
install:
	@[ -f build/release/build.ninja ] || $(MAKE) --no-print-directory release
	@cmake --build --preset release -j $(JOBS)
	@DESTDIR='$(DESTDIR)' cmake --install build/release --prefix '$(PREFIX)'

bench: release
	@build/release/apps/tq/tq bench codec
	@build/release/apps/tq/tq bench attn
	@build/release/apps/tq/tq bench engine -m models/tiny-qwen3-28m.q8_0.gguf \
		--kv f16 --kv turbo:k8v3 --peer llama -t 1

format:
	@git ls-files -z '*.c' '*.h' | xargs -0 clang-format -i

clean:
	@rm -rf build
