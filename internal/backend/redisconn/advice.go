package redisconn

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	goredis "github.com/redis/go-redis/v9"
)

// mistake is an error text of servers that points to wrong settings, and advice to correct them. {} stands for the
// first letters of the variables.
type mistake struct{ said, advice string }

const (
	answerNotRedis = "the server's answer is not one of Redis"
	notRedis       = "what answers there is no Redis, or expects TLS: correct {}_URL, or set {}_TLS=true"
	noAnswer       = "connections are closed without an answer: this is a proxy that reaches no Redis, or a Redis that " +
		"expects TLS; then set {}_TLS=true, or write rediss://"
	noHandshake = "Redis accepts connections but does not answer the TLS handshake. It hangs, or it does not speak TLS; " +
		"then unset {}_TLS, or write redis:// instead of rediss://"
)

// mistakes are those that every command may meet.
var mistakes = []mistake{
	{"cluster support disabled", "this is a single Redis and no cluster: set {}_TYPE=SINGLE"},
	{"unknown command 'cluster'",
		"this server is no node of a cluster: set {}_TYPE=SINGLE, or SENTINEL if these are Sentinels"},
	{"unknown command 'sentinel'",
		"this is a Redis and no Sentinel: set {}_TYPE=SINGLE, or the addresses of the Sentinels"},
	{"unknown command 'eval",
		"this server runs no scripts, which all decisions need. A Sentinel: set {}_TYPE=SENTINEL. A proxy: {}_URL must " +
			"lead to a Redis that has EVAL"},
	{"MOVED ", "this is a node of a cluster: set {}_TYPE=CLUSTER"},
	{"CROSSSLOT",
		"this is a cluster, or a proxy before one: set {}_TYPE=CLUSTER, or {}_SHARDED=true for a service that accepts only " +
			"keys of one slot in a script"},
	{"CLUSTERDOWN", "some slots of this cluster have no node: repair the cluster"},
	{"SELECT is not allowed in cluster mode",
		"this is a node of a cluster, which has no other database than 0: set {}_TYPE=CLUSTER"},
	{"DB index is out of range", "this Redis has fewer databases: correct the number at the end of {}_URL"},
	{"invalid DB index", "this Redis has fewer databases: correct the number at the end of {}_URL"},
	{"without any password configured", "this Redis asks for no password: unset {}_AUTH"},
	{"no password is set", "this Redis asks for no password: unset {}_AUTH"},
	{"WRONGPASS", "Redis does not know this user or password: correct {}_AUTH"},
	{"NOAUTH",
		"Redis asks for a password: set {}_AUTH or {}_AUTH_FILE; a password in the URL of a Sentinel is for the Sentinels"},
	{"DENIED Redis is running in protected mode",
		"this Redis answers its own machine only: set a password there and in {}_AUTH, or set protected-mode no there"},
	{"READONLY",
		"this is a replica, which takes no writes: set {}_URL to the primary, or to the Sentinels with {}_TYPE=SENTINEL"},
	{"max number of clients reached",
		"this Redis has no room for more connections: raise its maxclients, or lower {}_POOL_SIZE"},

	{"redis: can't parse", notRedis},
	{answerNotRedis, notRedis},
	{"first record does not look like a TLS handshake",
		"this server does not speak TLS: unset {}_TLS, or write redis:// instead of rediss://"},
	{"certificate signed by unknown authority",
		"Redis shows a certificate of an authority that is not trusted: set REDIS_TLS_CACERT to that authority"},
	{"certificate is not trusted",
		"Redis shows a certificate of an authority that is not trusted: set REDIS_TLS_CACERT to that authority"},
	{"certificate has expired or is not yet valid",
		"the certificate of Redis is out of date: renew it, or correct the clock"},
	{"x509: certificate",
		"Redis shows a certificate for another name: write that name in {}_URL, or set " +
			"REDIS_TLS_SKIP_HOSTNAME_VERIFICATION=true"},
	{"x509: cannot validate certificate for",
		"Redis shows a certificate for another name: write that name in {}_URL, or set " +
			"REDIS_TLS_SKIP_HOSTNAME_VERIFICATION=true"},
	{"tls: certificate required",
		"Redis asks for a client certificate: set REDIS_TLS_CLIENT_CERT and REDIS_TLS_CLIENT_KEY"},
	{"remote error: tls: unknown certificate authority",
		"Redis does not trust the authority of the client certificate: correct REDIS_TLS_CLIENT_CERT, or the authority " +
			"that Redis trusts"},
	{"remote error: tls: bad certificate",
		"Redis rejects the client certificate: correct REDIS_TLS_CLIENT_CERT and REDIS_TLS_CLIENT_KEY"},
}

