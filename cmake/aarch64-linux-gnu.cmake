# Toolchain: AArch64 Linux with Debian's cross compiler; programs run under qemu's user mode.
# The preset asks for -O2 without the vectoriser, in which Debian's gcc 12.2 for AArch64 crashes on
# two of the tests; the kernels are intrinsics and do not need it.
# Its test preset leaves out the tests of whole caches and long contexts, which take minutes in the
# emulator; what differs on AArch64 is the kernels, and those are all tested.
# Used by the preset `aarch64`, which is how `make check` runs the NEON kernels on other machines.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64 -L /usr/aarch64-linux-gnu)

# Headers and libraries of the host would be found first.
set(CMAKE_FIND_ROOT_PATH /usr/aarch64-linux-gnu)
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)
