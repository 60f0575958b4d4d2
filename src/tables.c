/* SPDX-License-Identifier: MIT */
/* tables.c — the constants of the affine-lloyd format: its Lloyd-Max tables.
 *
 * Source: the stored-format facts of vllm-metal commit 211a1e4, as docs/format.md section
 * "Constants" writes them down. They are part of the format: changing one bit changes stored
 * bytes. The tables are a finite-sample result and not antisymmetric; do not symmetrise them.
 * Literals are hexadecimal, so that every bit is visible; tests/unit/test_codec.c pins them.
 */
#include "tables.h"

static const float centroids_2[4] = {
    -0x1.83b4a2p+0f,
    -0x1.d538fep-2f,
    0x1.cb6644p-2f,
    0x1.831c66p+0f,
};

/* f32(f32(c[i] + c[i+1]) * 0.5), as for 4, 5 and 8 bits. */
static const float boundaries_2[3] = {
    -0x1.f902e2p-1f,
    -0x1.3a574p-8f,
    0x1.f5f5f8p-1f,
};

static const float centroids_3[8] = {
    -0x1.137318p+1f, -0x1.580a7cp+0f, -0x1.8313bep-1f, -0x1.f5f1bep-3f,
    0x1.f5f1bep-3f,  0x1.8313bep-1f,  0x1.580a7cp+0f,  0x1.137318p+1f,
};

/* A fixed list, not the midpoints: -1.74793, -1.04996, -0.50055, 0 and the mirror. */
static const float boundaries_3[7] = {
    -0x1.bf7858p+0f, -0x1.0cca2ep+0f, -0x1.004816p-1f, 0.0f,
    0x1.004816p-1f,  0x1.0cca2ep+0f,  0x1.bf7858p+0f,
};

static const float centroids_4[16] = {
    -0x1.62013cp+1f, -0x1.0cbd2cp+1f, -0x1.a3e3b2p+0f, -0x1.46d138p+0f,
    -0x1.eba5c8p-1f, -0x1.58a48ep-1f, -0x1.9d829ap-2f, -0x1.244e1ep-3f,
    0x1.dfe636p-4f,  0x1.842fbp-2f,   0x1.4b8f4cp-1f,  0x1.de181ep-1f,
    0x1.40973ap+0f,  0x1.9f2bd4p+0f,  0x1.09b21ep+1f,  0x1.5c40dp+1f,
};

static const float boundaries_4[15] = {
    -0x1.375f34p+1f, -0x1.deaf04p+0f, -0x1.755a74p+0f, -0x1.1e520ep+0f, -0x1.a2252cp-1f,
    -0x1.13b2eep-1f, -0x1.17d4d4p-2f, -0x1.a2d818p-7f, 0x1.fc293ep-3f,  0x1.06d392p-1f,
    0x1.94d3b4p-1f,  0x1.17d1a4p+0f,  0x1.6fe188p+0f,  0x1.d94808p+0f,  0x1.32f978p+1f,
};

static const float centroids_5[32] = {
    -0x1.ac91f6p+1f, -0x1.6321ccp+1f, -0x1.3225e6p+1f, -0x1.0b561cp+1f, -0x1.d69946p+0f,
    -0x1.a09a1p+0f,  -0x1.6fd3eap+0f, -0x1.428b9p+0f,  -0x1.188adp+0f,  -0x1.e1e18ap-1f,
    -0x1.96221p-1f,  -0x1.4d435ap-1f, -0x1.05cbe2p-1f, -0x1.7eb07ap-2f, -0x1.e608dep-3f,
    -0x1.a506c6p-4f, 0x1.047574p-5f,  0x1.504754p-3f,  0x1.334d94p-2f,  0x1.c2176ep-2f,
    0x1.2961fap-1f,  0x1.748566p-1f,  0x1.bf6f5ep-1f,  0x1.0786ap+0f,   0x1.31bb12p+0f,
    0x1.5f747p+0f,   0x1.91513ap+0f,  0x1.c764c4p+0f,  0x1.02e1bap+1f,  0x1.279e36p+1f,
    0x1.554b02p+1f,  0x1.9dd14p+1f,
};

