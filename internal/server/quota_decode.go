package server

import (
	"math"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/lending/quota/assigner"
	"github.com/ratelimitd/ratelimitd/internal/limiter"
)

const (
	maxReportBytes   = 64 << 20
	maxReportUsages  = 100_000
	maxReportEntries = 1_000_000 // total entries in the bucket ids of a report
	maxBucketIDBytes = 64 << 10  // length of the keys and values

	// maxKeptUsages is the number of usages whose memory a stream keeps between two reports.
	maxKeptUsages = 1024
)

var (
	errMalformedReport error = &limiter.InvalidError{
		Message: "malformed envoy.service.rate_limit_quota.v3.RateLimitQuotaUsageReports",
	}
	errManyUsages = status.Errorf(codes.ResourceExhausted, "bucket_quota_usages: more than %d in one message",
		maxReportUsages)
	errManyEntries = status.Errorf(codes.ResourceExhausted,
		"bucket_quota_usages: bucket ids with more than %d entries in one message", maxReportEntries)
)

// quotaReport is a decoded message of a client. Its memory is reused.
type quotaReport struct {
	domain  string
	usages  []assigner.Usage
	skipped int // usages left out because their bucket id exceeds a bound

	entries []descriptor.Entry // entries of all bucket ids
}

// reset empties the report, and frees large memory.
func (r *quotaReport) reset() {
	if cap(r.usages) > maxKeptUsages || cap(r.entries) > 8*maxKeptUsages {
		*r = quotaReport{}
		return
	}
	clear(r.usages[:cap(r.usages)]) // they keep messages in memory
	clear(r.entries[:cap(r.entries)])
	*r = quotaReport{usages: r.usages[:0], entries: r.entries[:0]}
}

// decodeReport decodes an envoy.service.rate_limit_quota.v3.RateLimitQuotaUsageReports into r, which must be empty. It
// accepts the same bytes as the generated code, with the same meaning. The entries of a bucket id are sorted by key. An
// invalid duration becomes 0.
//
// A usage whose bucket id exceeds a bound is left out, without an error: Envoy creates ids from requests, so a single
// request may be the cause. Too many usages are an error.
//
// The strings of a report are parts of text, which has the same bytes as data.
func decodeReport(data []byte, text string, r *quotaReport, bounds Requests) error {
	d := decoder{data: data, text: text, end: len(data), bounds: bounds}
	for d.pos < d.end {
		num, typ, ok := d.tag()
		if !ok {
			return errMalformedReport
		}
		switch {
		case num == 1 && typ == protowire.BytesType:
			if r.domain, ok = d.str(); d.tooLong {
				return tooMuch("domain", "more than %d bytes", bounds.MaxTextBytes)
			}
		case num == 2 && typ == protowire.BytesType:
			if len(r.usages)+r.skipped >= maxReportUsages {
				return errManyUsages
			}
			if ok = d.usage(r); len(r.usages) == 1 {
				d.makeRoom(r)
			}
			if len(r.entries) > maxReportEntries {
				return errManyEntries
			}
		default:
			ok = d.skip(num, typ)
		}
		if !ok {
			return errMalformedReport
		}
	}
	return nil
}

// makeRoom allocates memory for the other usages of a long report, assuming that their ids have as many entries as the
// first one. Growing slices would use four times as much memory.
func (d *decoder) makeRoom(r *quotaReport) {
	more := 0
	for rest := d.data[d.pos:d.end]; len(rest) > 0 && more < maxReportUsages; {
		num, _, n := protowire.ConsumeField(rest)
		if n < 0 {
			break
		}
		if num == 2 {
			more++
		}
		rest = rest[n:]
	}
	if more <= cap(r.usages)-len(r.usages) {
		return
	}
	r.usages = slices.Grow(r.usages, more)
	const least = 4 // bytes of an entry that differs from the others of its id
	r.entries = slices.Grow(r.entries, min(more*len(r.entries), maxReportEntries, (d.end-d.pos)/least))
}

// usage decodes another usage of a report.
func (d *decoder) usage(r *quotaReport) bool {
	outer, ok := d.enter()
	if !ok {
		return false
	}
	end, first := d.end, len(r.entries)
	var u assigner.Usage
	var elapsed wireDuration
	for d.pos < d.end {
		num, typ, ok := d.tag()
		if !ok {
			return false
		}
		switch {
		case num == 1 && typ == protowire.BytesType:
			if ok = d.bucketID(r, first); !ok && d.tooLong {
				d.tooLong = false
				r.entries = r.entries[:first]
				r.skipped++
				d.pos, d.end = end, outer
				return true
			}
		case num == 2 && typ == protowire.BytesType:
			ok = d.wireDuration(&elapsed)
		case num == 3 && typ == protowire.VarintType:
			u.Allowed, ok = d.varint()
		case num == 4 && typ == protowire.VarintType:
			u.Denied, ok = d.varint()
		default:
			ok = d.skip(num, typ)
		}
		if !ok {
			return false
		}
	}
	r.entries = r.entries[:first+len(sortEntries(r.entries[first:]))]
	u.ID = r.entries[first:len(r.entries):len(r.entries)]
	u.Elapsed = elapsed.duration()
	r.usages = append(r.usages, u)
	d.end = outer
	return true
}

// bucketID adds the entries of a bucket id to a report. The entries of this bucket start at index first. It sets
// tooLong for an id that exceeds a bound.
func (d *decoder) bucketID(r *quotaReport, first int) bool {
	outer, ok := d.enter()
	if !ok {
		return false
	}
	size := 0
	for i := first; i < len(r.entries); i++ {
		size += len(r.entries[i].Key) + len(r.entries[i].Value)
	}
	for d.pos < d.end {
		num, typ, ok := d.tag()
		if !ok {
			return false
		}
		if num != 1 || typ != protowire.BytesType {
			if !d.skip(num, typ) {
				return false
			}
			continue
		}
		e, ok := d.entry()
		if !ok {
			return false
		}
		if size += len(e.Key) + len(e.Value); size > maxBucketIDBytes || len(r.entries)-first >= d.bounds.MaxEntries {
			d.tooLong = true
			return false
		}
		r.entries = append(r.entries, e)
	}
	d.end = outer
	return true
}

// sortEntries sorts the entries of a map by key, and keeps only the last one of each key.
func sortEntries(all []descriptor.Entry) []descriptor.Entry {
	slices.SortStableFunc(all, func(a, b descriptor.Entry) int { return strings.Compare(a.Key, b.Key) })
	kept := all[:0]
	for i, e := range all {
		if i+1 == len(all) || all[i+1].Key != e.Key {
			kept = append(kept, e)
		}
	}
	return kept
}

// duration returns 0 if w is negative or not valid.
func (w wireDuration) duration() time.Duration {
	const most = 315_576_000_000 // seconds; the maximum of google.protobuf.Duration
	if w.seconds < 0 || w.nanos < 0 || w.seconds > most || w.nanos >= 1e9 {
		return 0
	}
	if w.seconds > math.MaxInt64/int64(time.Second) {
		return math.MaxInt64
	}
	whole := time.Duration(w.seconds) * time.Second
	return whole + min(time.Duration(w.nanos), math.MaxInt64-whole)
}
