package grpclimit

import (
	"context"
	"net/netip"
	"strings"

	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"

	"github.com/ratelimitd/ratelimitd/limits"
	"github.com/ratelimitd/ratelimitd/middleware/internal/address"
	"github.com/ratelimitd/ratelimitd/middleware/internal/gate"
)

// Descriptor describes one descriptor of a limits.Request: one key for each level of the rule.
type Descriptor []Key

// Key builds one entry of a descriptor: a key of the rules, and a value from the call.
type Key struct {
	value func(context.Context, *call) (string, bool)
	entry gate.Entry
}

// call is a call with its metadata.
type call struct {
	*Call
	metadata metadata.MD
}

// first returns the first value of a key of the metadata, or "".
func (c *call) first(name string) string {
	if v := c.metadata.Get(name); len(v) > 0 {
		return v[0]
	}
	return ""
}

// Or returns the same key with a value for calls that have none.
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

// Metadata takes the value of a key of the metadata, or the first one if there are several.
func Metadata(name, key string) Key {
	name = strings.ToLower(name)
	return Key{entry: gate.Entry{Key: key}, value: func(_ context.Context, c *call) (string, bool) {
		return c.first(name),
			true
	}}
}

// Method takes the full method, such as /shop.v1.Shop/Buy.
func Method(key string) Key {
	return Func(key, func(_ context.Context, c *Call) (string, bool) { return c.Method, true })
}

// PeerAddress takes the address of the client of a server. Without trusted networks it is the peer of the connection.
// If the peer is in a trusted network, it is a proxy: then the metadata x-forwarded-for is read from its end, and the
// first address that is not in a trusted network is the client's. The client may have forged the addresses before it.
// If an element is not an address, the client is the last trusted proxy.
//
// List only networks of proxies that append to x-forwarded-for. A peer on a unix socket is trusted if any network is.
// An IPv6 client has a whole network of addresses: use group: ipv6/64 in the rule.
func PeerAddress(key string, trusted ...netip.Prefix) Key {
	return Key{entry: gate.Entry{Key: key}, value: func(ctx context.Context, c *call) (string, bool) {
		p, ok := peer.FromContext(ctx)
		if !ok || p.Addr == nil {
			return "", false
		}
		a, ok := address.Client(p.Addr.String(), c.metadata["x-forwarded-for"], trusted)
		return a.String(), ok
	}}
}

// Func takes the value that a function returns, such as a claim of a token that an earlier interceptor verified. The
// function returns false if the call has no value.
func Func(key string, value func(context.Context, *Call) (string, bool)) Key {
	return Key{entry: gate.Entry{Key: key}, value: func(ctx context.Context, c *call) (string,
		bool) {
		return value(ctx, c.Call)
	}}
}

// request builds a request to a decider. It returns nil if every descriptor lacks a value.
func request(ctx context.Context, domain string, descriptors []Descriptor, c *call) *limits.Request {
	return gate.Request(domain, descriptors, func(k *Key) (limits.Entry, bool) { return k.entry.Of(k.value(ctx, c)) })
}

// check panics if descriptors cannot be used.
func check(d limits.Decider, domain string, descriptors []Descriptor) {
	gate.Check("grpclimit", d, domain, descriptors, func(k *Key) (string, bool) { return k.entry.Key, k.value != nil })
}
