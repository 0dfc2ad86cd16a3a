//go:build linux && cgo

// The functions that Envoy calls. Envoy rejects the module if one is missing, so those without work are here too, and do not enter Go.
#include "abi.h"

#include <stdio.h>
#include <stdlib.h>

// The functions in Go.
extern uintptr_t ratelimitd_config_new(uintptr_t envoy, buffer name, buffer config);
extern void ratelimitd_config_destroy(uintptr_t config);
extern uintptr_t ratelimitd_route_new(buffer config);
extern void ratelimitd_route_destroy(uintptr_t route);
extern int ratelimitd_request(stream *s);
extern void ratelimitd_resume(stream *s);
extern void ratelimitd_gone(stream *s);

#define HOOK(name) envoy_dynamic_module_on_##name
#define UNUSED __attribute__((unused))

const char *HOOK(program_init)(void) { return RATELIMITD_ABI; }

// ratelimitd_missing returns the name of a callback that this Envoy does not have, or NULL.
const char *ratelimitd_missing(void) {
#define CHECK(returns, name, takes) \
  if (envoy_dynamic_module_callback_##name == NULL) return "envoy_dynamic_module_callback_" #name;
  ENVOY(CHECK)
#undef CHECK
  return NULL;
}

uintptr_t HOOK(http_filter_config_new)(uintptr_t envoy, buffer name, buffer config) {
  const char *missing = ratelimitd_missing();
  if (missing == NULL) return ratelimitd_config_new(envoy, name, config);
  char text[256];
  int n = snprintf(text, sizeof text, "ratelimitd: this Envoy lacks %s: use a module that was built for it", missing);
  if (envoy_dynamic_module_callback_log != NULL) {
    ratelimitd_log(level_error, text, (size_t)n);
  } else {
    fprintf(stderr, "%s\n", text);
  }
  return 0;
}

void HOOK(http_filter_config_destroy)(uintptr_t config) { ratelimitd_config_destroy(config); }

// Envoy may read a route's configuration before a filter's, so callbacks are checked here as well.
uintptr_t HOOK(http_filter_per_route_config_new)(UNUSED buffer name, buffer config) {
  return ratelimitd_missing() == NULL ? ratelimitd_route_new(config) : 0;
}

void HOOK(http_filter_per_route_config_destroy)(uintptr_t route) { ratelimitd_route_destroy(route); }

uintptr_t HOOK(http_filter_new)(uintptr_t config, uintptr_t envoy) {
  stream *s = calloc(1, sizeof *s);
  if (s == NULL) return 0;
  s->envoy = envoy;
  s->config = config;
  return (uintptr_t)s;
}

int HOOK(http_filter_request_headers)(UNUSED uintptr_t envoy, uintptr_t module, UNUSED bool end) {
  return ratelimitd_request((stream *)module);
}

void HOOK(http_filter_scheduled)(UNUSED uintptr_t envoy, uintptr_t module, UNUSED uint64_t id) {
  stream *s = (stream *)module;
  if (s->paused != 0) ratelimitd_resume(s);
}

static buffer of(const char *data, size_t n) { return (buffer){data, n}; }

static void add(uintptr_t s, int kind, const block *headers) {
  for (size_t i = 0; i < headers->n; i++) {
    const header *h = &headers->all[i];
    envoy_dynamic_module_callback_http_add_header(s, kind, of(h->key, h->key_length), of(h->value, h->value_length));
  }
}

int HOOK(http_filter_response_headers)(uintptr_t envoy, uintptr_t module, UNUSED bool end) {
  stream *s = (stream *)module;
  if (s->headers != NULL) {
    add(envoy, response_headers, s->headers);
    free(s->headers);
    s->headers = NULL;
  }
  return go_on;
}

// Envoy, or another filter, answers the request itself. If it waits, there is nothing left to resume.
int HOOK(http_filter_local_reply)(UNUSED uintptr_t envoy, uintptr_t module) {
  stream *s = (stream *)module;
  if (s->paused != 0) ratelimitd_gone(s);
  return 0;
}

void HOOK(http_filter_destroy)(uintptr_t module) {
  stream *s = (stream *)module;
  if (s->paused != 0) ratelimitd_gone(s);
  free(s->headers);
  free(s);
}

// Hooks without work. What they take does not matter.
int HOOK(http_filter_request_body)(void) { return 0; }
int HOOK(http_filter_request_trailers)(void) { return 0; }
int HOOK(http_filter_response_body)(void) { return 0; }
int HOOK(http_filter_response_trailers)(void) { return 0; }

#define EMPTY(name) \
  void HOOK(name)(void) {}
EMPTY(http_filter_stream_complete)
EMPTY(http_filter_downstream_above_write_buffer_high_watermark)
EMPTY(http_filter_downstream_below_write_buffer_low_watermark)
EMPTY(http_filter_config_scheduled)
EMPTY(http_filter_http_callout_done)
EMPTY(http_filter_http_stream_headers)
EMPTY(http_filter_http_stream_data)
EMPTY(http_filter_http_stream_trailers)
EMPTY(http_filter_http_stream_complete)
EMPTY(http_filter_http_stream_reset)
EMPTY(http_filter_config_http_callout_done)
EMPTY(http_filter_config_http_stream_headers)
EMPTY(http_filter_config_http_stream_data)
EMPTY(http_filter_config_http_stream_trailers)
EMPTY(http_filter_config_http_stream_complete)
EMPTY(http_filter_config_http_stream_reset)

void ratelimitd_log(uint32_t level, const char *text, size_t n) { envoy_dynamic_module_callback_log(level, of(text, n)); }

bool ratelimitd_header(uintptr_t s, const char *key, size_t n, size_t index, buffer *value, size_t *count) {
  return envoy_dynamic_module_callback_http_get_header(s, request_headers, of(key, n), value, index, count);
}

bool ratelimitd_attribute(uintptr_t s, uint32_t id, buffer *value) {
  return envoy_dynamic_module_callback_http_filter_get_attribute_string(s, id, value);
}

bool ratelimitd_cluster(uintptr_t s, buffer *value) { return envoy_dynamic_module_callback_http_get_cluster_name(s, value); }

bool ratelimitd_metadata_string(uintptr_t s, uint32_t source, const char *space, size_t n, const char *key, size_t m, buffer *value) {
  return envoy_dynamic_module_callback_http_get_metadata_string(s, source, of(space, n), of(key, m), value);
}

bool ratelimitd_metadata_number(uintptr_t s, uint32_t source, const char *space, size_t n, const char *key, size_t m, double *value) {
  return envoy_dynamic_module_callback_http_get_metadata_number(s, source, of(space, n), of(key, m), value);
}

void ratelimitd_add_request_headers(uintptr_t s, const block *headers) { add(s, request_headers, headers); }

void ratelimitd_set_metadata(uintptr_t s, const char *space, size_t n, const char *message, size_t m) {
  envoy_dynamic_module_callback_http_set_dynamic_metadata_struct(s, of(space, n), of(message, m));
}

void ratelimitd_flag(uintptr_t s, const char *text, size_t n) { envoy_dynamic_module_callback_http_add_custom_flag(s, of(text, n)); }

void ratelimitd_reply(uintptr_t s, uint32_t status, const block *headers, const char *details, size_t n) {
  envoy_dynamic_module_callback_http_send_response(s, status, headers->all, headers->n, of("", 0), of(details, n));
}

int ratelimitd_define_counter(uintptr_t config, const char *name, size_t n, size_t *id) {
  return envoy_dynamic_module_callback_http_filter_config_define_counter(config, of(name, n), NULL, 0, id);
}

void ratelimitd_count(uintptr_t s, size_t id) { envoy_dynamic_module_callback_http_filter_increment_counter(s, id, NULL, 0, 1); }
