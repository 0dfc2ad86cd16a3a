package main

import (
	"log/slog"
	"os"
	"slices"
	"strings"
)

// retired are settings that no longer exist, each with the value that the service uses now, because there was no reason to set another
// value. Their variables and flags are still accepted, so that a deployment which sets one still starts. Instead of a value, used
// may name the variable that now applies to both Redis.
var retired = []struct{ variable, flag, used string }{
	{"RATELIMITD_ALLOW_NO_RULES", "allow-no-rules", "false"},
	{"RATELIMITD_EVENTS_INTERVAL", "events-interval", "1m"},
	{"RATELIMITD_EVENTS_RETRY_FOR", "events-retry-for", "5m"},
	{"RATELIMITD_EVENTS_SHARE", "events-share", "1"},
	{"RATELIMITD_FIRST_CALL_TIMEOUT", "first-call-timeout", "1m"},
	{"RATELIMITD_GRPC_MAX_CONNECTION_IDLE", "grpc-max-connection-idle", "0s"},
	{"RATELIMITD_GRPC_MAX_STREAMS", "grpc-max-streams", "1000"},
	{"RATELIMITD_JSON_BAD_REQUEST_ON_FAILURE", "json-bad-request-on-failure", "false"},
	{"RATELIMITD_MAX_CONNECTION_BYTES", "max-connection-bytes", "16777216"},
	{"RATELIMITD_MAX_ENTRIES", "max-entries", "256"},
	{"RATELIMITD_MAX_MESSAGE_BYTES", "max-message-bytes", "4194304"},
	{"RATELIMITD_MESSAGE_TIMEOUT", "message-timeout", "10s"},
	{"RATELIMITD_PATTERN_BYTES", "pattern-bytes", "4096"},
	{"RATELIMITD_PEER_SHARE", "peer-share", "0.5"},
	{"RATELIMITD_RULES_RESCAN", "rules-rescan", "10s"},
	{"RATELIMITD_TLS_RESCAN", "tls-rescan", "10s"},
	{"RATELIMITD_WRITE_TIMEOUT", "write-timeout", "10s"},
	{"RATELIMITD_XDS_REFUSED_RETRY", "xds-refused-retry", "30s"},
	{"REDIS_PERSECOND_OP_TIMEOUT", "redis-persecond-op-timeout", "REDIS_OP_TIMEOUT"},
	{"REDIS_PERSECOND_TLS_CACERT", "redis-persecond-tls-cacert", "REDIS_TLS_CACERT"},
	{"REDIS_PERSECOND_TLS_CLIENT_CERT", "redis-persecond-tls-client-cert", "REDIS_TLS_CLIENT_CERT"},
	{"REDIS_PERSECOND_TLS_CLIENT_KEY", "redis-persecond-tls-client-key", "REDIS_TLS_CLIENT_KEY"},
	{"REDIS_PERSECOND_TLS_SKIP_HOSTNAME_VERIFICATION", "redis-persecond-tls-skip-hostname-verification", "REDIS_TLS_SKIP_HOSTNAME_VERIFICATION"},
}

// alone are the retired flags that take no value.
var alone = []string{"allow-no-rules", "json-bad-request-on-failure", "redis-persecond-tls-skip-hostname-verification"}

// isRetired reports whether a variable was a setting once.
func isRetired(variable string) bool {
	for _, r := range retired {
		if r.variable == variable {
			return true
		}
	}
	return false
}

// withoutRetired leaves out flags that were settings once, with their values, and returns the variables of their names.
func withoutRetired(args []string) (kept, left []string) {
	for i := 0; i < len(args); i++ {
		if args[i] == "--" {
			return append(kept, args[i:]...), left
		}
		name, isFlag := strings.CutPrefix(args[i], "--")
		name, _, hasValue := strings.Cut(name, "=")
		variable := ""
		for _, r := range retired {
			if isFlag && r.flag == name {
				variable, hasValue = r.variable, hasValue || slices.Contains(alone, name)
			}
		}
		if variable == "" {
			kept = append(kept, args[i])
			continue
		}
		left = append(left, variable)
		if !hasValue {
			i++ // the next word is the value
		}
	}
	return kept, left
}

// logRetired writes one line for each retired setting that is set, by its variable or, if it is in flags, its flag.
func logRetired(log *slog.Logger, flags []string) {
	for _, r := range retired {
		value, set := os.LookupEnv(r.variable)
		for _, variable := range flags {
			set = set || variable == r.variable
		}
		if set && value != r.used {
			log.Warn("this is no setting any more: remove it", "variable", r.variable, "flag", "--"+r.flag, "used", r.used)
		}
	}
}