static const float boundaries_5[31] = {
    -0x1.87d9ep+1f,  -0x1.4aa3d8p+1f, -0x1.1ebep+1f,  -0x1.f6a2cp+0f,  -0x1.bb99acp+0f,
    -0x1.8836fcp+0f, -0x1.592fbcp+0f, -0x1.2d8b3p+0f, -0x1.04bdcap+0f, -0x1.bc01ccp-1f,
    -0x1.71b2b4p-1f, -0x1.29879ep-1f, -0x1.c5242p-2f, -0x1.38da74p-2f, -0x1.5c462p-3f,
    -0x1.22cc0cp-5f, 0x1.9164bp-4f,   0x1.db713ep-3f, 0x1.7ab28p-2f,   0x1.0536d8p-1f,
    0x1.4ef3bp-1f,   0x1.99fa62p-1f,  0x1.e73e5p-1f,  0x1.1ca0d8p+0f,  0x1.4897cp+0f,
    0x1.7862d4p+0f,  0x1.ac5bp+0f,    0x1.e6941cp+0f, 0x1.153ff8p+1f,  0x1.3e749cp+1f,
    0x1.798e2p+1f,
};

static const float centroids_8[256] = {
    -0x1.205d0ap+2f, -0x1.1d1878p+2f, -0x1.1bec1cp+2f, -0x1.19b3a4p+2f, -0x1.173f52p+2f,
    -0x1.1542b8p+2f, -0x1.130a4p+2f,  -0x1.10d1c8p+2f, -0x1.0e9952p+2f, -0x1.0c60dcp+2f,
    -0x1.0a2864p+2f, -0x1.07efecp+2f, -0x1.060b44p+2f, -0x1.02edb4p+2f, -0x1.002af2p+2f,
    -0x1.002394p+2f, -0x1.f8a04ep+1f, -0x1.f559c2p+1f, -0x1.f1731ep+1f, -0x1.ec833p+1f,
    -0x1.e6413p+1f,  -0x1.e1a33ep+1f, -0x1.df4c46p+1f, -0x1.da7daep+1f, -0x1.d65ap+1f,
    -0x1.d0d484p+1f, -0x1.cc295ap+1f, -0x1.ca45dcp+1f, -0x1.c51d2ap+1f, -0x1.c07de6p+1f,
    -0x1.bbcbccp+1f, -0x1.b6ce2ep+1f, -0x1.b2f5dcp+1f, -0x1.ae7b26p+1f, -0x1.a9ea6ep+1f,
    -0x1.a55f6ap+1f, -0x1.a0ff2p+1f,  -0x1.9c2c22p+1f, -0x1.98b3ap+1f,  -0x1.94206p+1f,
    -0x1.8e4f8cp+1f, -0x1.8a835ep+1f, -0x1.867b62p+1f, -0x1.81e554p+1f, -0x1.7d75d8p+1f,
    -0x1.792552p+1f, -0x1.74a1e4p+1f, -0x1.6ff6dep+1f, -0x1.6bad54p+1f, -0x1.672e5cp+1f,
    -0x1.62c6a2p+1f, -0x1.5e69b6p+1f, -0x1.59f958p+1f, -0x1.54ebcep+1f, -0x1.50b038p+1f,
    -0x1.4cc048p+1f, -0x1.47cb88p+1f, -0x1.433c38p+1f, -0x1.3f541ep+1f, -0x1.3b0e4ep+1f,
    -0x1.3645fp+1f,  -0x1.31a27cp+1f, -0x1.2cdda8p+1f, -0x1.287fcp+1f,  -0x1.2424dcp+1f,
    -0x1.1f3004p+1f, -0x1.1ada98p+1f, -0x1.16aa08p+1f, -0x1.128616p+1f, -0x1.0e415ap+1f,
    -0x1.0a11fcp+1f, -0x1.05b1fep+1f, -0x1.00d17ap+1f, -0x1.f8496p+0f,  -0x1.ee1af6p+0f,
    -0x1.e4a6cap+0f, -0x1.dbe5c4p+0f, -0x1.d23adcp+0f, -0x1.c8edf8p+0f, -0x1.bf1ddp+0f,
    -0x1.b5d8e2p+0f, -0x1.aca036p+0f, -0x1.a3ae1cp+0f, -0x1.9aa322p+0f, -0x1.92215ep+0f,
    -0x1.895b36p+0f, -0x1.80e9bap+0f, -0x1.781bdcp+0f, -0x1.6f6076p+0f, -0x1.66f6a2p+0f,
    -0x1.5e7038p+0f, -0x1.55e92cp+0f, -0x1.4d45b6p+0f, -0x1.451406p+0f, -0x1.3c4bd8p+0f,
    -0x1.338138p+0f, -0x1.2a9dbep+0f, -0x1.2168c6p+0f, -0x1.188f16p+0f, -0x1.0fba0ep+0f,
    -0x1.0709cep+0f, -0x1.fcf12p-1f,  -0x1.ebfe86p-1f, -0x1.dad242p-1f, -0x1.c92b46p-1f,
    -0x1.b7fc3cp-1f, -0x1.a6fccep-1f, -0x1.9665a6p-1f, -0x1.848524p-1f, -0x1.722d48p-1f,
    -0x1.5fcf78p-1f, -0x1.4db566p-1f, -0x1.3b8556p-1f, -0x1.298cbp-1f,  -0x1.17b04ap-1f,
    -0x1.05b296p-1f, -0x1.e67668p-2f, -0x1.c1fe1ap-2f, -0x1.9eb3bp-2f,  -0x1.7ab2p-2f,
    -0x1.56283ep-2f, -0x1.325f58p-2f, -0x1.0f010ep-2f, -0x1.da7f98p-3f, -0x1.99e10ap-3f,
    -0x1.5674bp-3f,  -0x1.12b6e8p-3f, -0x1.9af1c8p-4f, -0x1.0d2b82p-4f, -0x1.009b14p-5f,
    0x1.1c9c8cp-8f,  0x1.4abb3p-5f,   0x1.3136b6p-4f,  0x1.b8caecp-4f,  0x1.1f9c6ap-3f,
    0x1.64e6ecp-3f,  0x1.aa3f26p-3f,  0x1.f1c144p-3f,  0x1.1ca4dcp-2f,  0x1.42816ep-2f,
    0x1.674e94p-2f,  0x1.8cbd0ap-2f,  0x1.b06efcp-2f,  0x1.d3d46p-2f,   0x1.f71306p-2f,
    0x1.0d23cp-1f,   0x1.1e03ccp-1f,  0x1.2e9d28p-1f,  0x1.3ffa22p-1f,  0x1.51a946p-1f,
    0x1.637922p-1f,  0x1.74a86cp-1f,  0x1.8660a8p-1f,  0x1.97bfc6p-1f,  0x1.a9775cp-1f,
    0x1.ba98fap-1f,  0x1.cbd49ap-1f,  0x1.dd3252p-1f,  0x1.eee964p-1f,  0x1.002ddap+0f,
    0x1.08cd16p+0f,  0x1.116c9ap+0f,  0x1.1a1388p+0f,  0x1.22b44cp+0f,  0x1.2bb3a8p+0f,
    0x1.3430bep+0f,  0x1.3d25b2p+0f,  0x1.4640eep+0f,  0x1.4f69f2p+0f,  0x1.58182ap+0f,
    0x1.608108p+0f,  0x1.68bf16p+0f,  0x1.714506p+0f,  0x1.7a1fc2p+0f,  0x1.83442cp+0f,
    0x1.8c5754p+0f,  0x1.957ac8p+0f,  0x1.9e8bc4p+0f,  0x1.a7c84cp+0f,  0x1.b145f8p+0f,
    0x1.ba317ep+0f,  0x1.c30a34p+0f,  0x1.cc6ea2p+0f,  0x1.d5bff4p+0f,  0x1.df0628p+0f,
    0x1.e7fd2ep+0f,  0x1.f1566cp+0f,  0x1.fb0f4cp+0f,  0x1.021bb8p+1f,  0x1.065fdcp+1f,
    0x1.0ab4c4p+1f,  0x1.0f44d2p+1f,  0x1.13eae4p+1f,  0x1.184b86p+1f,  0x1.1cc9f6p+1f,
    0x1.20ee12p+1f,  0x1.25ad8p+1f,   0x1.2a5a94p+1f,  0x1.2eab84p+1f,  0x1.32f5cp+1f,
    0x1.3780a2p+1f,  0x1.3bcfb8p+1f,  0x1.406f48p+1f,  0x1.4493fcp+1f,  0x1.491dbcp+1f,
    0x1.4db128p+1f,  0x1.51f644p+1f,  0x1.56275cp+1f,  0x1.5acff2p+1f,  0x1.5f6586p+1f,
    0x1.63c554p+1f,  0x1.6843b8p+1f,  0x1.6d084ep+1f,  0x1.714fe8p+1f,  0x1.75b7d6p+1f,
    0x1.7a3cccp+1f,  0x1.7e6862p+1f,  0x1.82c03ap+1f,  0x1.87e472p+1f,  0x1.8d1716p+1f,
    0x1.929fcp+1f,   0x1.9611bep+1f,  0x1.9a441ep+1f,  0x1.9e6fb6p+1f,  0x1.a23c48p+1f,
    0x1.a695e6p+1f,  0x1.aad1ccp+1f,  0x1.af4ea4p+1f,  0x1.b41506p+1f,  0x1.b894c6p+1f,
    0x1.bb595cp+1f,  0x1.c0515cp+1f,  0x1.c680f8p+1f,  0x1.c9976ep+1f,  0x1.cd67bp+1f,
    0x1.d1f10ap+1f,  0x1.d8a98cp+1f,  0x1.dbd244p+1f,  0x1.dfd8bep+1f,  0x1.e62058p+1f,
    0x1.e889f4p+1f,  0x1.eda46p+1f,   0x1.f206eap+1f,  0x1.f5fb22p+1f,  0x1.fcac3cp+1f,
    0x1.009384p+2f,  0x1.01e552p+2f,  0x1.051788p+2f,  0x1.06563ep+2f,  0x1.088eb6p+2f,
    0x1.0b0d9ap+2f,  0x1.0cb27cp+2f,  0x1.0f381ap+2f,  0x1.117092p+2f,  0x1.13a90ap+2f,
    0x1.15e18p+2f,
};

