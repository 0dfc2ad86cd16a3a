package gate

import "github.com/ratelimitd/ratelimitd/limits"

// Entry defines how an entry is built from a value of a request.
type Entry struct {
	Key  string // key in the rules
	Or   string // value for requests without one; if it is empty, their descriptor is left out
	Hash bool   // whether the value is replaced by its hash
}

// Of returns the entry for a value. It returns false if the value is missing and Or is empty.
func (e *Entry) Of(value string, ok bool) (limits.Entry, bool) {
	switch {
	case !ok || value == "":
		return limits.Entry{Key: e.Key, Value: e.Or}, e.Or != ""
	case e.Hash:
		return limits.Entry{Key: e.Key, Value: Hash(value)}, true
	default:
		return limits.Entry{Key: e.Key, Value: Value(value)}, true
	}
}

// Request builds a request to a decider. Each descriptor is a list of keys, and entry returns the entry of a key. A
// descriptor that lacks an entry is left out. Request returns nil if no descriptor is left.
func Request[Key any, Descriptor ~[]Key](domain string, descriptors []Descriptor,
	entry func(*Key) (limits.Entry, bool)) *limits.Request {
	var q *limits.Request
	for _, keys := range descriptors {
		entries := make([]limits.Entry, 0, len(keys))
		for i := range keys {
			e, ok := entry(&keys[i])
			if !ok {
				break
			}
			entries = append(entries, e)
		}
		if len(entries) < len(keys) {
			continue
		}
		if q == nil {
			q = &limits.Request{Domain: domain, Descriptors: make([]limits.Descriptor, 0, len(descriptors))}
		}
		q.Descriptors = append(q.Descriptors, limits.Descriptor{Entries: entries})
	}
	return q
}

// keyChecker is a decider that can check keys against its rules. A ratelimit.Limiter is one.
type keyChecker interface {
	CheckKeys(domain string, keys ...string) error
}

// Check panics if Request cannot use its arguments, or if the decider reports that no rule can match a descriptor. The
// panic names the package where. key returns the name of a key, or false for the zero key.
func Check[Key any, Descriptor ~[]Key](where string, d limits.Decider, domain string, descriptors []Descriptor,
	key func(*Key) (string, bool)) {
	if d == nil {
		panic(where + ": the Decider is nil")
	}
	if domain == "" {
		panic(where + ": Domain is empty")
	}
	if len(descriptors) == 0 {
		panic(where + ": there are no Descriptors")
	}
	known, checks := d.(keyChecker)
	for _, keys := range descriptors {
		if len(keys) == 0 {
			panic(where + ": a Descriptor has no keys")
		}
		names := make([]string, len(keys))
		for i := range keys {
			var ok bool
			if names[i], ok = key(&keys[i]); !ok {
				panic(where + ": a Key is empty: make it with Func or another function")
			}
		}
		if checks {
			if err := known.CheckKeys(domain, names...); err != nil {
				panic(where + ": " + err.Error())
			}
		}
	}
}
