package redisconn

import "strings"

// mistakes are what a server says if the settings are for another kind of server, and what to do.
var mistakes = []struct{ said, advice string }{
	{"cluster support disabled", "this is a single Redis and no cluster: set {}_TYPE=SINGLE"},
	{"unknown command 'sentinel'", "this is a Redis and no Sentinel: set {}_TYPE=SINGLE, or the addresses of the Sentinels"},
	{"without any password configured", "this Redis asks for no password: unset {}_AUTH"},
	{"WRONGPASS", "Redis does not know this user or password: correct {}_AUTH"},
	{"NOAUTH", "Redis asks for a password: set {}_AUTH"},
}

// Advice returns what to do about an error that wrong settings cause, whatever is asked for; empty: the error has another cause. settings are
// the first letters of the variables of this Redis: REDIS or REDIS_PERSECOND.
func Advice(err error, settings string) string {
	for _, m := range mistakes {
		if strings.Contains(err.Error(), m.said) {
			return strings.ReplaceAll(m.advice, "{}", settings)
		}
	}
	return ""
}
