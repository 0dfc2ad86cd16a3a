package descriptor

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// counted is the identity of a counter, which its key must distinguish from others.
type counted struct {
	Domain  string
	Entries []countedEntry
	Tag     countedTag
}

type countedEntry struct {
	Key   string
	Mark  string // mark in front of Texts, which gives their kind
	Texts []string
}

// sharing gives a rule whose levels share their counters: a pattern each, empty for none.
func sharing(levels ...Level) *Rule {
	r := &Rule{Levels: levels, shared: &sharedLevels{}}
	for _, l := range levels {
		text := ""
		if l.Value != "" {
			text = sharedBy(l, strings.Split(l.Value, ","))
		}
		r.shared.levels = append(r.shared.levels, shared{text: text})
	}
	return r
}

var sharedMarks = map[MatchKind]string{MatchWildcard: "~", MatchRegex: "~~", MatchCIDR: "~~=", MatchValues: "~="}

type countedTag struct {
	Kind      byte // the algorithm, of token buckets also the refill
	Precision uint64
	FirstHit  bool
	Scheduled bool
	Seconds   int64
	Zone      string
}

func countedOf(domain string, entries []Entry, rule *Rule, limit *Limit) counted {
	c := counted{Domain: domain, Tag: countedTag{
		Kind:     "fsltqc"[limit.Algorithm],
		FirstHit: limit.FirstHit, Scheduled: limit.Scheduled,
		Seconds: int64(limit.Window.Length() / time.Second),
	}}
	if limit.Algorithm == TokenBucket && limit.Interval {
		c.Tag.Kind = 'i'
	}
	if limit.Algorithm == SlidingWindow && limit.Precision > 1 {
		c.Tag.Precision = uint64(limit.Precision)
	}
	if limit.Window.Location != nil {
		c.Tag.Zone = limit.Window.Location.String()
	}
	for i, e := range entries {
		if rule != nil && rule.shared != nil && rule.shared.levels[i].text != "" {
			l := rule.Levels[i]
			texts, mark := []string{l.Value}, sharedMarks[l.Kind]
			switch {
			case l.Kind == MatchValues:
				texts = strings.Split(l.Value, ",")
				slices.Sort(texts)
			case l.Kind == MatchWildcard && HasWildcard(l.Key):
				texts, mark = []string{l.Text()}, "~~~"
			}
			c.Entries = append(c.Entries, countedEntry{e.Key, mark, texts})
			continue
		}
		c.Entries = append(c.Entries, countedEntry{e.Key, "=", []string{e.Value}})
	}
	return c
}

// readKey reads an identity back from its key: a key from which everything can be read belongs to one identity only. Of
// a hashed key it reads only the tag, and returns the rest as hashed.
func readKey(key string) (c counted, hashed string, err error) {
	parts, marks, isHashed, err := splitKey(key)
	if err != nil {
		return c, "", err
	}
	if c.Tag, err = readTag(parts[len(parts)-1]); err != nil {
		return c, "", err
	}
	parts, marks = parts[:len(parts)-1], marks[:len(marks)-1]
	if isHashed {
		return c, key[:strings.LastIndexByte(key, '|')], nil
	}
	c.Domain = parts[0]
	for i := 1; i < len(parts); {
		if marks[i] != '|' {
			return c, "", fmt.Errorf("%q has no key before %q", key, parts[i])
		}
		e := countedEntry{Key: parts[i]}
		for i++; i < len(parts) && marks[i] != '|'; i++ {
			if len(e.Texts) == 1 && e.Texts[0] == "" && e.Mark[0] == '~' {
				e.Texts = nil // nothing stands between two bytes of one mark
			}
			if len(e.Texts) == 0 {
				e.Mark += string(marks[i])
			}
			e.Texts = append(e.Texts, parts[i])
		}
		if !slices.Contains([]string{"=", "~", "~~", "~~~", "~~=", "~="}, e.Mark) || len(e.Texts) > 1 && e.Mark != "~=" {
			return c, "", fmt.Errorf("%q has the mark %q before %q", key, e.Mark, e.Texts)
		}
		c.Entries = append(c.Entries, e)
	}
	return c, "", nil
}