static const float boundaries_8[255] = {
    -0x1.1ebacp+2f,  -0x1.1c824ap+2f, -0x1.1acfep+2f,  -0x1.18797cp+2f, -0x1.164104p+2f,
    -0x1.14267cp+2f, -0x1.11ee04p+2f, -0x1.0fb58cp+2f, -0x1.0d7d18p+2f, -0x1.0b44ap+2f,
    -0x1.090c28p+2f, -0x1.06fd98p+2f, -0x1.047c7cp+2f, -0x1.018c54p+2f, -0x1.002744p+2f,
    -0x1.fc73bcp+1f, -0x1.f6fd08p+1f, -0x1.f3667p+1f,  -0x1.eefb28p+1f, -0x1.e9623p+1f,
    -0x1.e3f238p+1f, -0x1.e077c2p+1f, -0x1.dce4fap+1f, -0x1.d86bd8p+1f, -0x1.d39742p+1f,
    -0x1.ce7efp+1f,  -0x1.cb379cp+1f, -0x1.c7b184p+1f, -0x1.c2cd88p+1f, -0x1.be24d8p+1f,
    -0x1.b94cfcp+1f, -0x1.b4e204p+1f, -0x1.b0b88p+1f,  -0x1.ac32cap+1f, -0x1.a7a4ecp+1f,
    -0x1.a32f44p+1f, -0x1.9e95ap+1f,  -0x1.9a6fep+1f,  -0x1.966ap+1f,   -0x1.9137f6p+1f,
    -0x1.8c6974p+1f, -0x1.887f6p+1f,  -0x1.84305cp+1f, -0x1.7fad96p+1f, -0x1.7b4d94p+1f,
    -0x1.76e39cp+1f, -0x1.724c6p+1f,  -0x1.6dd218p+1f, -0x1.696dd8p+1f, -0x1.64fa8p+1f,
    -0x1.60982cp+1f, -0x1.5c3188p+1f, -0x1.577294p+1f, -0x1.52ce04p+1f, -0x1.4eb84p+1f,
    -0x1.4a45e8p+1f, -0x1.4583ep+1f,  -0x1.41482cp+1f, -0x1.3d3136p+1f, -0x1.38aa2p+1f,
    -0x1.33f436p+1f, -0x1.2f4012p+1f, -0x1.2aaeb4p+1f, -0x1.26524ep+1f, -0x1.21aa7p+1f,
    -0x1.1d054ep+1f, -0x1.18c25p+1f,  -0x1.14981p+1f,  -0x1.1063b8p+1f, -0x1.0c29acp+1f,
    -0x1.07e1fcp+1f, -0x1.0341bcp+1f, -0x1.fcf62ap+0f, -0x1.f3322cp+0f, -0x1.e960ep+0f,
    -0x1.e04648p+0f, -0x1.d7105p+0f,  -0x1.cd946ap+0f, -0x1.c405e4p+0f, -0x1.ba7b58p+0f,
    -0x1.b13c8cp+0f, -0x1.a82728p+0f, -0x1.9f28ap+0f,  -0x1.96624p+0f,  -0x1.8dbe4ap+0f,
    -0x1.852278p+0f, -0x1.7c82ccp+0f, -0x1.73be28p+0f, -0x1.6b2b8cp+0f, -0x1.62b36cp+0f,
    -0x1.5a2cb2p+0f, -0x1.51977p+0f,  -0x1.492cdep+0f, -0x1.40affp+0f,  -0x1.37e688p+0f,
    -0x1.2f0f7cp+0f, -0x1.260342p+0f, -0x1.1cfbeep+0f, -0x1.142492p+0f, -0x1.0b61eep+0f,
    -0x1.02c13p+0f,  -0x1.f477d4p-1f, -0x1.e36864p-1f, -0x1.d1fec4p-1f, -0x1.c093cp-1f,
    -0x1.af7c84p-1f, -0x1.9eb13ap-1f, -0x1.8d7564p-1f, -0x1.7b5936p-1f, -0x1.68fe6p-1f,
    -0x1.56c27p-1f,  -0x1.449d5ep-1f, -0x1.328904p-1f, -0x1.209e7cp-1f, -0x1.0eb17p-1f,
    -0x1.f8edcap-2f, -0x1.d43a4p-2f,  -0x1.b058e4p-2f, -0x1.8cb2d8p-2f, -0x1.686d2p-2f,
    -0x1.4443ccp-2f, -0x1.20b034p-2f, -0x1.fc40dap-3f, -0x1.ba305p-3f,  -0x1.782adcp-3f,
    -0x1.3495ccp-3f, -0x1.e02fccp-4f, -0x1.540ea4p-4f, -0x1.8d790cp-5f, -0x1.ba0f04p-7f,
    0x1.6e4ec2p-6f,  0x1.d6944ep-5f,  0x1.7500dp-4f,   0x1.fc01ep-4f,   0x1.4241acp-3f,
    0x1.879308p-3f,  0x1.ce0034p-3f,  0x1.0ac2cp-2f,   0x1.2f9324p-2f,  0x1.54e8p-2f,
    0x1.7a05dp-2f,   0x1.9e9604p-2f,  0x1.c221aep-2f,  0x1.e573b4p-2f,  0x1.0456a2p-1f,
    0x1.1593c6p-1f,  0x1.26507ap-1f,  0x1.374ba4p-1f,  0x1.48d1b4p-1f,  0x1.5a9134p-1f,
    0x1.6c10c8p-1f,  0x1.7d848ap-1f,  0x1.8f1038p-1f,  0x1.a09b9p-1f,   0x1.b2082cp-1f,
    0x1.c336cap-1f,  0x1.d48376p-1f,  0x1.e60ddcp-1f,  0x1.f7a28cp-1f,  0x1.047d78p+0f,
    0x1.0d1cd8p+0f,  0x1.15c01p+0f,   0x1.1e63eap+0f,  0x1.2733fap+0f,  0x1.2ff234p+0f,
    0x1.38ab38p+0f,  0x1.41b35p+0f,   0x1.4ad57p+0f,   0x1.53c10ep+0f,  0x1.5c4c98p+0f,
    0x1.64a01p+0f,   0x1.6d020ep+0f,  0x1.75b264p+0f,  0x1.7eb1f8p+0f,  0x1.87cdcp+0f,
    0x1.90e90ep+0f,  0x1.9a0346p+0f,  0x1.a32a08p+0f,  0x1.ac8722p+0f,  0x1.b5bbbcp+0f,
    0x1.be9dd8p+0f,  0x1.c7bc6cp+0f,  0x1.d1174cp+0f,  0x1.da630ep+0f,  0x1.e381acp+0f,
    0x1.eca9ccp+0f,  0x1.f632dcp+0f,  0x1.ffa35ep+0f,  0x1.043dcap+1f,  0x1.088a5p+1f,
    0x1.0cfcccp+1f,  0x1.1197dcp+1f,  0x1.161b34p+1f,  0x1.1a8abep+1f,  0x1.1edc04p+1f,
    0x1.234dc8p+1f,  0x1.28040ap+1f,  0x1.2c830cp+1f,  0x1.30d0a2p+1f,  0x1.353b3p+1f,
    0x1.39a82cp+1f,  0x1.3e1f8p+1f,   0x1.4281a2p+1f,  0x1.46d8dcp+1f,  0x1.4b6772p+1f,
    0x1.4fd3b6p+1f,  0x1.540edp+1f,   0x1.587ba8p+1f,  0x1.5d1abcp+1f,  0x1.61956cp+1f,
    0x1.660486p+1f,  0x1.6aa604p+1f,  0x1.6f2c1cp+1f,  0x1.7383ep+1f,   0x1.77fa5p+1f,
    0x1.7c5298p+1f,  0x1.80944ep+1f,  0x1.855256p+1f,  0x1.8a7dc4p+1f,  0x1.8fdb6cp+1f,
    0x1.9458cp+1f,   0x1.982aeep+1f,  0x1.9c59eap+1f,  0x1.a056p+1f,    0x1.a46918p+1f,
    0x1.a8b3d8p+1f,  0x1.ad1038p+1f,  0x1.b1b1d4p+1f,  0x1.b654e6p+1f,  0x1.b9f71p+1f,
    0x1.bdd55cp+1f,  0x1.c3692ap+1f,  0x1.c80c34p+1f,  0x1.cb7f9p+1f,   0x1.cfac5cp+1f,
    0x1.d54d4cp+1f,  0x1.da3de8p+1f,  0x1.ddd58p+1f,   0x1.e2fc8cp+1f,  0x1.e75526p+1f,
    0x1.eb172ap+1f,  0x1.efd5a4p+1f,  0x1.f40106p+1f,  0x1.f953bp+1f,   0x1.fee9a2p+1f,
    0x1.013c6cp+2f,  0x1.037e6cp+2f,  0x1.05b6e4p+2f,  0x1.07727ap+2f,  0x1.09ce28p+2f,
    0x1.0be00cp+2f,  0x1.0df54cp+2f,  0x1.105456p+2f,  0x1.128ccep+2f,  0x1.14c544p+2f,
};

static const tq_lloyd_table tables[] = {
    {2, centroids_2, boundaries_2}, {3, centroids_3, boundaries_3}, {4, centroids_4, boundaries_4},
    {5, centroids_5, boundaries_5}, {8, centroids_8, boundaries_8},
};

const tq_lloyd_table *tq_lloyd_get(uint32_t bits)
{
    for (size_t i = 0; i < sizeof(tables) / sizeof(tables[0]); i++)
        if (tables[i].bits == bits)
            return &tables[i];
    return NULL;
}
