/* SPDX-License-Identifier: MIT */
/* codec_cases.h — every format that a scheme uses, and the dimensions at which the tests use it. */
#ifndef TQ_TEST_CODEC_CASES_H
#define TQ_TEST_CODEC_CASES_H

#include "turboquant.h"

typedef enum case_kind {
    CASE_RAW,     /* every dimension; uniform groups too */
    CASE_GROUPS,  /* affine keys and Lloyd values; take TQ_CODEC_STRICT */
    CASE_ROTATED, /* one scale per row */
    CASE_PROD     /* the same, but a row comes back with noise as large as itself */
} case_kind;

static const struct {
    tq_format format;
    case_kind kind;
} case_formats[] = {
    {TQ_FMT_F32, CASE_RAW},          {TQ_FMT_F16, CASE_RAW},
    {TQ_FMT_BF16, CASE_RAW},         {TQ_FMT_AFFINE_K2, CASE_GROUPS},
    {TQ_FMT_AFFINE_K4, CASE_GROUPS}, {TQ_FMT_AFFINE_K5, CASE_GROUPS},
    {TQ_FMT_AFFINE_K8, CASE_GROUPS}, {TQ_FMT_LLOYD_V2, CASE_GROUPS},
    {TQ_FMT_LLOYD_V3, CASE_GROUPS},  {TQ_FMT_LLOYD_V4, CASE_GROUPS},
    {TQ_FMT_LLOYD_V5, CASE_GROUPS},  {TQ_FMT_LLOYD_V8, CASE_GROUPS},
    {TQ_FMT_NORM2, CASE_ROTATED},    {TQ_FMT_NORM3, CASE_ROTATED},
    {TQ_FMT_NORM4, CASE_ROTATED},    {TQ_FMT_NORM5, CASE_ROTATED},
    {TQ_FMT_NORM6, CASE_ROTATED},    {TQ_FMT_NORM8, CASE_ROTATED},
    {TQ_FMT_TCQ2, CASE_ROTATED},     {TQ_FMT_TCQ3, CASE_ROTATED},
    {TQ_FMT_TCQ4, CASE_ROTATED},     {TQ_FMT_TCQ5, CASE_ROTATED},
    {TQ_FMT_TCQ6, CASE_ROTATED},     {TQ_FMT_UNIFORM4, CASE_RAW},
    {TQ_FMT_UNIFORM8, CASE_RAW},     {TQ_FMT_MSE1, CASE_ROTATED},
    {TQ_FMT_MSE2, CASE_ROTATED},     {TQ_FMT_MSE3, CASE_ROTATED},
    {TQ_FMT_MSE4, CASE_ROTATED},     {TQ_FMT_PROD1, CASE_PROD},
    {TQ_FMT_PROD2, CASE_PROD},       {TQ_FMT_PROD3, CASE_PROD},
    {TQ_FMT_PROD4, CASE_PROD},
};

#define N_CASE_FORMATS (sizeof(case_formats) / sizeof(case_formats[0]))

static const uint32_t case_group_dims[] = {64, 128, 256, 512, 16, 80, 192, 576};
static const uint32_t case_raw_dims[] = {16, 40, 80, 128, 192, 576, 1024};

static inline size_t case_n_dims(size_t f)
{
    return case_formats[f].kind == CASE_GROUPS ? 8 : 7;
}

/* The raw dimensions are ones that are rotated too. */
static inline uint32_t case_dim(size_t f, size_t d)
{
    return case_formats[f].kind == CASE_GROUPS ? case_group_dims[d] : case_raw_dims[d];
}

#endif
