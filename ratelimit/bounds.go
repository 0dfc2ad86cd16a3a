package ratelimit

import (
	"fmt"

	"github.com/ratelimitd/ratelimitd/limits"
)

// The bounds of a request. They are the defaults of the service, so that a value which a client chose, such as a header, takes no more
// memory here than there.
const (
	maxDescriptors = 256
	maxEntries     = 256      // of a descriptor
	maxText        = 64 << 10 // bytes of a domain, a key or a value
)

// check refuses a request beyond the bounds.
func check(r *Request) error {
	if len(r.Domain) > maxText {
		return tooLong("the domain")
	}
	if n := len(r.Descriptors); n > maxDescriptors {
		return fmt.Errorf("%w: %d descriptors, more than %d", limits.ErrInvalid, n, maxDescriptors)
	}
	for i := range r.Descriptors {
		entries := r.Descriptors[i].Entries
		if n := len(entries); n > maxEntries {
			return tooMany(n)
		}
		for j := range entries {
			if len(entries[j].Key) > maxText || len(entries[j].Value) > maxText {
				return tooLong("a key or a value")
			}
		}
	}
	return nil
}

// checkPairs is check for a request of one descriptor.
func checkPairs(domain string, pairs []string) error {
	if len(domain) > maxText {
		return tooLong("the domain")
	}
	if n := (len(pairs) + 1) / 2; n > maxEntries {
		return tooMany(n)
	}
	for _, text := range pairs {
		if len(text) > maxText {
			return tooLong("a key or a value")
		}
	}
	return nil
}

func tooLong(what string) error {
	return fmt.Errorf("%w: %s has more than %d bytes", limits.ErrInvalid, what, maxText)
}

func tooMany(entries int) error {
	return fmt.Errorf("%w: %d entries in one descriptor, more than %d", limits.ErrInvalid, entries, maxEntries)
}
