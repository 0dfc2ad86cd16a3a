package descriptor

import (
	"crypto/sha256"
	"encoding/hex"
	"slices"
)

// MaxKeySize is the length in bytes up to which a counter's key spells out its entries. A longer one keeps a readable
// beginning and names the rest by its SHA-256, so that what a caller sends cannot make a backend's keys long.
const MaxKeySize = 512

const keyPrefixKept = 64 // readable bytes that a hashed key keeps, about

// KeyBuilder builds the identity of counters. The zero value has no prefix. It may be copied and used concurrently.
//
// A key reads
//
//	<prefix><domain>|<key>=<value>|<key>=<value>|<algorithm and window>
//
// with another mark than = where the rule's pattern stands for the value (share_threshold): ~ for a wildcard, ~~ for a
// regular expression, ~~= for a network, ~=value=value for a list of values, and ~~~ for a key with a star. In what a caller or a rule gives, the
// bytes \ | = ~ { are escaped, so that two different identities never have one key, and no value can choose the cluster
// slot of its key by a {tag}.
type KeyBuilder struct {
	Prefix string
	Format KeyFormat // default KeysOwn, which is what stands above
}

// AppendKey appends the key of the counter for a limit on these entries. rule is the rule whose patterns stand in the
// values' place; nil (an override) takes every value as it came.
func (k KeyBuilder) AppendKey(dst []byte, domain string, entries []Entry, rule *Rule, limit *Limit) []byte {
	if k.Format == KeysLyft {
		if key, ok := k.appendLyft(dst, domain, entries, rule, limit); ok {
			return key
		}
	}
	start := len(dst)
	dst = append(dst, k.Prefix...)
	body := len(dst)
	dst = appendEscaped(dst, domain)
	for i := range entries {
		dst = append(dst, '|')
		dst = appendEscaped(dst, entries[i].Key)
		if rule != nil && i < len(rule.shared) && rule.shared[i] != "" {
			dst = append(dst, rule.shared[i]...)
			continue
		}
		dst = append(dst, '=')
		dst = appendEscaped(dst, entries[i].Value)
	}
	if len(dst)-start > MaxKeySize {
		dst = hashKey(dst, body)
	}
	dst = append(dst, '|')
	return limit.appendTag(dst)
}

// maxSharedSize is the length in bytes up to which a list of values stands in a key as it is.
const maxSharedSize = 128

// sharedBy is what stands in a key for all values that a level matches, empty for an exact value and the key alone,
// which share nothing. The order of a list makes no difference to it.
func sharedBy(level Level, values []string) string {
	switch level.Kind {
	case MatchWildcard:
		if HasWildcard(level.Key) {
			return string(appendEscaped([]byte("~~~"), level.Text()))
		}
		return string(appendEscaped([]byte("~"), level.Value))
	case MatchRegex:
		return string(appendEscaped([]byte("~~"), level.Value))
	case MatchCIDR:
		return string(appendEscaped([]byte("~~="), level.Value))
	case MatchValues:
		text := []byte("~")
		for _, v := range slices.Sorted(slices.Values(values)) {
			text = append(text, '=')
			text = appendEscaped(text, v)
		}
		if len(text) > maxSharedSize {
			// Hashed here once, not in every key; the mark is the one of hashKey.
			sum := sha256.Sum256(text)
			text = hex.AppendEncode([]byte(`~=\#`), sum[:])
		}
		return string(text)
	default:
		return ""
	}
}

// hashKey replaces what follows body by a readable beginning and a hash of all of it. The mark \# is never the
// outcome of escaping, so no other key can look like this one; the beginning is cut so that it does not end within an
// escape, which would turn the mark into an escaped backslash.
func hashKey(dst []byte, body int) []byte {
	sum := sha256.Sum256(dst[body:])
	dst = dst[:min(body+keyPrefixKept, len(dst))]
	backslashes := 0
	for i := len(dst) - 1; i >= body && dst[i] == '\\'; i-- {
		backslashes++
	}
	dst = dst[:len(dst)-backslashes%2]
	dst = append(dst, '\\', '#')
	return hex.AppendEncode(dst, sum[:])
}

// escapes maps a byte that may not stand in a key's component to what follows the backslash in its place; 0 elsewhere.
var escapes = [256]byte{'\\': '\\', '|': '|', '=': '=', '~': '~', '{': '['}

func appendEscaped(dst []byte, s string) []byte {
	plain := 0 // where the bytes not yet copied begin
	for i := 0; i < len(s); i++ {
		if e := escapes[s[i]]; e != 0 {
			dst = append(dst, s[plain:i]...)
			dst = append(dst, '\\', e)
			plain = i + 1
		}
	}
	return append(dst, s[plain:]...)
}
