package ratelimit

import (
	"fmt"

	"github.com/ratelimitd/ratelimitd/internal/limiter"
	"github.com/ratelimitd/ratelimitd/limits"
)

// check rejects a request beyond the bounds that the service has by default, so that a value that a client chose, such
// as a header, takes no more memory here than there.
func (l *Limiter) check(r *Request) error {
	if l.closed.Load() {
		return limits.ErrClosed
	}
	if r == nil {
		return fmt.Errorf("%w: it is nil", limits.ErrInvalid)
	}
	if err := r.Validate(); err != nil {
		return err
	}
	if len(r.Domain) > limiter.MaxTextBytes {
		return tooLong("the domain")
	}
	if n := len(r.Descriptors); n > limiter.MaxDescriptors {
		return fmt.Errorf("%w: %d descriptors, more than %d", limits.ErrInvalid, n, limiter.MaxDescriptors)
	}
	for i := range r.Descriptors {
		entries := r.Descriptors[i].Entries
		if n := len(entries); n > limiter.MaxEntries {
			return tooMany(n)
		}
		for j := range entries {
			if len(entries[j].Key) > limiter.MaxTextBytes || len(entries[j].Value) > limiter.MaxTextBytes {
				return tooLong("a key or a value")
			}
		}
	}
	return nil
}

// checkPairs checks a request of one descriptor.
func (l *Limiter) checkPairs(domain string, pairs []string) error {
	if l.closed.Load() {
		return limits.ErrClosed
	}
	if len(domain) > limiter.MaxTextBytes {
		return tooLong("the domain")
	}
	if n := len(pairs) / 2; n > limiter.MaxEntries {
		return tooMany(n)
	}
	for _, text := range pairs {
		if len(text) > limiter.MaxTextBytes {
			return tooLong("a key or a value")
		}
	}
	if len(pairs)%2 != 0 {
		return limits.NewRequest(domain, pairs...).Validate()
	}
	return nil
}

func tooLong(what string) error {
	return fmt.Errorf("%w: %s has more than %d bytes", limits.ErrInvalid, what, limiter.MaxTextBytes)
}

func tooMany(entries int) error {
	return fmt.Errorf("%w: %d entries in one descriptor, more than %d", limits.ErrInvalid, entries, limiter.MaxEntries)
}
