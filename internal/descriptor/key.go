package descriptor

import (
	"crypto/sha256"
	"encoding/hex"
	"slices"
)

// maxKeySize is the length in bytes up to which a counter's key contains its entries in full. A longer key keeps a
// readable start and is completed by a SHA-256, so that clients cannot make a backend's keys long.
const maxKeySize = 512

const keyPrefixKept = 64 // about how many readable bytes a hashed key keeps

// KeyBuilder builds the keys that identify counters. The zero value has no prefix. It may be copied and used
// concurrently.
//
// A key has the form
//
//	<prefix><domain>|<key>=<value>|<key>=<value>|<algorithm and window>
//
// With share_threshold the key contains the rule's pattern instead of the value, and another mark instead of =: ~ for a
// wildcard, ~~ for a regular expression, ~~= for a network, ~=value=value for a list of values, and ~~~ for a key with
// a star. An entry that is a condition has a single ~ after its key. Where values are grouped, the key is followed by
// the pattern with its mark, if there is one, then =~ for a group or =~= for values without case, then the counted
// value. Under a condition, the group itself and = precede this value. In text from a client or a rule, the bytes \ | =
// ~ { are escaped. So two different identities never share a key, and no value can choose its key's cluster slot by a
// {tag}.
type KeyBuilder struct {
	Prefix string
	Format KeyFormat // default KeysOwn, the form above
}

// AppendKey appends the key of the counter for a limit on these entries. rule is the rule whose shared patterns replace
// values. If it is nil (the request's own limit), every value is used as it is. The entries have the values that count:
// Rule.CountedEntries. So a value that has several counters is grouped once.
func (k KeyBuilder) AppendKey(dst []byte, domain string, entries []Entry, rule *Rule, limit *Limit) []byte {
	if k.Format == KeysLyft {
		if key, ok := k.appendLyft(dst, domain, entries, rule, limit); ok {
			return key
		}
	}
	var levels []shared
	if rule != nil && rule.shared != nil {
		levels = rule.shared.levels
	}
	start := len(dst)
	dst = append(dst, k.Prefix...)
	body := len(dst)
	dst = appendEscaped(dst, domain)
	for i := range entries {
		dst = append(dst, '|')
		dst = appendEscaped(dst, entries[i].Key)
		if i < len(levels) && levels[i].text != "" {
			dst = append(dst, levels[i].text...)
			if levels[i].group != nil {
				dst = appendEscaped(dst, entries[i].Value)
			}
			continue
		}
		dst = append(dst, '=')
		dst = appendEscaped(dst, entries[i].Value)
	}
	if len(dst)-start > maxKeySize {
		dst = hashKey(dst, body)
	}
	dst = append(dst, '|')
	if rule != nil {
		for i := range rule.tags {
			if limit == &rule.Limits[i] {
				return append(dst, rule.tags[i]...)
			}
		}
	}
	return limit.appendTag(dst)
}

// conditionMark replaces the value of an entry that is a condition. No pattern is empty, so no other level has it.
const conditionMark = "~"

// groupMark stands before a value that counts for a group of values, and foldMark before one in lower case. No value
// and no pattern has them. There are two, because an exact value has no pattern: the network of an address could have
// the text of another rule's value.
const (
	groupMark = "=~"
	foldMark  = "=~="
)

// groupedBy returns the text before the value that counts. It contains the pattern, because a group of one level may
// also contain values that another level matches: these are two counters.
func groupedBy(level Level, values []string, group Group) string {
	mark := groupMark
	if group == (Group{}) {
		mark = foldMark
	}
	return string(shortened([]byte(sharedBy(level, values)))) + mark
}

// maxSharedSize is the length in bytes up to which a key contains a list of values in full.
const maxSharedSize = 128

// sharedBy returns the text that replaces the value in a key, for all values that a level matches. It is empty for an
// exact value and for a key without a value, which share nothing. The order of a list does not change it.
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
		return string(shortened(text))
	default:
		return ""
	}
}

// shortened replaces a long pattern by a hash, once here and not for every key. hashKey uses the same mark.
func shortened(text []byte) []byte {
	if len(text) <= maxSharedSize {
		return text
	}
	sum := sha256.Sum256(text)
	return hex.AppendEncode([]byte(`~=\#`), sum[:])
}

// hashKey replaces the text from index body on by its readable start and a hash of all of it. Escaping never produces
// the mark \#, so no other key can look like this one. The start is never cut within an escape: that would turn the
// mark into an escaped backslash.
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

// escapes maps each byte that must be escaped in a key to the byte that follows the backslash. It is 0 for all other
// bytes.
var escapes = [256]byte{'\\': '\\', '|': '|', '=': '=', '~': '~', '{': '['}

func appendEscaped(dst []byte, s string) []byte {
	plain := 0 // start of the bytes not yet copied
	for i := 0; i < len(s); i++ {
		if e := escapes[s[i]]; e != 0 {
			dst = append(dst, s[plain:i]...)
			dst = append(dst, '\\', e)
			plain = i + 1
		}
	}
	return append(dst, s[plain:]...)
}
