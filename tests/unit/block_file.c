/* SPDX-License-Identifier: MIT */
/* block_file.c — the header of a file of golden blocks: each field is checked before the next one
 * is believed, sizes in 64 bits. */
#include "block_file.h"

#include <string.h>

#define HEADER_BYTES 64

static uint32_t word(const uint8_t *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

/* The flag of an effort: 0 for the formats that have none but 1. Any other number: *known = 0. */
static uint32_t effort_flag(tq_format format, uint32_t effort, int *known)
{
    const int searches = format >= TQ_FMT_NORM2 && format <= TQ_FMT_TCQ6;

    *known = effort == 1 || (searches && (effort == 3 || effort == 12));
    if (!searches)
        return 0;
    return effort == 1 ? TQ_CODEC_EFFORT_1 : effort == 3 ? TQ_CODEC_EFFORT_3 : TQ_CODEC_EFFORT_12;
}

/* Flags and block size: the library must know what the header describes. */
static const char *parse_codecs(block_file *b, const uint8_t *bytes)
{
    const uint32_t mean = word(bytes + 44), group = word(bytes + 48);
    if (mean > 1)
        return "mean is neither 0 nor 1";
    if (group != 0 && group != 32 && group != 128)
        return "group is none of 0, 32, 128";
    for (uint32_t e = 0; e < 3; e++) {
        tq_codec c;
        const uint32_t effort = word(bytes + 28 + 4 * e);
        int known = 0;
        if (e >= b->n_efforts) {
            if (effort != 0)
                return "an effort more than their number says";
            continue;
        }
        b->codec_flags[e] = effort_flag(b->format, effort, &known) | (mean ? TQ_CODEC_MEAN : 0) |
                            (group == 32    ? TQ_CODEC_GROUP_32
                             : group == 128 ? TQ_CODEC_GROUP_128
                                            : 0);
        if (!known)
            return "effort is none of the format's";
        tq_status st = tq_codec_init(&c, b->format, b->dim, b->codec_flags[e], TQ_ISA_SCALAR);
        if (st == TQ_ERR_DIM)
            return "dimension is none of the format's";
        if (st != TQ_OK)
            return "format or its options are unknown";
        if (c.block_bytes != b->block_bytes)
            return "block bytes do not match the format";
    }
    return NULL;
}

const char *block_file_parse(block_file *b, const uint8_t *bytes, size_t n)
{
    memset(b, 0, sizeof *b);
    if (n < HEADER_BYTES)
        return "file is shorter than its header";
    if (memcmp(bytes, "TQGB", 4) != 0)
        return "magic is not TQGB";
    if (word(bytes + 4) != TQ_FORMAT_VERSION)
        return "version is another one";
    b->format = (tq_format)word(bytes + 8);
    b->dim = word(bytes + 12);
    b->n_rows = word(bytes + 16);
    b->block_bytes = word(bytes + 20);
    b->n_efforts = word(bytes + 24);
    b->n_hostile = word(bytes + 40);
    if (b->n_rows == 0 || b->n_rows > 1000 || b->n_hostile > 1000)
        return "number of rows out of range";
    if (b->n_efforts == 0 || b->n_efforts > 3)
        return "number of efforts out of range";
    const char *wrong = parse_codecs(b, bytes);
    if (wrong)
        return wrong;
    for (uint32_t at = 52; at < HEADER_BYTES; at += 4)
        if (word(bytes + at) != 0)
            return "reserved words are not zero";

    const uint64_t row = (uint64_t)b->dim * sizeof(float);
    const uint64_t decoded = HEADER_BYTES + (uint64_t)b->n_efforts * b->n_rows * b->block_bytes;
    const uint64_t hostile = decoded + b->n_rows * row;
    const uint64_t hostile_decoded = hostile + (uint64_t)b->n_hostile * b->block_bytes;
    if (hostile_decoded + b->n_hostile * row != n)
        return "file size does not match the header";
    b->blocks = bytes + HEADER_BYTES;
    b->decoded = bytes + decoded;
    b->hostile = bytes + hostile;
    b->hostile_decoded = bytes + hostile_decoded;
    return NULL;
}
