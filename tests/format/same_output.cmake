# cmake -DPROGRAM=... -DEXPECTED=... -P same_output.cmake: PROGRAM prints exactly EXPECTED.
execute_process(COMMAND "${PROGRAM}" OUTPUT_VARIABLE got RESULT_VARIABLE rc)
file(READ "${EXPECTED}" want)
if(NOT rc EQUAL 0 OR NOT got STREQUAL want)
  message(FATAL_ERROR "${PROGRAM} does not print ${EXPECTED}")
endif()
