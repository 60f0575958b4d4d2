/* SPDX-License-Identifier: MIT */
/* codec_cases.h — every format, and the dimensions at which the tests use it. */
#ifndef TQ_TEST_CODEC_CASES_H
#define TQ_TEST_CODEC_CASES_H

#include "turboquant.h"

static const struct {
    tq_format format;
    int has_groups;
} case_formats[] = {{TQ_FMT_F32, 0},       {TQ_FMT_F16, 0},       {TQ_FMT_BF16, 0},
                    {TQ_FMT_AFFINE_K2, 1}, {TQ_FMT_AFFINE_K4, 1}, {TQ_FMT_AFFINE_K5, 1},
                    {TQ_FMT_AFFINE_K8, 1}, {TQ_FMT_LLOYD_V2, 1},  {TQ_FMT_LLOYD_V3, 1},
                    {TQ_FMT_LLOYD_V4, 1},  {TQ_FMT_LLOYD_V5, 1},  {TQ_FMT_LLOYD_V8, 1}};

#define N_CASE_FORMATS (sizeof(case_formats) / sizeof(case_formats[0]))

static const uint32_t case_group_dims[] = {64, 128, 256, 512};
static const uint32_t case_raw_dims[] = {16, 40, 80, 128, 192, 576, 1024};

static inline size_t case_n_dims(size_t f)
{
    return case_formats[f].has_groups ? 4 : 7;
}

static inline uint32_t case_dim(size_t f, size_t d)
{
    return case_formats[f].has_groups ? case_group_dims[d] : case_raw_dims[d];
}

#endif
