package descriptor

import (
	"bytes"
	"strconv"
	"time"
)

// KeyFormat is the format of counters' keys.
type KeyFormat uint8

// The formats.
const (
	KeysOwn KeyFormat = iota // the format that KeyBuilder describes

	// KeysLyft is the format of envoyproxy/ratelimit, for the counters that it has too, so that both count together:
	//
	//	<prefix><domain>_<key>_<value>_<key>_<value>_<start of the window, in seconds since the Unix epoch>
	//
	// These counters are fixed windows of one unit, on the clock, without reservations and penalties, of requests' own
	// limits and of rules that envoyproxy/ratelimit can read and that have one limit. All other counters keep the KeysOwn
	// format. KeysLyft distinguishes less than KeysOwn: two identities share a key if their names are equal when joined,
	// or if their windows have different units and start in the same second. A client can choose the slot in a cluster by
	// a {tag} in a value.
	//
	// AppendKey has no time, so it writes the unit in braces instead of the window's start: {minute}. No other key ends in
	// a brace. The store of the counters calls AppendLyftKey to fill in the start.
	KeysLyft
)

// maxLyftKeySize is the maximum length in bytes of a key of KeysLyft. A counter whose key would be longer has a key of
// KeysOwn. envoyproxy/ratelimit itself has no maximum.
const maxLyftKeySize = 4096

// appendLyft appends a key of KeysLyft, if the counter can have one.
func (k KeyBuilder) appendLyft(dst []byte, domain string, entries []Entry, rule *Rule,
	limit *Limit) (key []byte, ok bool) {
	w := limit.Window
	if limit.Algorithm != FixedWindow || limit.FirstHit || limit.Scheduled || limit.FromRequest || limit.Penalty != nil ||
		limit.Reservable() ||
		w.Multiplier > 1 || !w.Unit.OnWire() || w.Location != nil && !w.Named {
		return dst, false
	}
	if rule != nil && len(rule.Limits) > 1 {
		// in envoyproxy/ratelimit, limits of one entry would share a counter whenever their windows start together
		return dst, false
	}
	start := len(dst)
	dst = append(dst, k.Prefix...)
	dst = append(dst, domain...)
	dst = append(dst, '_')
	for i := range entries {
		value := entries[i].Value
		if rule != nil && rule.group(i) != nil {
			return dst[:start], false
		}
		if rule != nil && rule.Shares(i) {
			if rule.Levels[i].Kind != MatchWildcard || rule.shared.levels[i].text == conditionMark {
				return dst[:start], false
			}
			value = rule.Levels[i].PatternFor(entries[i].Key)
		}
		dst = append(dst, entries[i].Key...)
		dst = append(dst, '_')
		dst = append(dst, value...)
		dst = append(dst, '_')
		if len(dst)-start > maxLyftKeySize {
			return dst[:start], false
		}
	}
	dst = append(dst, '{')
	dst = append(dst, w.Unit.String()...)
	return append(dst, '}'), true
}

// CutLyftKey returns the part of a key of KeysLyft before the window's start. ok is false for a key of KeysOwn.
func CutLyftKey(key []byte) (stem []byte, ok bool) {
	if len(key) == 0 || key[len(key)-1] != '}' {
		return nil, false
	}
	at := bytes.LastIndexByte(key, '{')
	if at < 0 {
		return nil, false
	}
	return key[:at], true
}

// AppendLyftKey appends the stem that CutLyftKey returned, and the window's start. start is in microseconds.
func AppendLyftKey(dst, stem []byte, start int64) []byte {
	dst = append(dst, stem...)
	return strconv.AppendInt(dst, start/time.Second.Microseconds(), 10)
}
