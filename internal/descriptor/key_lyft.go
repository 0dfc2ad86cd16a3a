package descriptor

import (
	"bytes"
	"strconv"
	"time"
)

// KeyFormat is how counters' keys are written.
type KeyFormat uint8

// The formats.
const (
	KeysOwn KeyFormat = iota // as KeyBuilder says

	// KeysLyft writes the counters that envoyproxy/ratelimit has too as that does, so that both count together:
	//
	//	<prefix><domain>_<key>_<value>_<key>_<value>_<start of the window, in seconds since the Unix epoch>
	//
	// These are fixed windows of one unit, on the clock, of rules that it can read and that have one limit, and
	// overrides; all other counters keep the keys of our own. These keys do not distinguish all that KeysOwn does: names that are
	// the same when they are joined, windows of different units that begin at the same second, and by a {tag} in a value a
	// caller chooses the slot in a cluster.
	//
	// AppendKey does not know the time, and writes the unit in braces in the place of the window's start: {minute}. No
	// other key ends in a brace. Who keeps the counters writes AppendLyftKey in its place.
	KeysLyft
)

// MaxLyftKeySize is the length in bytes up to which keys are written as envoyproxy/ratelimit does, which knows no bound.
// A counter with a longer one keeps the key of our own.
const MaxLyftKeySize = 4096

// appendLyft appends a key of KeysLyft, if the counter can have one.
func (k KeyBuilder) appendLyft(dst []byte, domain string, entries []Entry, rule *Rule, limit *Limit) (key []byte, ok bool) {
	w := limit.Window
	if limit.Algorithm != FixedWindow || limit.FirstHit || w.Multiplier > 1 || w.Location != nil && !w.Named {
		return dst, false
	}
	if rule != nil && len(rule.Limits) > 1 {
		return dst, false // there, limits of one entry would share a counter whenever their windows begin together
	}
	start := len(dst)
	dst = append(dst, k.Prefix...)
	dst = append(dst, domain...)
	dst = append(dst, '_')
	for i := range entries {
		value := entries[i].Value
		if rule != nil && rule.Shares(i) {
			if rule.Levels[i].Kind != MatchWildcard {
				return dst[:start], false
			}
			value = rule.Levels[i].PatternFor(entries[i].Key)
		}
		dst = append(dst, entries[i].Key...)
		dst = append(dst, '_')
		dst = append(dst, value...)
		dst = append(dst, '_')
		if len(dst)-start > MaxLyftKeySize {
			return dst[:start], false
		}
	}
	dst = append(dst, '{')
	dst = append(dst, w.Unit.String()...)
	return append(dst, '}'), true
}

// CutLyftKey returns what a key of KeysLyft has before the window's start; ok is false for a key of our own.
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

// AppendLyftKey appends what CutLyftKey returned and the window's start, which is given in microseconds.
func AppendLyftKey(dst, stem []byte, start int64) []byte {
	dst = append(dst, stem...)
	return strconv.AppendInt(dst, start/time.Second.Microseconds(), 10)
}
