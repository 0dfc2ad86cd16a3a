package redissource

import (
	"context"
	"errors"
	"slices"
)

// inPages asks Redis for at most count things. It asks for fewer while the answer is larger than the client accepts: an
// override may have 64 KiB, in its record and again in the name of its field.
func inPages(ask func(count int64) error) error {
	for count := int64(pageSize); ; count /= 2 {
		if err := ask(count); count == 1 || !tooLarge(err) {
			return err
		}
	}
}

// tooLarge reports whether an answer was larger than the client accepts.
func tooLarge(err error) bool {
	var large interface{ TooLarge() bool }
	return errors.As(err, &large) && large.TooLarge()
}

// domains returns the domains that have overrides, in order.
func (s *Source) domains(ctx context.Context) ([]string, error) {
	var all []string
	for cursor, first := uint64(0), true; first || cursor != 0; first = false {
		err := inPages(func(count int64) error {
			ctx, cancel := context.WithTimeout(ctx, answerWithin)
			defer cancel()
			page, next, err := s.o.Client.SScan(ctx, s.domainsKey(), cursor, "", count).Result()
			if err == nil {
				all, cursor = append(all, page...), next
			}
			return err //nolint:wrapcheck // the caller does
		})
		if err != nil {
			return nil, err
		}
	}
	slices.Sort(all)
	return slices.Compact(all), nil // a scan may find one twice
}

// texts returns the records in fields of a domain; nil for those that do not exist.
func (s *Source) texts(ctx context.Context, domain string, fields []string) ([]any, error) {
	if len(fields) == 0 {
		return nil, nil
	}
	texts, err := s.o.Client.HMGet(ctx, s.recordsKey(domain), fields...).Result()
	if half := len(fields) / 2; half > 0 && tooLarge(err) {
		if texts, err = s.texts(ctx, domain, fields[:half]); err == nil {
			var rest []any
			rest, err = s.texts(ctx, domain, fields[half:])
			texts = append(texts, rest...)
		}
	}
	return texts, err
}