// rights are error texts for users with too few rights. Other settings may be right.
var rights = []mistake{
	{"NOPERM", "Redis lets this user do too little: give it the rights in docs/reference/redis-keys.md#rights"},
	{"can't run this command or subcommand",
		"Redis lets this user do too little: give it the rights in docs/reference/redis-keys.md#rights"},
}

// Rejects reports whether Redis answers, but lets this user run no command or no script. That does not end by waiting.
func Rejects(err error) bool {
	if err == nil {
		return false
	}
	text := err.Error()
	return slices.ContainsFunc([]string{"NOPERM", "NOAUTH", "WRONGPASS", "can't run this command or subcommand",
		"unknown command 'eval"},
		func(rejection string) bool { return strings.Contains(text, rejection) })
}

// IsMistake reports whether wrong settings cause an error of every call. Programs that wait for Redis log them, with
// advice.
func IsMistake(err error) bool {
	_, ok := errors.AsType[*advisedError](err)
	return ok || find(mistakes, err.Error()) != ""
}

// Advice returns how to correct an error that wrong settings or missing rights cause. It is empty if the error has
// another cause. settings are the first letters of the variables of this Redis: REDIS or REDIS_PERSECOND.
func Advice(err error, settings string) string {
	if a, ok := errors.AsType[*advisedError](err); ok {
		return a.advice
	}
	advice := cmp.Or(find(mistakes, err.Error()), find(rights, err.Error()))
	return strings.ReplaceAll(advice, "{}", settings)
}

// find returns the advice for an error text of a server. Servers differ in quotes and letter case.
func find(in []mistake, said string) string {
	said = strings.ToLower(strings.ReplaceAll(said, "`", "'"))
	for _, m := range in {
		if strings.Contains(said, strings.ToLower(m.said)) {
			return m.advice
		}
	}
	return ""
}

// advisedError is an error whose advice depends on more than its text.
type advisedError struct {
	error
	advice string
}

func (e *advisedError) Unwrap() error { return e.error }

// advised returns an error with its advice. Without advice it returns err itself.
func advised(err error, advice string) error {
	if advice == "" {
		return err
	}
	return &advisedError{err, advice}
}

// sentinelMistakes are error texts of sentinels. {} stands for the setting of their password.
var sentinelMistakes = []mistake{
	{"unknown command 'sentinel'", ""}, // the general advice
	{"NOAUTH", "the Sentinels ask for a password: set %s"},
	{"without any password configured", "the Sentinels ask for no password: unset {}"},
	{"NOPERM", "the Sentinels let this user do too little: give it +auth +ping +subscribe +sentinel, in {}"},
}

// ofSentinels adds advice to an error of dialling through sentinels. A server's error text is from a sentinel, because
// the primary was not reached yet.
func (o *Options) ofSentinels(where address, err error) error {
	variable := o.setting("SENTINEL_AUTH")
	if errors.Is(err, goredis.Nil) {
		return advised(fmt.Errorf("the Sentinels know no primary of this name: %w", err),
			fmt.Sprintf("the Sentinels monitor no primary %q: correct the first part of %s", where.primary, o.setting("URL")))
	}
	if said := goredis.Error(nil); !errors.As(err, &said) {
		return err
	}
	from, inURL := variable, o.SentinelAuth == "" && where.account != (account{})
	if inURL {
		from = "the user and password in " + o.setting("URL")
	}
	if strings.Contains(err.Error(), "WRONGPASS") {
		return advised(err, wrongPassword("the Sentinels", from, inURL, split(o.SentinelAuth).or(where.account)))
	}
	advice := strings.ReplaceAll(strings.ReplaceAll(find(sentinelMistakes, err.Error()), "%s", variable), "{}", from)
	return advised(err, advice)
}
