package httplimit

import (
	"net"
	"net/http"
	"net/netip"
	"strings"

	"github.com/ratelimitd/ratelimitd/limits"
	"github.com/ratelimitd/ratelimitd/middleware/internal/address"
	"github.com/ratelimitd/ratelimitd/middleware/internal/gate"
)

// Descriptor describes one descriptor of a limits.Request: one key for each level of the rule.
type Descriptor []Key

// Key builds one entry of a descriptor: a key of the rules, and a value from the request.
type Key struct {
	value func(r *http.Request, m mux) (string, bool)
	entry gate.Entry
}

// mux returns the pattern of a request before it is served.
type mux interface {
	Handler(r *http.Request) (h http.Handler, pattern string)
}

// Or returns the same key with a value for requests that have none.
func (k Key) Or(value string) Key {
	k.entry.Or = value
	return k
}

// Hashed returns the same key with its values hashed. Use it for secrets, such as API keys: values appear in Redis
// keys, in logs and in the console.
func (k Key) Hashed() Key {
	k.entry.Hash = true
	return k
}

// Header takes the value of a header. If the header is repeated, the first value counts, as for http.Header.Get.
func Header(name, key string) Key {
	return Func(key, func(r *http.Request) (string, bool) { return r.Header.Get(name), true })
}

// Method takes the method.
func Method(key string) Key {
	return Func(key, func(r *http.Request) (string, bool) { return r.Method, true })
}

// Host takes the host that a request is for, in lower case and without port. On a server the client chooses it.
func Host(key string) Key {
	return Func(key, func(r *http.Request) (string, bool) {
		host := r.Host
		if host == "" {
			host = r.URL.Host
		}
		if name, _, err := net.SplitHostPort(host); err == nil {
			host = name
		}
		return strings.ToLower(host), true
	})
}

// Path takes the path as the handler sees it, without the query. The client chooses it, and can choose another path
// with the same meaning, such as one with an extra slash. Prefer Pattern if there is a http.ServeMux.
func Path(key string) Key {
	return Func(key, func(r *http.Request) (string, bool) { return r.URL.Path, true })
}

// Pattern takes the pattern that the request matches, such as "GET /users/{id}". It comes from Options.Mux, from the
// next handler if that is a http.ServeMux, or else from the ServeMux that called the middleware. Requests that match no
// pattern have no value.
//
// Pattern has no value with other routers, unless they set http.Request.Pattern before they call the middleware: echo
// does. Above the routes of chi all requests would have no value, and share one counter with Or: examples/routers has
// the lines for chi, gin and connect.
func Pattern(key string) Key {
	return Key{entry: gate.Entry{Key: key}, value: func(r *http.Request, m mux) (string, bool) {
		// a ServeMux may return the path that the client chose for CONNECT
		if m != nil && r.Method != http.MethodConnect {
			if _, pattern := m.Handler(r); pattern != "" {
				return pattern, true
			}
		}
		return r.Pattern, true
	}}
}

// RemoteAddress takes the address of the client. Without trusted networks it is the peer of the connection. If the peer
// is in a trusted network, it is a proxy: then X-Forwarded-For is read from its end, and the first address that is not
// in a trusted network is the client's. The client may have forged the addresses before it. If an element is not an
// address, the client is the last trusted proxy.
//
// List only networks of proxies that append to X-Forwarded-For. A peer on a unix socket is trusted if any network is.
// An IPv6 client has a whole network of addresses: use group: ipv6/64 in the rule.
func RemoteAddress(key string, trusted ...netip.Prefix) Key {
	return Func(key, func(r *http.Request) (string, bool) {
		a, ok := address.Client(r.RemoteAddr, r.Header["X-Forwarded-For"], trusted)
		return a.String(), ok
	})
}

// Func takes the value that a function returns, such as a claim of a token that an earlier handler verified. The
// function returns false if the request has no value.
func Func(key string, value func(*http.Request) (string, bool)) Key {
	return Key{entry: gate.Entry{Key: key}, value: func(r *http.Request, _ mux) (string, bool) { return value(r) }}
}

// request builds a request to a decider. It returns nil if every descriptor lacks a value.
func request(domain string, descriptors []Descriptor, r *http.Request, m mux) *limits.Request {
	return gate.Request(domain, descriptors, func(k *Key) (limits.Entry, bool) { return k.entry.Of(k.value(r, m)) })
}

// check panics if descriptors cannot be used.
func check(d limits.Decider, domain string, descriptors []Descriptor) {
	gate.Check("httplimit", d, domain, descriptors, func(k *Key) (string, bool) { return k.entry.Key, k.value != nil })
}
