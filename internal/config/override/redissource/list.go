package redissource

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	goredis "github.com/redis/go-redis/v9"

	"github.com/ratelimitd/ratelimitd/internal/config/override"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

const (
	// mostLooked is the largest number of overrides that a page of List looks at. If few of them are wanted, the page is
	// short, and the next one starts where it ended.
	mostLooked = 100_000
)

// List implements override.Source. It is sorted by domain, and within a domain by Identity.String. An empty Domain
// means all. A page may have fewer records than asked for although there is a next one.
func (s *Source) List(ctx context.Context, q override.Query) ([]override.Override, string, error) {
	ctx, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	if err := s.usable(ctx); err != nil {
		return nil, "", err
	}
	want := q.Length()
	domains := []string{q.Domain}
	if q.Domain == "" {
		var err error
		if domains, err = s.domains(ctx); err != nil {
			return nil, "", fmt.Errorf("list overrides: %w", err)
		}
	}
	fromDomain, fromField, err := override.ReadPlace(q.After)
	if err != nil {
		return nil, "", err
	}
	parts := patterns(q.Where)
	var page []override.Override
	looked := 0
	for d, domain := range domains {
		after := ""
		if q.After != "" {
			if domain < fromDomain {
				continue
			}
			if domain == fromDomain {
				after = fromField
			}
		}
		for {
			fields, more, err := s.fields(ctx, domain, q.Rule, after)
			if err != nil {
				return nil, "", err
			}
			last := !more && d == len(domains)-1
			looked += len(fields)
			var wanted []string
			cut := false
			for i, f := range fields {
				after = f
				if !matches(f, parts) {
					continue
				}
				if wanted = append(wanted, f); len(page)+len(wanted) == want {
					cut, last = true, last && i == len(fields)-1
					break
				}
			}
			found, err := s.records(ctx, domain, wanted)
			if err != nil {
				return nil, "", err
			}
			for _, o := range found {
				if q.Selects(&o) {
					page = append(page, o)
				}
			}
			if (cut || looked >= mostLooked) && !last {
				return page, override.Place(domain, after), nil
			}
			if cut || !more {
				break
			}
		}
	}
	return page, "", nil
}

// fields returns the next fields of a domain's records in their order, at most pageSize of them, and whether there may
// be more.
func (s *Source) fields(ctx context.Context, domain, rule, after string) (fields []string, more bool, err error) {
	by := &goredis.ZRangeBy{Min: "-", Max: "+"}
	if rule != "" {
		prefix := (&override.Identity{Rule: rule}).String() // ends with |
		by.Min, by.Max = "["+prefix, "("+prefix[:len(prefix)-1]+"}"
	}
	if after != "" && (rule == "" || "["+after > by.Min) {
		by.Min = "(" + after
	}
	err = inPages(func(count int64) (err error) {
		by.Count = count
		fields, err = s.o.Client.ZRangeByLex(ctx, s.orderKey(domain), by).Result()
		return err //nolint:wrapcheck // it is below
	})
	if err != nil {
		return nil, false, fmt.Errorf("list overrides: %w", err)
	}
	return fields, int64(len(fields)) == by.Count, nil
}

// records reads records. It leaves out those that have just been removed, and those that cannot be read.
func (s *Source) records(ctx context.Context, domain string, fields []string) ([]override.Override, error) {
	texts, err := s.texts(ctx, domain, fields)
	if err != nil {
		return nil, fmt.Errorf("list overrides: %w", err)
	}
	all := make([]override.Override, 0, len(texts))
	for _, t := range texts {
		text, ok := t.(string)
		if !ok {
			continue
		}
		if o, err := parse(text); err == nil {
			all = append(all, *o)
		}
	}
	return all, nil
}

// patterns returns texts that a field contains if the descriptor has these entries. The field of another descriptor may
// contain them too.
func patterns(where map[string]string) []string {
	parts := make([]string, 0, len(where))
	for k, v := range where {
		i := override.Identity{Entries: []descriptor.Entry{{Key: k, Value: v}}}
		parts = append(parts, i.String()[1:]) // without the limit's separator
	}
	return parts
}

func matches(field string, parts []string) bool {
	for _, p := range parts {
		if !strings.Contains(field, p) {
			return false
		}
	}
	return true
}

// History implements override.Source. The stream has at least the last 10,000 changes. After is the version of the last
// event of the page before.
func (s *Source) History(ctx context.Context, q override.Query) ([]override.Event, error) {
	ctx, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	until := "+"
	if q.After != "" {
		before, err := strconv.ParseInt(q.After, 10, 64)
		if err != nil || before < 0 {
			return nil, override.ErrPage
		}
		until = "(" + entryID(before)
	}
	want := q.Length()
	var events []override.Event
	for {
		var page []goredis.XMessage
		size := int64(0)
		err := inPages(func(count int64) (err error) {
			size = count
			page, err = s.o.Client.XRevRangeN(ctx, s.changesKey(), until, "-", count).Result()
			return err //nolint:wrapcheck // it is below
		})
		if err != nil {
			return nil, fmt.Errorf("read the history of overrides: %w", err)
		}
		for _, m := range page {
			until = "(" + m.ID
			e := readEntry(m)
			event := override.Event{Version: e.version, At: e.at, Author: e.author, Reason: e.reason}
			event.Before, event.After = optional(e.before), optional(e.after)
			about := event.After
			if about == nil {
				about = event.Before
			}
			if about == nil || !q.Selects(about) {
				continue
			}
			if events = append(events, event); len(events) == want {
				return events, nil
			}
		}
		if int64(len(page)) < size {
			return events, nil
		}
	}
}

// optional reads a record that may be missing or unreadable.
func optional(text string) *override.Override {
	if text == "" {
		return nil
	}
	o, err := parse(text)
	if err != nil {
		return nil
	}
	return o
}