// splitKey splits a key at its bare | = ~ and undoes the escapes. marks[i] is the mark in front of parts[i]; hashed is
// true if the mark of a hash is among them.
func splitKey(key string) (parts []string, marks []byte, hashed bool, err error) {
	var part []byte
	marks = []byte{0}
	for i := 0; i < len(key); i++ {
		switch b := key[i]; b {
		case '\\':
			i++
			if i == len(key) {
				return nil, nil, false, fmt.Errorf("%q ends within an escape", key)
			}
			original := strings.IndexByte(`\|=~[#`, key[i])
			hashed = hashed || key[i] == '#'
			if original < 0 {
				return nil, nil, false, fmt.Errorf("%q has the unknown escape %q", key, key[i])
			}
			part = append(part, `\|=~{#`[original]) // a hash's mark undone is never looked at
		case '|', '=', '~':
			parts, marks, part = append(parts, string(part)), append(marks, b), nil
		case '{':
			return nil, nil, false, fmt.Errorf("%q has a bare brace", key)
		default:
			part = append(part, b)
		}
	}
	return append(parts, string(part)), marks, hashed, nil
}

func readTag(tag string) (t countedTag, err error) {
	number, zone, calendar := strings.Cut(tag, "@")
	if calendar {
		t.Zone = zone
	}
	t.Kind, number = number[0], number[1:]
	if sub, rest, ok := strings.Cut(number, "x"); ok {
		if t.Precision, err = strconv.ParseUint(sub, 10, 32); err != nil {
			return t, err
		}
		number = rest
	}
	number, t.FirstHit = strings.TrimPrefix(number, "h"), strings.HasPrefix(number, "h")
	number, t.Scheduled = strings.TrimPrefix(number, "a"), strings.HasPrefix(number, "a")
	t.Seconds, err = strconv.ParseInt(number, 10, 64)
	return t, err
}

// checkKey returns why a key is not the key of an identity, or nil if it is.
func checkKey(key string, want counted) error {
	got, hashed, err := readKey(key)
	if err != nil {
		return err
	}
	if hashed == "" {
		if diff := cmp.Diff(want, got); diff != "" {
			return fmt.Errorf("%q reads back as another identity (-want +got):\n%s", key, diff)
		}
		return nil
	}
	if got.Tag != want.Tag {
		return fmt.Errorf("%q has the tag %+v, want %+v", key, got.Tag, want.Tag)
	}
	const most = keyPrefixKept + len(`\#`) + 64
	if len(hashed) > most {
		return fmt.Errorf("a hashed key of %d bytes is longer than %d", len(hashed), most)
	}
	if sum := hashed[len(hashed)-64:]; hashed[len(hashed)-66:len(hashed)-64] != `\#` {
		return fmt.Errorf("%q does not end with a hash", hashed)
	} else if _, err := hex.DecodeString(sum); err != nil {
		return fmt.Errorf("read the hash of %q: %w", hashed, err)
	}
	return nil
}

