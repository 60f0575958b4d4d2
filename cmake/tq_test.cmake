# Tests.
#   tq_add_test(NAME name [SOURCES file...] [LIBS lib...] [LABELS label...] [ARGS arg...]
#               [COMMAND cmd...] [DEFINES def...] [TIMEOUT seconds] [SERIAL])
#     With SOURCES: a cmocka program, run with ARGS. With COMMAND: that command.
#     Labels: "fast" is under 60 s in all, without model or network; default: fast. The target
#     tq_threads_tests builds the programs of "threads", which is all that ThreadSanitizer runs.
#     Exit code 77 means skipped.
#   tq_add_fuzz(NAME name SOURCES file... [LIBS lib...] [CORPUS dir] [LABELS label...])
#     A libFuzzer target. Without TQ_FUZZ it is linked with tests/fuzz/replay.c and ctest replays
#     the corpus; with TQ_FUZZ ctest fuzzes it for TQ_FUZZ_SECONDS, starting from the corpus.

set(TQ_FUZZ_SECONDS 10 CACHE STRING "Seconds that ctest runs each libFuzzer target")

# Ten seconds and more in some build: with -j these start first, in this order, lest one of them
# runs alone at the end.
set(TQ_LONG_TESTS format.trellis kernels.codec kernels unit.attn_parts single_command cli.bench
  cli.snapshot cli.chat cli.eval unit.cache_forms unit.trellis unit.codec cli.tune unit.attn_mla
  unit.attn engine.scheme_files engine.timeline unit.attn_batch unit.codec_quality engine.contract
  engine.alloc engine.prefix_folder format.cross unit.codec_guard format.goldens engine.eval
  engine.bad_gguf unit.attn_error unit.attn_error_affine unit.codec_rotated cli.resident cli.width)

if(TQ_TESTS)
  add_custom_target(tq_threads_tests)
endif()
if(TQ_TESTS AND CMAKE_CROSSCOMPILING)
  # A cross root has no cmocka: a stand-in with the part that we use.
  set(CMOCKA_INCLUDE_DIR "${PROJECT_SOURCE_DIR}/tests/cross")
  set(CMOCKA_LIBRARY "")
elseif(TQ_TESTS)
  find_path(CMOCKA_INCLUDE_DIR cmocka.h)
  find_library(CMOCKA_LIBRARY cmocka)
  if(NOT CMOCKA_INCLUDE_DIR OR NOT CMOCKA_LIBRARY)
    message(FATAL_ERROR "cmocka not found: install libcmocka-dev (tools/setup.sh does), "
      "or configure with -DTQ_TESTS=OFF")
  endif()
endif()

set(TQ_TEST_ENV
  "ASAN_OPTIONS=detect_leaks=1:detect_stack_use_after_return=1:allocator_may_return_null=1"
  "UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1"
  "TSAN_OPTIONS=halt_on_error=1:second_deadlock_stack=1")

# A program of the tests: private headers of the core in reach, paths to data as definitions.
function(tq_test_program target)
  cmake_parse_arguments(T "" "" "SOURCES;LIBS;DEFINES" ${ARGN})
  add_executable(${target} ${T_SOURCES})
  target_link_libraries(${target} PRIVATE ${T_LIBS})
  target_include_directories(${target} PRIVATE
    "${PROJECT_SOURCE_DIR}/include" "${PROJECT_SOURCE_DIR}/src" "${PROJECT_SOURCE_DIR}/tests")
  target_compile_definitions(${target} PRIVATE
    TQ_TEST_DIR="${PROJECT_SOURCE_DIR}/tests"
    TQ_MODELS_DIR="${PROJECT_SOURCE_DIR}/models"
    TQ_SHARED_DIR="${PROJECT_SOURCE_DIR}/../shared"
    ${T_DEFINES})
  tq_warnings(${target})
endfunction()

function(tq_add_test)
  cmake_parse_arguments(T "SERIAL" "NAME;TIMEOUT"
    "SOURCES;LIBS;LABELS;ARGS;COMMAND;DEFINES" ${ARGN})
  if(T_UNPARSED_ARGUMENTS OR NOT T_NAME)
    message(FATAL_ERROR "tq_add_test(${T_NAME}): unexpected '${T_UNPARSED_ARGUMENTS}'")
  endif()
  if(T_SOURCES)
    tq_test_program(test_${T_NAME} SOURCES ${T_SOURCES} LIBS ${T_LIBS} ${CMOCKA_LIBRARY} m
      DEFINES ${T_DEFINES})
    target_include_directories(test_${T_NAME} SYSTEM PRIVATE "${CMOCKA_INCLUDE_DIR}")
    set(T_COMMAND test_${T_NAME})
    if("threads" IN_LIST T_LABELS)
      add_dependencies(tq_threads_tests test_${T_NAME})
    endif()
  endif()
  add_test(NAME ${T_NAME} COMMAND ${T_COMMAND} ${T_ARGS} COMMAND_EXPAND_LISTS)
  if(NOT T_LABELS)
    set(T_LABELS fast)
  endif()
  if(NOT T_TIMEOUT)
    set(T_TIMEOUT 120)
  endif()
  if(TQ_SANITIZE OR CMAKE_CROSSCOMPILING) # slow: instrumented, or in an emulator
    math(EXPR T_TIMEOUT "4 * ${T_TIMEOUT}")
  endif()
  set_tests_properties(${T_NAME} PROPERTIES
    LABELS "${T_LABELS}" TIMEOUT ${T_TIMEOUT} SKIP_RETURN_CODE 77 RUN_SERIAL ${T_SERIAL}
    ENVIRONMENT "${TQ_TEST_ENV}")
  list(FIND TQ_LONG_TESTS ${T_NAME} place)
  if(place GREATER -1)
    math(EXPR cost "100 - ${place}")
    set_tests_properties(${T_NAME} PROPERTIES COST ${cost})
  endif()
endfunction()

function(tq_add_fuzz)
  cmake_parse_arguments(T "" "NAME;CORPUS" "SOURCES;LIBS;LABELS" ${ARGN})
  if(T_UNPARSED_ARGUMENTS OR NOT T_NAME OR NOT T_SOURCES)
    message(FATAL_ERROR "tq_add_fuzz(${T_NAME}): NAME and SOURCES are needed; "
      "unexpected '${T_UNPARSED_ARGUMENTS}'")
  endif()
  set(target fuzz_${T_NAME})
  set(corpus "")
  if(T_CORPUS)
    get_filename_component(corpus "${T_CORPUS}" ABSOLUTE)
  endif()
  if(TQ_FUZZ)
    tq_test_program(${target} SOURCES ${T_SOURCES} LIBS ${T_LIBS} m)
    target_link_options(${target} PRIVATE -fsanitize=fuzzer)
    # New inputs go to the build folder; the committed corpus is only read.
    set(found "${CMAKE_CURRENT_BINARY_DIR}/found_${T_NAME}")
    file(MAKE_DIRECTORY "${found}")
    tq_add_test(NAME fuzz.${T_NAME} LABELS fuzz ${T_LABELS} TIMEOUT 300
      COMMAND ${target} -max_total_time=${TQ_FUZZ_SECONDS} -rss_limit_mb=2048 -timeout=20
        -artifact_prefix=${found}/crash- ${found} ${corpus})
  else()
    tq_test_program(${target} SOURCES ${T_SOURCES} "${PROJECT_SOURCE_DIR}/tests/fuzz/replay.c"
      LIBS ${T_LIBS} m)
    tq_add_test(NAME replay.${T_NAME} LABELS fast fuzz ${T_LABELS} COMMAND ${target} ${corpus})
  endif()
endfunction()
