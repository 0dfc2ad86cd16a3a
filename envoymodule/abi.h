// What this module uses of Envoy's ABI for dynamic modules, version v0.2.0 (Envoy 1.40), declared by hand. Pointers that only Envoy, or
// only this module, looks into are numbers here.
//
// Every callback is weak: the file then loads into an Envoy that lacks one, and ratelimitd_missing names it when the first configuration
// loads. Without that, such an Envoy would end at the first call.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define RATELIMITD_ABI "v0.2.0"

typedef struct {
  const char *data;
  size_t length;
} buffer;

typedef struct {
  const char *key;
  size_t key_length;
  const char *value;
  size_t value_length;
} header;

enum { request_headers = 0, response_headers = 2 };               // kinds of headers
enum { go_on = 0, stop_iteration = 1, pause = 4 };                // what a hook for headers returns; pause keeps the body back too
enum { level_info = 2, level_warning, level_error };              // of the log

// ENVOY lists the callbacks: what they return, their names, and what they take.
#define ENVOY(callback)                                                                                        \
  callback(void, log, (uint32_t level, buffer text))                                                           \
  callback(uint32_t, get_concurrency, (void))                                                                  \
  callback(bool, is_validation_mode, (void))                                                                   \
  callback(uintptr_t, get_most_specific_route_config, (uintptr_t stream))                                      \
  callback(uintptr_t, http_filter_scheduler_new, (uintptr_t stream))                                           \
  callback(void, http_filter_scheduler_commit, (uintptr_t scheduler, uint64_t id))                             \
  callback(void, http_filter_scheduler_delete, (uintptr_t scheduler))                                          \
  callback(void, http_filter_continue_decoding, (uintptr_t stream))                                            \
  callback(void, http_send_response,                                                                           \
           (uintptr_t stream, uint32_t status, const header *headers, size_t n, buffer body, buffer details))  \
  callback(bool, http_get_header,                                                                              \
           (uintptr_t stream, int kind, buffer key, buffer *value, size_t index, size_t *count))               \
  callback(bool, http_add_header, (uintptr_t stream, int kind, buffer key, buffer value))                      \
  callback(bool, http_filter_get_attribute_string, (uintptr_t stream, uint32_t id, buffer *value))             \
  callback(bool, http_get_cluster_name, (uintptr_t stream, buffer *value))                                     \
  callback(bool, http_get_metadata_string,                                                                     \
           (uintptr_t stream, uint32_t source, buffer space, buffer key, buffer *value))                       \
  callback(bool, http_get_metadata_number,                                                                     \
           (uintptr_t stream, uint32_t source, buffer space, buffer key, double *value))                       \
  callback(bool, http_set_dynamic_metadata_struct, (uintptr_t stream, buffer space, buffer message))           \
  callback(void, http_add_custom_flag, (uintptr_t stream, buffer flag))                                        \
  callback(int, http_filter_config_define_counter,                                                             \
           (uintptr_t config, buffer name, const buffer *labels, size_t n, size_t *id))                        \
  callback(int, http_filter_increment_counter,                                                                 \
           (uintptr_t stream, size_t id, const buffer *labels, size_t n, uint64_t by))

#define DECLARE(returns, name, takes) extern returns envoy_dynamic_module_callback_##name takes __attribute__((weak));
ENVOY(DECLARE)
#undef DECLARE

// block is headers in one piece of memory: the array points into the text behind it.
typedef struct {
  size_t n;
  header all[];
} block;

// stream is one request, from its first hook to its last. Only its worker uses it.
typedef struct {
  uintptr_t envoy;  // Envoy's filter
  uintptr_t config; // the handle of the module's configuration
  uintptr_t paused; // the handle of the call that the request waits for; 0: it does not wait
  block *headers;   // to add to the response; NULL: none
} stream;

// What Go calls instead of the callbacks: Go cannot pass structs with its own pointers by value.
const char *ratelimitd_missing(void);
void ratelimitd_log(uint32_t level, const char *text, size_t n);
bool ratelimitd_header(uintptr_t s, const char *key, size_t n, size_t index, buffer *value, size_t *count);
bool ratelimitd_attribute(uintptr_t s, uint32_t id, buffer *value);
bool ratelimitd_cluster(uintptr_t s, buffer *value);
bool ratelimitd_metadata_string(uintptr_t s, uint32_t source, const char *space, size_t n, const char *key, size_t m, buffer *value);
bool ratelimitd_metadata_number(uintptr_t s, uint32_t source, const char *space, size_t n, const char *key, size_t m, double *value);
void ratelimitd_add_request_headers(uintptr_t s, const block *headers);
void ratelimitd_set_metadata(uintptr_t s, const char *space, size_t n, const char *message, size_t m);
void ratelimitd_flag(uintptr_t s, const char *text, size_t n);
void ratelimitd_reply(uintptr_t s, uint32_t status, const block *headers, const char *details, size_t n);
int ratelimitd_define_counter(uintptr_t config, const char *name, size_t n, size_t *id);
void ratelimitd_count(uintptr_t s, size_t id);
