package override

import (
	"encoding/base64"
	"encoding/binary"
	"errors"
	"slices"

	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// Selects reports whether a record is one of those that a query is for.
func (q *Query) Selects(o *Override) bool {
	if q.Domain != "" && o.Domain != q.Domain || q.Rule != "" && o.Rule != q.Rule {
		return false
	}
	for k, v := range q.Where {
		if !slices.Contains(o.Entries, descriptor.Entry{Key: k, Value: v}) {
			return false
		}
	}
	return true
}

// Length returns how many records a page has at most.
func (q *Query) Length() int {
	const usual, most = 100, 1000
	if q.Limit <= 0 {
		return usual
	}
	return min(q.Limit, most)
}

// ErrPage is the error of a Query whose After is not from a previous page.
var ErrPage = errors.New("the beginning of the page is not one that a page before gave")

// Place returns the start of a page: after the record with this text of its Identity in this domain.
func Place(domain, identity string) string {
	b := binary.AppendUvarint(nil, uint64(len(domain)))
	return base64.RawURLEncoding.EncodeToString(append(append(b, domain...), identity...))
}

// ReadPlace decodes a text from Place.
func ReadPlace(text string) (domain, identity string, err error) {
	if text == "" {
		return "", "", nil
	}
	b, err := base64.RawURLEncoding.DecodeString(text)
	if err != nil {
		return "", "", ErrPage
	}
	n, size := binary.Uvarint(b)
	if size <= 0 || n > uint64(len(b)-size) {
		return "", "", ErrPage
	}
	rest := string(b[size:])
	return rest[:n], rest[n:], nil
}