func TestKeys(t *testing.T) {
	seoul := zone(t, "Asia/Seoul")
	entries := []Entry{{"user", "ann"}, {"path", "/a"}}
	shared := sharing(Level{Key: "user"}, Level{"path", "/*", MatchWildcard})
	kinds := sharing(Level{"a", "x=1|.", MatchRegex}, Level{"b", "10.0.0.0/8", MatchCIDR}, Level{"c", "v~,u=", MatchValues})
	for _, c := range []struct {
		name    string
		entries []Entry
		rule    *Rule
		limit   Limit
		want    string
	}{
		{"fixed window", entries, nil, Limit{Window: Window{Unit: Hour}}, "d|user=ann|path=/a|f3600"},
		{"several units", entries, nil, Limit{Window: Window{Unit: Minute, Multiplier: 60}}, "d|user=ann|path=/a|f3600"},
		{"first hit", entries, nil, Limit{FirstHit: true, Window: Window{Unit: Hour}}, "d|user=ann|path=/a|fh3600"},
		{"calendar", entries, nil, Limit{Window: Window{Unit: Day, Location: seoul}}, "d|user=ann|path=/a|f86400@Asia/Seoul"},
		{"share_threshold", entries, shared, Limit{Window: Window{Unit: Hour}}, "d|user=ann|path~/*|f3600"},
		{"other patterns", []Entry{{"a", "x"}, {"b", "10.1.2.3"}, {"c", "v~"}}, kinds, Limit{Window: Window{Unit: Hour}},
			`d|a~~x\=1\|.|b~~=10.0.0.0/8|c~=u\==v\~|f3600`},
		{"sliding window", entries, nil, Limit{Algorithm: SlidingWindow, Precision: 1, Window: Window{Unit: Hour}}, "d|user=ann|path=/a|s3600"},
		{"sub-windows", entries, nil, Limit{Algorithm: SlidingWindow, Precision: 3, Window: Window{Unit: Hour}}, "d|user=ann|path=/a|s3x3600"},
		{"sliding log", entries, nil, Limit{Algorithm: SlidingLog, Window: Window{Unit: Hour}}, "d|user=ann|path=/a|l3600"},
		{"token bucket", entries, nil, Limit{Algorithm: TokenBucket, Window: Window{Unit: Hour}}, "d|user=ann|path=/a|t3600"},
		{"interval refill", entries, nil, Limit{Algorithm: TokenBucket, Interval: true, Window: Window{Unit: Hour}}, "d|user=ann|path=/a|i3600"},
		{"concurrency", entries, nil, Limit{Algorithm: Concurrency, Requests: 7, Window: Window{Unit: Second, Multiplier: 60}}, "d|user=ann|path=/a|c60"},
		{"leaky bucket", entries, nil, Limit{Algorithm: LeakyBucket, Window: Window{Unit: Hour}}, "d|user=ann|path=/a|q3600"},
		{"escapes", []Entry{{`a|b`, `c=d`}, {`e~f`, `{g}\`}}, nil, Limit{Window: Window{Unit: Second}}, `d|a\|b=c\=d|e\~f=\[g}\\|f1`},
		{"no entries", nil, nil, Limit{Window: Window{Unit: Second}}, "d|f1"},
		{"an empty entry", []Entry{{}}, nil, Limit{Window: Window{Unit: Second}}, "d|=|f1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			key := KeyBuilder{}.AppendKey(nil, "d", c.entries, c.rule, &c.limit)
			if string(key) != c.want {
				t.Errorf("%s, want %s", key, c.want)
			}
			if err := checkKey(string(key), countedOf("d", c.entries, c.rule, &c.limit)); err != nil {
				t.Error(err)
			}
		})
	}
}

// The number of a limit, its name and its burst are not part of the identity.
func TestKeyKeepsWhatIsUsed(t *testing.T) {
	entries := []Entry{{"k", "v"}}
	for _, a := range []Algorithm{FixedWindow, SlidingWindow, SlidingLog, TokenBucket, LeakyBucket, Concurrency} {
		one := KeyBuilder{}.AppendKey(nil, "d", entries, nil, &Limit{Algorithm: a, Requests: 1, Window: Window{Unit: Day}})
		other := KeyBuilder{}.AppendKey(nil, "d", entries, nil, &Limit{Algorithm: a, Requests: 2, Name: "n", Burst: 3, Window: Window{Unit: Day}})
		if !bytes.Equal(one, other) {
			t.Errorf("%v: %s and %s differ", a, one, other)
		}
	}
}

func TestLongKeysAreHashed(t *testing.T) {
	limit := &Limit{Window: Window{Unit: Second}}
	build := func(prefix string, entries ...Entry) string {
		return string(KeyBuilder{Prefix: prefix}.AppendKey([]byte("kept "), "d", entries, nil, limit))
	}
	fits := maxKeySize - len("d|k=")
	longest := build("", Entry{"k", strings.Repeat("v", fits)})
	if want := "kept d|k=" + strings.Repeat("v", fits) + "|f1"; longest != want {
		t.Errorf("a key of %d bytes is not spelled out", maxKeySize)
	}
	hashed := build("", Entry{"k", strings.Repeat("v", fits+1)})
	if want := "kept d|k=" + strings.Repeat("v", keyPrefixKept-len("d|k=")) + `\#`; !strings.HasPrefix(hashed, want) || len(hashed) > 200 {
		t.Errorf("%q does not start with %q", hashed, want)
	}
	if prefixed := build("p:", Entry{"k", strings.Repeat("v", fits)}); !strings.HasPrefix(prefixed, "kept p:d|k=vvv") || len(prefixed) > 200 {
		t.Errorf("with a prefix, %q is not hashed", prefixed)
	}
	// Keys differ by the text that was cut off, and by the place of the cut.
	if other := build("", Entry{"k", strings.Repeat("v", fits) + "w"}); other == hashed {
		t.Error("two long values share a key")
	}
	if other := build("", Entry{"k", hashed[len("kept d|k="):strings.LastIndexByte(hashed, '|')]}); other == hashed {
		t.Error("a value that looks like a hashed key has that key")
	}
}

// The cut may fall on any text: escapes of one and of several bytes, backslashes in a row.
func TestHashedKeysAreCutBetweenEscapes(t *testing.T) {
	limit := &Limit{Window: Window{Unit: Second}}
	seen := make(map[string]string)
	for _, run := range []string{`\`, `|`, `\|`, `|\`, `{`, `\\|`, `=~`, `\#`, `#`} {
		for pad := range keyPrefixKept {
			for _, tail := range []string{"", "x"} {
				value := strings.Repeat("p", pad) + strings.Repeat(run, maxKeySize) + tail
				key := string(KeyBuilder{}.AppendKey(nil, "d", []Entry{{"k", value}}, nil, limit))
				if err := checkKey(key, countedOf("d", []Entry{{"k", value}}, nil, limit)); err != nil {
					t.Fatal(err)
				}
				if _, hashed, _ := readKey(key); hashed == "" {
					t.Fatalf("%q is not hashed", key)
				}
				if other, taken := seen[key]; taken && other != value {
					t.Fatalf("two values share the key %q", key)
				}
				seen[key] = value
			}
		}
	}
}

// FuzzKey gives two identities that are made of the same bytes, split at different places: those are the ones that a
// careless key confuses.
func FuzzKey(f *testing.F) {
	f.Add("dkvlw", uint64(0x0403020100), uint64(0x0503020101), uint16(0), uint8(0), uint8(0), uint32(60), uint32(60))
	f.Add("d|a=b_c|f60", uint64(0x0706050302), uint64(0x0605040301), uint16(0), uint8(1), uint8(1), uint32(1), uint32(1))
	f.Add(`d\|\=~{[x}`, uint64(0x0706050302), uint64(0x0605040301), uint16(500), uint8(0x12), uint8(0x21), uint32(5), uint32(6))
	f.Add(`\\\\\\\\\\\\\\#`, uint64(0x0101010101), uint64(0x0101010102), uint16(60), uint8(4), uint8(4), uint32(5), uint32(5))
	// a star in a key
	f.Add("00*0", uint64(4311810264), uint64(4311810306), uint16(220), uint8('o'), uint8('W'), uint32(0), uint32(12))
	f.Add(strings.Repeat("|", 600), uint64(0x2020202020), uint64(0x2121212121), uint16(0), uint8(0), uint8(0x80), uint32(5), uint32(5))
	f.Fuzz(func(t *testing.T, text string, cuts1, cuts2 uint64, pad uint16, how1, how2 uint8, seconds1, seconds2 uint32) {
		text = strings.Repeat("p", int(pad%1024)) + text
		key1, is1 := fuzzedKey(t, text, cuts1, how1, seconds1)
		key2, is2 := fuzzedKey(t, text, cuts2, how2, seconds2)
		if same := cmp.Equal(is1, is2); same != (key1 == key2) {
			t.Errorf("keys %q and %q of identities that are equal: %v\n%+v\n%+v", key1, key2, same, is1, is2)
		}
	})
}

// fuzzedKey cuts a domain and two entries from text, and chooses a limit and shared patterns by the bits of how.
func fuzzedKey(t *testing.T, text string, cuts uint64, how uint8, seconds uint32) (string, counted) {
	t.Helper()
	var parts [5]string
	for i := range parts[1:] {
		at := min(int(cuts&0xffff), len(text))
		parts[i], text, cuts = text[:at], text[at:], cuts>>16|cuts<<48
	}
	parts[4] = text
	entries := []Entry{{parts[1], parts[2]}, {parts[3], parts[4]}}
	if how&0x80 != 0 {
		entries = entries[:1]
	}
	var rule *Rule
	if how&0x40 != 0 {
		kinds := [4]MatchKind{MatchWildcard, MatchRegex, MatchCIDR, MatchValues}
		// A pattern is never empty, and no value of a list is. These lists are too short to be hashed.
		pattern := strings.TrimRight("p"+entries[0].Value[:min(len(entries[0].Value), 20)], ",")
		rule = sharing(Level{entries[0].Key, strings.ReplaceAll(pattern, ",,", ",v,"), kinds[seconds%4]}, Level{})
	}
	limit := &Limit{
		Algorithm: Algorithm(how % uint8(len(AlgorithmNames))),
		Interval:  how&0x20 != 0,
		FirstHit:  how&0x10 != 0,
		Precision: seconds % 5,
		Window:    Window{Unit: Second, Multiplier: seconds},
	}
	prefix := "prefix:"
	key := KeyBuilder{Prefix: prefix}.AppendKey(nil, parts[0], entries, rule, limit)
	is := countedOf(parts[0], entries, rule, limit)
	body, ok := strings.CutPrefix(string(key), prefix)
	if !ok {
		t.Fatalf("%q has not its prefix", key)
	}
	if err := checkKey(body, is); err != nil {
		t.Fatal(err)
	}
	return string(key), is
}

// Small pieces of the bytes that mean something in a key, so that unlikely neighbours are likely.
func TestKeysOfDifferentIdentitiesDiffer(t *testing.T) {
	piece := rapid.StringOfN(rapid.SampledFrom([]rune(`\|=~{[#f1a`)), 0, 3, -1)
	rapid.Check(t, func(t *rapid.T) {
		draw := func(label string) (string, counted) {
			domain := piece.Draw(t, label+" domain")
			entries := make([]Entry, rapid.IntRange(0, 3).Draw(t, label+" length"))
			var levels []Level
			for i := range entries {
				entries[i] = Entry{piece.Draw(t, "key"), piece.Draw(t, "value")}
				levels = append(levels, Level{
					Value: rapid.SampledFrom([]string{"", "", "*", "a*", "=", "~", "~=", "=a", "a,=", "=,a", "a"}).Draw(t, "pattern"),
					Kind:  rapid.SampledFrom([]MatchKind{MatchWildcard, MatchRegex, MatchCIDR, MatchValues}).Draw(t, "kind"),
				})
			}
			rule := sharing(levels...)
			limit := &Limit{Algorithm: Algorithm(rapid.IntRange(0, 4).Draw(t, "algorithm")), Window: Window{Unit: Second}}
			return string(KeyBuilder{}.AppendKey(nil, domain, entries, rule, limit)), countedOf(domain, entries, rule, limit)
		}
		key1, is1 := draw("one")
		key2, is2 := draw("other")
		for _, x := range []struct {
			key string
			is  counted
		}{{key1, is1}, {key2, is2}} {
			if err := checkKey(x.key, x.is); err != nil {
				t.Fatal(err)
			}
		}
		if same := cmp.Equal(is1, is2); same != (key1 == key2) {
			t.Fatalf("keys %q and %q of identities that are equal: %v", key1, key2, same)
		}
	})
}

// A long list is hashed once for all keys; its order makes no difference, and every value of it does.
func TestKeyOfALongList(t *testing.T) {
	limit := &Limit{Window: Window{Unit: Second}}
	key := func(values ...string) string {
		rule := &Rule{shared: &sharedLevels{levels: []shared{{text: sharedBy(Level{Kind: MatchValues}, values)}}}}
		return string(KeyBuilder{}.AppendKey(nil, "d", []Entry{{"k", values[0]}}, rule, limit))
	}
	var values []string
	for i := range 1000 {
		values = append(values, fmt.Sprintf("value-%03d", i))
	}
	whole := key(values...)
	if len(whole) > 100 || !strings.HasPrefix(whole, `d|k~=\#`) {
		t.Errorf("the key is %s", whole)
	}
	if less := key(values[1:]...); less == whole {
		t.Error("a list without its first value has the same key")
	}
	slices.Reverse(values)
	if other := key(values...); other != whole {
		t.Errorf("in another order the key is %s, not %s", other, whole)
	}
}

func TestKeyAllocatesNothing(t *testing.T) {
	entries := []Entry{{"user", "a|b"}, {"path", strings.Repeat("x", 2*maxKeySize)}}
	limit := &Limit{Window: Window{Unit: Day}}
	buf := make([]byte, 0, 4*maxKeySize)
	if allocs := testing.AllocsPerRun(1000, func() {
		KeyBuilder{Prefix: "p"}.AppendKey(buf, "d", entries, nil, limit)
		KeyBuilder{Prefix: "p"}.AppendKey(buf, "d", entries[:1], nil, limit)
	}); allocs != 0 {
		t.Errorf("two keys allocate %v times", allocs)
	}
}

func BenchmarkAppendKey(b *testing.B) {
	limit := &Limit{Window: Window{Unit: Minute}}
	for _, c := range []struct {
		name    string
		entries []Entry
	}{
		{"two-entries", []Entry{{"tenant", "tenant-000042"}, {"path", "/api/v1/route-000042"}}},
		{"escaped", []Entry{{"tenant", "a|b=c~d{e}"}, {"path", "/api?a=b"}}},
		{"hashed", []Entry{{"tenant", "tenant-000042"}, {"path", strings.Repeat("/long", 200)}}},
	} {
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			buf := make([]byte, 0, 4*maxKeySize)
			for b.Loop() {
				KeyBuilder{}.AppendKey(buf, "domain", c.entries, nil, limit)
			}
		})
	}
}

func BenchmarkAppendKeyOfRule(b *testing.B) {
	for name, tenant := range map[string]NodeSpec{
		"plain":  {Key: "tenant"},
		"shared": {Key: "tenant", Value: "tenant-*", ShareThreshold: true},
		"folded": {Key: "tenant", FoldCase: true},
	} {
		tenant.Children = []NodeSpec{{Key: "path", Rule: &Rule{Limits: []Limit{{Requests: 5, Window: Window{Unit: Minute}}}}}}
		tree, err := Compile([]DomainSpec{{Name: "domain", Children: []NodeSpec{tenant}}}, Options{})
		if err != nil {
			b.Fatal(err)
		}
		entries := []Entry{{"tenant", "tenant-000042"}, {"path", "/api/v1/route-000042"}}
		rule := tree.Domain("domain").Match(entries)
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			buf := make([]byte, 0, 4*maxKeySize)
			for b.Loop() {
				KeyBuilder{}.AppendKey(buf, "domain", rule.CountedEntries(entries), rule, &rule.Limits[0])
			}
		})
	}
}

// A limit has one tag: in keys, and for whoever asks for it, even with other numbers.
func TestTagTellsLimitsApart(t *testing.T) {
	minute := Limit{Name: "enforced", Requests: 100, Window: Window{Unit: Minute}}
	trial := minute
	trial.Name, trial.Enforcement = "trial", EnforcedInShadow
	tree, err := Compile([]DomainSpec{{Name: "d", Children: []NodeSpec{{Key: "k", Rule: &Rule{Limits: []Limit{minute, trial}}}}}}, Options{})
	if err != nil {
		t.Fatal(err)
	}
	r := tree.Rules[0]
	if r.Tag(&r.Limits[0]) == r.Tag(&r.Limits[1]) {
		t.Errorf("both limits are %q", r.Tag(&r.Limits[0]))
	}
	for i := range r.Limits {
		other := r.Limits[i]
		other.Requests = 7
		key := string(KeyBuilder{}.AppendKey(nil, "d", []Entry{{"k", "v"}}, r, &r.Limits[i]))
		if tag := r.Tag(&other); tag != r.Tag(&r.Limits[i]) || !strings.HasSuffix(key, "|"+tag) {
			t.Errorf("%s: the tag %q of other numbers, and the key %q", other.Name, tag, key)
		}
	}
}
