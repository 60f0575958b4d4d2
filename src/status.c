/* SPDX-License-Identifier: MIT */
/* status.c — names of status codes and the version. */
#include "turboquant.h"

#define TEXT2(x) #x
#define TEXT(x)  TEXT2(x)

const char *tq_status_name(tq_status s)
{
    switch (s) {
    case TQ_OK:
        return "TQ_OK";
    case TQ_ERR_ARG:
        return "TQ_ERR_ARG";
    case TQ_ERR_SCHEME:
        return "TQ_ERR_SCHEME";
    case TQ_ERR_DIM:
        return "TQ_ERR_DIM";
    case TQ_ERR_SIZE:
        return "TQ_ERR_SIZE";
    case TQ_ERR_NONFINITE:
        return "TQ_ERR_NONFINITE";
    case TQ_ERR_FULL:
        return "TQ_ERR_FULL";
    case TQ_ERR_STATE:
        return "TQ_ERR_STATE";
    case TQ_ERR_NOMEM:
        return "TQ_ERR_NOMEM";
    case TQ_ERR_OVERFLOW:
        return "TQ_ERR_OVERFLOW";
    }
    return "TQ_ERR_UNKNOWN";
}

const char *tq_version(void)
{
    return TEXT(TQ_VERSION_MAJOR) "." TEXT(TQ_VERSION_MINOR) "." TEXT(TQ_VERSION_PATCH);
}
