/* SPDX-License-Identifier: MIT */
/* chat.c — messages to one prompt text, by the templates that libllama has built in.
 *
 * The text is tokenised with parse_special, so that the template's markers become control tokens.
 * A message must not be able to forge them: where a message spells a control token ("<|im_end|>")
 * a WORD JOINER (U+2060, no width) is put after its first character, and it stays text. Roles
 * are plain lower-case words.
 */
#include "engine_priv.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char joiner[] = "\xe2\x81\xa0";

static bool control_at(const tqe_model *m, const char *s)
{
    for (size_t i = 0; i < m->n_control_ids; i++) {
        const char *t = llama_vocab_get_text(m->vocab, m->control_ids[i]);
        const size_t n = strlen(t);
        if (n > 0 && strncmp(s, t, n) == 0) {
            return true;
        }
    }
    return false;
}

/* A malloc'ed copy that spells no control token; NULL: out of memory. */
static char *disarm(const tqe_model *m, const char *s)
{
    /* At worst every character gets a joiner, and a character has at least one byte. */
    char *out = malloc(strlen(s) * 4 + 1);
    if (out == NULL) {
        return NULL;
    }
    char *p = out;
    while (*s != '\0') {
        const int len = tqe_utf8_char((const uint8_t *)s, strnlen(s, 4));
        const bool control = control_at(m, s);
        memcpy(p, s, (size_t)len);
        p += len;
        s += len;
        if (control) {
            memcpy(p, joiner, 3);
            p += 3;
        }
    }
    *p = '\0';
    return out;
}

static tqe_status check_message(const tqe_chat_message *msg, size_t i, tqe_error *err)
{
    if (msg->role == NULL || msg->content == NULL) {
        return tqe_fail(err, TQE_ERR_ARG, "message %zu has no role or no content", i);
    }
    const size_t n = strlen(msg->role);
    if (n == 0 || n > 32 || strspn(msg->role, "abcdefghijklmnopqrstuvwxyz_") != n) {
        return tqe_fail(err, TQE_ERR_ARG,
                        "message %zu has the role '%s': a lower-case word is expected", i,
                        tqe_quote(msg->role, n).text);
    }
    const size_t len = strlen(msg->content);
    if (len > (1u << 28)) {
        return tqe_fail(err, TQE_ERR_ARG, "message %zu has %zu bytes", i, len);
    }
    const size_t bad = tqe_utf8_check(msg->content, len);
    if (bad < len) {
        return tqe_fail(err, TQE_ERR_ARG, "message %zu is not valid UTF-8 at byte %zu", i, bad);
    }
    return TQE_OK;
}

static tqe_status unknown_template(const char *name, tqe_error *err)
{
    const char *names[128] = {NULL};
    char list[400] = "";
    const int32_t n = llama_chat_builtin_templates(names, 128);
    size_t used = 0;
    for (int32_t i = 0; i < n && i < 128; i++) {
        const size_t len = strlen(names[i]);
        if (used + len + 8 > sizeof(list)) {
            (void)snprintf(list + used, sizeof(list) - used, ", ...");
            break;
        }
        used +=
            (size_t)snprintf(list + used, sizeof(list) - used, "%s%s", i > 0 ? ", " : "", names[i]);
    }
    if (name == NULL) {
        return tqe_fail(err, TQE_ERR_UNSUPPORTED,
                        "the model's chat template is not one that is built in; name one of: %s",
                        list);
    }
    return tqe_fail(err, TQE_ERR_UNSUPPORTED, "chat template '%s' is not known; built in: %s",
                    tqe_quote(name, strlen(name)).text, list);
}

static tqe_status apply(const char *tmpl, const char *name, const struct llama_chat_message *chat,
                        size_t n, bool add_assistant, char **text, tqe_error *err)
{
    const int32_t need = llama_chat_apply_template(tmpl, chat, n, add_assistant, NULL, 0);
    if (need < 0) {
        return unknown_template(name, err);
    }
    char *buf = calloc((size_t)need + 1, 1);
    if (buf == NULL) {
        return tqe_fail(err, TQE_ERR_NOMEM, "out of memory");
    }
    (void)llama_chat_apply_template(tmpl, chat, n, add_assistant, buf, need);
    *text = buf;
    return TQE_OK;
}

/* A name must be exactly one of the built-in ones: libllama would take any text that contains a
 * known marker for a template. */
static bool is_builtin(const char *name)
{
    const char *names[128] = {NULL};
    const int32_t n = llama_chat_builtin_templates(names, 128);
    for (int32_t i = 0; i < n && i < 128; i++) {
        if (strcmp(names[i], name) == 0) {
            return true;
        }
    }
    return false;
}

tqe_status tqe_chat_format(const tqe_model *m, const char *tmpl, const tqe_chat_message *msgs,
                           size_t n, bool add_assistant, char **text, tqe_error *err)
{
    if (m == NULL || msgs == NULL || n == 0 || n > 100000 || text == NULL) {
        return tqe_fail(err, TQE_ERR_ARG, "no messages");
    }
    const char *template_text = tmpl != NULL ? tmpl : m->chat_template;
    if (tmpl != NULL && !is_builtin(tmpl)) {
        return unknown_template(tmpl, err);
    }
    if (template_text == NULL) {
        return tqe_fail(err, TQE_ERR_UNSUPPORTED,
                        "the model has no chat template; name a built-in one, such as chatml");
    }
    struct llama_chat_message *chat = calloc(n, sizeof(*chat));
    char **contents = calloc(n, sizeof(*contents));
    tqe_status st =
        chat != NULL && contents != NULL ? TQE_OK : tqe_fail(err, TQE_ERR_NOMEM, "out of memory");
    for (size_t i = 0; st == TQE_OK && i < n; i++) {
        st = check_message(&msgs[i], i, err);
        if (st == TQE_OK) {
            contents[i] = disarm(m, msgs[i].content);
            if (contents[i] == NULL) {
                st = tqe_fail(err, TQE_ERR_NOMEM, "out of memory");
            } else {
                chat[i] = (struct llama_chat_message){msgs[i].role, contents[i]};
            }
        }
    }
    if (st == TQE_OK) {
        st = apply(template_text, tmpl, chat, n, add_assistant, text, err);
    }
    for (size_t i = 0; contents != NULL && i < n; i++) {
        free(contents[i]);
    }
    free(contents);
    free(chat);
    return st;
}
