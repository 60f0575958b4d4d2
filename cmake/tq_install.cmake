# What `make install` puts where: library, headers, pkg-config file, CMake package, tq, man pages.
include(CMakePackageConfigHelpers)

set(tq_cmake_dir "${CMAKE_INSTALL_LIBDIR}/cmake/turboquant")

install(TARGETS turboquant turboquant_shared EXPORT turboquantTargets
  ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}"
  LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}"
  INCLUDES DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}")
install(FILES "${PROJECT_SOURCE_DIR}/include/turboquant.h"
  "${PROJECT_SOURCE_DIR}/include/turboquant_batch.h"
  "${PROJECT_SOURCE_DIR}/include/turboquant_pages.h"
  DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}")
install(EXPORT turboquantTargets NAMESPACE turboquant:: DESTINATION "${tq_cmake_dir}")

configure_package_config_file("${PROJECT_SOURCE_DIR}/cmake/turboquantConfig.cmake.in"
  "${PROJECT_BINARY_DIR}/turboquantConfig.cmake" INSTALL_DESTINATION "${tq_cmake_dir}")
# Before 1.0 a new minor version may change the API.
write_basic_package_version_file("${PROJECT_BINARY_DIR}/turboquantConfigVersion.cmake"
  COMPATIBILITY SameMinorVersion)
install(FILES "${PROJECT_BINARY_DIR}/turboquantConfig.cmake"
  "${PROJECT_BINARY_DIR}/turboquantConfigVersion.cmake" DESTINATION "${tq_cmake_dir}")

# The prefix is found from the place of the .pc file, so that the tree can be moved and
# `cmake --install --prefix` needs no new configure run.
file(RELATIVE_PATH tq_pc_to_prefix
  "/prefix/${CMAKE_INSTALL_LIBDIR}/pkgconfig" "/prefix")
configure_file("${PROJECT_SOURCE_DIR}/cmake/turboquant.pc.in"
  "${PROJECT_BINARY_DIR}/turboquant.pc" @ONLY)
install(FILES "${PROJECT_BINARY_DIR}/turboquant.pc"
  DESTINATION "${CMAKE_INSTALL_LIBDIR}/pkgconfig")
install(FILES "${PROJECT_SOURCE_DIR}/LICENSE" DESTINATION "${CMAKE_INSTALL_DOCDIR}")

if(TARGET tq)
  install(TARGETS tq RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}")
endif()

# Man pages are written in Markdown; a machine without lowdown installs none.
find_program(TQ_LOWDOWN lowdown)
set(tq_man_pages turboquant.3)
if(TARGET tq)
  list(APPEND tq_man_pages tq.1 tq-bench.1 tq-chat.1 tq-eval.1 tq-info.1 tq-run.1 tq-snapshot.1
    tq-tune.1)
endif()
if(TQ_LOWDOWN)
  set(tq_man_outputs "")
  foreach(page IN LISTS tq_man_pages)
    set(source "${PROJECT_SOURCE_DIR}/docs/man/${page}.md")
    string(REGEX MATCH "[0-9]$" section "${page}")
    set(output "${PROJECT_BINARY_DIR}/man/${page}")
    add_custom_command(OUTPUT "${output}" DEPENDS "${source}" VERBATIM
      COMMAND "${CMAKE_COMMAND}" -E make_directory "${PROJECT_BINARY_DIR}/man"
      COMMAND "${TQ_LOWDOWN}" -s -Tman --out-no-smarty -o "${output}" "${source}")
    list(APPEND tq_man_outputs "${output}")
    install(FILES "${output}" DESTINATION "${CMAKE_INSTALL_MANDIR}/man${section}")
  endforeach()
  add_custom_target(tq_man ALL DEPENDS ${tq_man_outputs})
else()
  message(STATUS "lowdown not found: man pages will not be installed")
endif()
