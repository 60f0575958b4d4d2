# Finds llama.cpp v0.4 (targets `llama` and `ggml::ggml`), in this order:
#   1. -DTQ_LLAMA_SOURCE_DIR=<tree>   built once by cmake/llama, kept in the cache
#   2. an installed package           find_package(llama) in CMAKE_PREFIX_PATH and the system
#   3. the pinned tree                fetched, verified, built once, kept in the cache
# The cache is outside the build folder (see tools/build_llama.sh), so that every preset and every
# clone shares one optimised copy.

set(TQ_LLAMA_SOURCE_DIR "" CACHE PATH "llama.cpp tree to build instead of the pinned one")
set(TQ_LLAMA_VERSION 0.4)

# Their package files cache these paths; stale ones would survive a change of prefix.
foreach(v llama_LIBRARY ggml_DIR GGML_LIBRARY GGML_BASE_LIBRARY GGML_CPU_LIBRARY)
  unset(${v} CACHE)
endforeach()

if(NOT TQ_LLAMA_SOURCE_DIR)
  find_package(llama ${TQ_LLAMA_VERSION} CONFIG QUIET)
  # "Same major version" accepts every 0.x, and the API moves with each.
  if(llama_FOUND AND NOT LLAMA_VERSION MATCHES "^0\\.4\\.")
    message(FATAL_ERROR
      "llama.cpp ${LLAMA_VERSION} in ${llama_DIR} is not a ${TQ_LLAMA_VERSION} version. "
      "Remove it from CMAKE_PREFIX_PATH, or give -DTQ_LLAMA_SOURCE_DIR=<tree of v0.4.0>.")
  endif()
endif()

if(NOT llama_FOUND)
  set(tq_llama_command bash "${PROJECT_SOURCE_DIR}/tools/build_llama.sh"
    --fallback-cache "${PROJECT_SOURCE_DIR}/build/cache")
  if(TQ_LLAMA_SOURCE_DIR)
    list(APPEND tq_llama_command --source "${TQ_LLAMA_SOURCE_DIR}")
  endif()
  message(STATUS "llama.cpp: looking in the cache (the first build takes a few minutes)")
  execute_process(COMMAND ${tq_llama_command}
    OUTPUT_VARIABLE tq_llama_prefix OUTPUT_STRIP_TRAILING_WHITESPACE
    RESULT_VARIABLE tq_llama_result)
  if(NOT tq_llama_result EQUAL 0)
    message(FATAL_ERROR
      "llama.cpp could not be prepared (see above). Without a network: give "
      "-DTQ_LLAMA_SOURCE_DIR=<tree of v0.4.0>, or -DTQ_ENGINE=OFF for the core alone.")
  endif()
  # Not the cached variable: the next configure run must look again.
  unset(llama_DIR CACHE)
  find_package(llama ${TQ_LLAMA_VERSION} CONFIG REQUIRED
    PATHS "${tq_llama_prefix}" NO_DEFAULT_PATH)
  unset(llama_DIR CACHE)
endif()

# Their targets do not say that a static ggml needs the C++ runtime and libm: without this, each C
# program would have to set LINKER_LANGUAGE CXX. Last in the link order, after every user of them.
set(tq_cxx_runtime ${CMAKE_CXX_IMPLICIT_LINK_LIBRARIES})
list(REMOVE_ITEM tq_cxx_runtime ${CMAKE_C_IMPLICIT_LINK_LIBRARIES})
target_link_libraries(ggml::ggml-base INTERFACE ${tq_cxx_runtime} m ${CMAKE_DL_LIBS})

message(STATUS "llama.cpp ${LLAMA_VERSION} (${LLAMA_BUILD_COMMIT}): ${LLAMA_LIB_DIR}")
