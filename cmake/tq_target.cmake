# How our own targets are compiled.
#   tq_warnings(target)                      warnings, exact floating point, sanitizers
#   tq_isa_object(name isa sources...)       OBJECT library of kernels for one instruction set

# -ffp-contract=off is not a matter of taste: gcc and clang fuse a*b+c when they may, and a fused
# sum rounds differently, which would make stored bytes depend on the compiler.
function(tq_warnings target)
  target_compile_options(${target} PRIVATE
    -Wall -Wextra -Wshadow -Wconversion
    $<$<COMPILE_LANGUAGE:C>:-Wvla -Wstrict-prototypes -Wmissing-prototypes>
    -ffp-contract=off -fno-strict-aliasing
    $<$<BOOL:${TQ_WERROR}>:-Werror>)
  if(TQ_SANITIZE)
    target_compile_options(${target} PRIVATE
      -fsanitize=${TQ_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer)
    # PUBLIC: the runtime belongs to whatever program links the target.
    target_link_options(${target} PUBLIC
      $<BUILD_INTERFACE:-fsanitize=${TQ_SANITIZE}> $<BUILD_INTERFACE:-fno-sanitize-recover=all>)
  endif()
  if(TQ_FUZZ)
    target_compile_options(${target} PRIVATE -fsanitize=fuzzer-no-link)
  endif()
endfunction()

set(TQ_ISA_FLAGS_avx2 -mavx2 -mfma -mf16c)
# Without -O gcc's intrinsics are macros that convert signs inside.
set(TQ_ISA_FLAGS_avx512 -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx2 -mfma -mf16c
  $<$<CONFIG:Debug>:-Wno-sign-conversion>)
set(TQ_ISA_FLAGS_avx512_vnni ${TQ_ISA_FLAGS_avx512} -mavx512vnni -mavx512vbmi)
set(TQ_ISA_FLAGS_neon "")

# Flags go on a library of their own, never on a source property or a global variable: one stray
# -mavx2 on a common file is an illegal instruction on an older CPU. No LTO for the same reason:
# it may move code between files.
function(tq_isa_object name isa)
  if(NOT DEFINED TQ_ISA_FLAGS_${isa})
    message(FATAL_ERROR "tq_isa_object: unknown instruction set '${isa}'")
  endif()
  add_library(${name} OBJECT ${ARGN})
  target_compile_options(${name} PRIVATE ${TQ_ISA_FLAGS_${isa}})
  set_target_properties(${name} PROPERTIES INTERPROCEDURAL_OPTIMIZATION OFF)
  tq_core_target(${name})
  # Unrolled vector code grows past all bounds when each load is checked inline four ways: a
  # minute for one file. The address check stays, as a call; the checks of alignment and null do
  # nothing for intrinsics on unaligned loads that it would not find.
  if(TQ_SANITIZE MATCHES "undefined")
    target_compile_options(${name} PRIVATE
      -fno-sanitize=alignment,null,object-size,pointer-overflow)
  endif()
  if(TQ_SANITIZE MATCHES "address")
    target_compile_options(${name} PRIVATE
      $<$<C_COMPILER_ID:GNU>:--param=asan-instrumentation-with-call-threshold=0>
      "$<$<C_COMPILER_ID:Clang>:SHELL:-mllvm -asan-instrumentation-with-call-threshold=0>")
  endif()
endfunction()

# What every object of the core shares.
function(tq_core_target name)
  target_include_directories(${name} PRIVATE
    "${PROJECT_SOURCE_DIR}/include" "${PROJECT_SOURCE_DIR}/src")
  set_target_properties(${name} PROPERTIES C_VISIBILITY_PRESET hidden)
  tq_warnings(${name})
endfunction()
