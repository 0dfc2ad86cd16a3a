package yamlform

import (
	"fmt"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
)

// box is a map of the language of these tests: it has a key of every kind, and boxes within boxes.
type box struct {
	text    string
	texts   []string
	flag    bool
	number  uint64
	choice  int
	zone    *time.Location
	any     map[string]any
	boxes   []box
	version string
}

var boxForm *Form[box]

func init() {
	boxForm = NewForm("box", "a box", []Field[box]{
		{Key: Key{Name: "text", Type: Type{Kind: Text}, Doc: "a text"}, Read: func(b *box, v Value) { b.text, _ = v.Text() }},
		{Key: Key{Name: "texts", Type: Type{Kind: TextOrList}, Doc: "texts"}, Read: func(b *box, v Value) { b.texts = v.Texts() }},
		{Key: Key{Name: "flag", Type: Type{Kind: Flag}, Doc: "a flag"}, Read: func(b *box, v Value) { b.flag = v.Flag() }},
		{Key: Key{Name: "number", Type: Type{Kind: Number, Least: 2, Most: 5000, Word: "all"}, Doc: "a number"}, Read: func(b *box, v Value) {
			if b.number = math.MaxUint64; !v.IsWord() {
				b.number, _ = v.Number()
			}
		}},
		{Key: Key{Name: "choice", Type: Type{Kind: Choice, Names: []string{"", "one", "two"}, AnyCase: true}, Doc: "a choice"}, Read: func(b *box, v Value) { b.choice, _ = v.Choice() }},
		{Key: Key{Name: "zone", Type: Type{Kind: Text}, Doc: "a time zone"}, Read: func(b *box, v Value) { b.zone, _ = v.Zone() }},
		{Key: Key{Name: "any", Type: Type{Kind: AnyMap}, Doc: "anything"}, Read: func(b *box, v Value) { b.any = v.AnyMap() }},
		{Key: Key{Name: "boxes", Type: MapsOf("box"), Doc: "boxes within"}, Read: func(b *box, v Value) {
			for item := range v.Items() {
				var inner box
				if read, _ := Read(item, boxForm, &inner); read {
					b.boxes = append(b.boxes, inner)
				}
			}
		}},
		{Key: Key{Name: "version", Type: Type{Kind: Text, Floats: true}, Doc: "a text that may look like a number"}, Read: func(b *box, v Value) { b.version, _ = v.Text() }},
	}...)
}

var lidForm = NewForm("lid", "a lid", Field[box]{Key: Key{Name: "handle", Type: Type{Kind: Text}}, Read: func(b *box, v Value) { b.text, _ = v.Text() }})

func readBox(text string, o Options) (box, *Reader) {
	o.Places = []*Map{&boxForm.Map, &lidForm.Map}
	r := NewReader("f", o)
	var b box
	for _, doc := range r.Parse([]byte(text)) {
		Read(doc, boxForm, &b)
	}
	return b, r
}

func TestRead(t *testing.T) {
	seoul, err := time.LoadLocation("Asia/Seoul")
	if err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]box{
		"text: a":                   {text: "a"},
		"text: 7":                   {text: "7"},
		"text: true":                {text: "true"},
		"text: 2026-03-01":          {text: "2026-03-01"},
		"text: ~":                   {},
		"text: !mine a":             {text: "a"},
		"text: !!binary w6k=":       {text: "é"},
		"version: 1.10":             {version: "1.10"},
		"texts: a":                  {texts: []string{"a"}},
		"texts: [a, 7]":             {texts: []string{"a", "7"}},
		"flag: true":                {flag: true},
		"flag: yes":                 {flag: true},
		"flag: Off":                 {},
		"number: 2":                 {number: 2},
		"number: 0x10":              {number: 16},
		"number: 010":               {number: 8},
		"number: 0o10":              {number: 8},
		"number: 5_000":             {number: 5000},
		"number: all":               {number: math.MaxUint64},
		"choice: one":               {choice: 1},
		"choice: Two":               {choice: 2},
		"zone: Asia/Seoul":          {zone: seoul},
		"zone: UTC":                 {zone: time.UTC},
		"boxes: {text: a}":          {boxes: []box{{text: "a"}}},
		"boxes: [{text: a}, {}]":    {boxes: []box{{text: "a"}, {}}},
		"---\n---\ntext: a\n---\n~": {text: "a"},

		// Anchors, merge keys and nulls.
		"boxes: [&a {text: a, flag: yes}, *a]":                                                {boxes: []box{{text: "a", flag: true}, {text: "a", flag: true}}},
		"boxes: [&a {text: a, flag: yes}, {<<: *a, text: b}]":                                 {boxes: []box{{text: "a", flag: true}, {text: "b", flag: true}}},
		"<<: [{text: a}, {text: b, flag: yes}]":                                               {text: "a", flag: true},
		"<<: {text: a, <<: {text: b, version: c}}":                                            {text: "a", version: "c"},
		"text: ~\n<<: {text: a}":                                                              {},
		"boxes: [&a {text: &t a, texts: &l [x, *t]}, {texts: *l}, {? &k text : b}, {*k : c}]": {boxes: []box{{text: "a", texts: []string{"x", "a"}}, {texts: []string{"x", "a"}}, {text: "b"}, {text: "c"}}},

		"any: {a: 1, b: [x, 2.5, ~, no], c: {d: 18446744073709551615}, <<: {a: 2, e: 'no'}}": {any: map[string]any{
			"a": 1, "b": []any{"x", 2.5, nil, false}, "c": map[string]any{"d": 18446744073709551615.0}, "e": "no"}},
	} {
		got, r := readBox(text, Options{})
		if errs := r.Errors(); len(errs) > 0 || !reflect.DeepEqual(got, want) {
			t.Errorf("%s\ngives %+v %v\nwant  %+v", text, got, errs, want)
		}
	}
}

func TestReadErrors(t *testing.T) {
	bomb := "any: {a: &a [x, x, x, x, x, x, x, x, x, x]"
	for c := 'b'; c < 'j'; c++ {
		bomb += fmt.Sprintf(", %c: &%c [%s]", c, c, strings.TrimSuffix(strings.Repeat(fmt.Sprintf("*%c,", c-1), 10), ","))
	}
	merges := strings.Repeat("{<<: ", MaxLevels+2) + "{}" + strings.Repeat("}", MaxLevels+2)
	for _, c := range []struct {
		text string
		want []string // prefixes of all errors
	}{
		{"[]", []string{"f:1:1: a box must be a map of keys (`text`, `texts`, `flag`,"}},
		{"txt: a", []string{"f:1:1: unknown key `txt`: did you mean `text`?"}},
		{"handle: a", []string{"f:1:1: `handle` does not belong in a box: it is a key of a lid"}},
		{"handel: a", []string{"f:1:1: unknown key `handel`: did you mean `handle`, a key of a lid?"}},
		{"colour: a", []string{"f:1:1: unknown key `colour`: a box has `text`, `texts`,"}},
		{"[a]: b", []string{"f:1:1: a key must be text, not a list: a box has `text`,"}},
		{"text: a\nflag: no\ntext: b", []string{"f:3:1: key `text` twice in one map: the first is on line 1"}},
		{"text: 1.10", []string{"f:1:7: `text` must be text, not the number 1.10: write it in quotes, \"1.10\""}},
		{"text: {}\ntexts: [a, [], ~]", []string{"f:1:7: `text` must be text, not a map", "f:2:12: `texts` must be text, not a list", "f:2:16: `texts` must be text, not nothing"}},
		{"text: !!binary gA==", []string{"f:1:7: `text` must be text, not a value tagged !!binary"}},
		{"flag: 1\n", []string{"f:1:7: `flag` must be true or false, not the number 1"}},
		{"number: 1", []string{"f:1:9: `number` must be a whole number from 2 to 5000, or `all`, not the number 1"}},
		{"number: 5001", []string{"f:1:9: `number` must be a whole number from 2 to 5000"}},
		{"number: 36893488147419103232", []string{"f:1:9: `number` must be a whole number"}},
		{"number: -3", []string{"f:1:9: `number` must be a whole number from 2 to 5000, or `all`, not the number -3"}},
		{"number: 2.0", []string{"f:1:9: `number` must be a whole number"}},
		{"number: '3'", []string{"f:1:9: `number` must be a whole number from 2 to 5000, or `all`, not the text \"3\""}},
		{"choice: tow", []string{"f:1:9: unknown `choice` \"tow\": did you mean `two`?"}},
		{"choice: ''", []string{"f:1:9: unknown `choice` \"\": write `one` or `two`"}},
		{"zone: Mars/Base", []string{"f:1:7: unknown time zone \"Mars/Base\": `zone` takes a name of the IANA database"}},
		{"zone: asia/seoul", []string{"f:1:7: unknown time zone \"asia/seoul\": did you mean `Asia/Seoul`?"}},
		{"zone: Local", []string{"f:1:7: unknown time zone \"Local\""}},
		{"any: []", []string{"f:1:6: `any` must be a map, not a list"}},
		{"any: {a: .inf, a: 1, [b]: 2, c: !!binary gA==}", []string{"f:1:10: `any` may hold text, finite numbers,", "f:1:16: key `a` twice in one map: the first is on line 1", "f:1:22: a key in `any` must be text, not a list", "f:1:33: `any` may hold"}},
		{"any: " + strings.Repeat("{a: ", MaxLevels+1) + "1" + strings.Repeat("}", MaxLevels+1), []string{fmt.Sprintf("f:1:%d: `any` has more than %d levels", 6+4*MaxLevels, MaxLevels)}},
		{"<<: 3", []string{"f:1:5: `<<` merges a map or a list of maps, not the number 3"}},
		{"<<: [x]", []string{"f:1:6: `<<` merges maps, not the text \"x\""}},
		{"<<: {}\n<<: {}", []string{"f:2:1: key `<<` twice in one map"}},
		{"<<: " + merges, []string{fmt.Sprintf("f:1:%d: more than %d merge keys within each other", 5+5*MaxLevels, MaxLevels)}},
		{"boxes: &b [{boxes: *b}]", []string{"f:1:20: the alias *b stands within its own anchor: it would never end"}},
		{"boxes: [&b {text: a, <<: *b}]", []string{"f:1:26: the alias *b stands within its own anchor"}},
		{"boxes: [&b {txt: a}, *b, *b]", []string{"f:1:13: unknown key `txt`"}},
		{bomb + "}", []string{"f:1:"}},
		{"text: {}\n---\ntxt: a\n---\n{", []string{"f:1:7", "f:3:1", "f:5:1: not YAML"}},
	} {
		start := time.Now()
		_, r := readBox(c.text, Options{})
		errs := r.Errors()
		ok := len(errs) == len(c.want)
		for i := range min(len(errs), len(c.want)) {
			ok = ok && strings.HasPrefix(errs[i].Error(), c.want[i])
		}
		if !ok {
			t.Errorf("%s\ngives %q\nwant  %q", c.text, errs, c.want)
		}
		if took := time.Since(start); took > 10*time.Second {
			t.Errorf("%s took %v", c.text, took)
		}
	}
}

func TestTooManyErrors(t *testing.T) {
	_, r := readBox("boxes:\n"+strings.Repeat("  - {txt: a}\n", MaxErrors+7), Options{})
	errs := r.Errors()
	if len(errs) != MaxErrors+1 || errs[MaxErrors].Msg != "and 7 more errors: mend the ones above first" {
		t.Errorf("%d errors, the last %v", len(errs), errs[len(errs)-1])
	}
}

// A lenient reader accepts as much as it can, and warns.
func TestLenient(t *testing.T) {
	const text = `text: a
version: 1
handle: x
any: {a: 1, a: 2, b: .nan}
version: 2
any: {c: 3}
...
rest
`
	strict, r := readBox(text, Options{Ignored: []string{"handle"}})
	if len(r.Errors()) == 0 {
		t.Errorf("a strict reader takes it: %+v", strict)
	}
	got, r := readBox(text, Options{Lenient: true, Ignored: []string{"handle"}})
	want := box{text: "a", version: "2", any: map[string]any{"a": 2, "b": nil, "c": 3}}
	if errs := r.Errors(); len(errs) > 0 || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v %v\nwant %+v", got, errs, want)
	}
	warnings := []string{
		"f:3:1: `handle` does not belong in a box: it is a key of a lid: it is ignored; envoyproxy/ratelimit reads it in the same way",
		"f:4:13: key `a` twice in one map: this one counts, not the first, on line 4; envoyproxy/ratelimit reads it in the same way",
		"f:4:22: `any` may hold finite numbers, not .nan: it is left out; envoyproxy/ratelimit keeps it, and clients cannot read its answers",
		"f:5:1: key `version` twice in one map: this one counts, not the first, on line 2; envoyproxy/ratelimit reads it in the same way",
		"f:6:1: key `any` twice in one map: this one counts, not the first, on line 4; envoyproxy/ratelimit reads it in the same way",
		"f:7:1: text after the end of the document: it is left out; envoyproxy/ratelimit reads it in the same way",
	}
	var noted []string
	for _, w := range r.Warnings() {
		noted = append(noted, w.Error())
	}
	if !slices.Equal(noted, warnings) {
		t.Errorf("warnings\n%s\nwant\n%s", strings.Join(noted, "\n"), strings.Join(warnings, "\n"))
	}
}

func TestHint(t *testing.T) {
	_, r := readBox("a=b:", Options{Hint: func(key string, v Value) string {
		if v.IsNull() {
			return "is " + key + " a text?"
		}
		return ""
	}})
	if errs := r.Errors(); len(errs) != 1 || errs[0].Error() != "f:1:1: is a=b a text?" {
		t.Error(errs)
	}
}

// Plain values read as a file does; errors name their path.
func TestPlain(t *testing.T) {
	r := NewReader("res", Options{})
	var got box
	top := r.Plain(Pairs{
		{Key: "text", Value: "yes"}, {Key: "number", Value: uint32(7)}, {Key: "flag", Value: true}, {Key: "zone", Value: nil},
		{Key: "any", Value: Pairs{{Key: "a", Value: 7.0}, {Key: "b", Value: 0.5}, {Key: "c", Value: "no"}, {Key: "d", Value: []any{false}}}},
		{Key: "boxes", Value: []any{Pairs{{Key: "text", Value: "b"}}, Pairs{{Key: "number", Value: math.Inf(1)}, {Key: "txt", Value: 1, Path: "over.there"}}}},
	})
	Read(top, boxForm, &got)
	want := box{text: "yes", number: 7, flag: true, any: map[string]any{"a": 7, "b": 0.5, "c": "no", "d": []any{false}}, boxes: []box{{text: "b"}, {}}}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%+v\nwant %+v", got, want)
	}
	i := 0
	for item := range r.PlainItems(Pair{Key: "more"}, []any{"a", Pairs{{Key: "x", Value: []any{"y", "z"}}}}) {
		if i == 1 {
			for _, v := range item.Keys() {
				for inner := range v.Items() {
					inner.Errorf("%s", inner.Written())
				}
			}
		}
		i++
	}
	var errs []string
	for _, e := range r.Errors() {
		errs = append(errs, e.Error())
	}
	wrong := []string{
		"res: boxes[1].number: `number` must be a whole number from 2 to 5000, or `all`, not the number .inf",
		"res: over.there: unknown key `txt`: did you mean `text`?",
		"res: more[1].x[0]: y", "res: more[1].x[1]: z",
	}
	if !slices.Equal(errs, wrong) {
		t.Errorf("errors %q\nwant   %q", errs, wrong)
	}
}

func TestPairsAndKeys(t *testing.T) {
	r := NewReader("f", Options{})
	v := r.Parse([]byte("a: 1\nb: ~\n<<: [{a: 2, c: 3}, {c: 4, d: 5}]\na: 6\n"))[0]
	var pairs []string
	for k, value := range v.Pairs() {
		pairs = append(pairs, k.Written()+"="+value.Written())
	}
	if want := []string{"a=1", "b=~", "a=6", "c=3", "d=5"}; !slices.Equal(pairs, want) {
		t.Errorf("pairs %q, want %q", pairs, want)
	}
	keys := v.Keys()
	if len(keys) != 3 || keys["a"].Written() != "1" || keys["c"].Written() != "3" || keys["d"].Position().Line != 3 || keys["b"].Given() {
		t.Errorf("%+v", keys)
	}
	for range v.Pairs() {
		break
	}
	for range keys["a"].Pairs() {
		t.Error("a scalar has keys")
	}
}

func TestDecode(t *testing.T) {
	values, err := Decode([]byte("a: [1, b]\n---\nc\n"))
	if want := []any{map[string]any{"a": []any{1, "b"}}, "c"}; err != nil || !reflect.DeepEqual(values, want) {
		t.Errorf("%v %v", values, err)
	}
	if text, err := Encode(values[0]); err != nil || string(text) != "a:\n    - 1\n    - b\n" {
		t.Errorf("%s %v", text, err)
	}
	if _, err := Decode([]byte("{")); err == nil {
		t.Error("no error")
	}
}

// No text panics or takes long, and every error has a position in the file.
func FuzzRead(f *testing.F) {
	for _, s := range []string{
		"text: a\ntexts: [a, *b]", "boxes: &b [{boxes: *b, <<: [*b]}]", "any: {a: &a {<<: *a}}", "<<: [{text: a}, {<<: {flag: off}}]", "text: !!binary gA==\nnumber: 0o8",
		"? [a]\n: b\n", "&a *a : b", "text: a\ntext: b\nany: {x: 1, x: {y: 2}}", "--- &x\nboxes: [*x]\n...\nrest", "number: !!float 1\nflag: !!bool maybe\nzone: !!int UTC",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		for _, lenient := range []bool{false, true} {
			stuck := time.AfterFunc(30*time.Second, func() { panic(fmt.Sprintf("not done after 30 s: %q", data)) })
			_, r := readBox(string(data), Options{Lenient: lenient, Ignored: []string{"handle"}})
			for _, e := range slices.Concat(r.Errors(), r.Warnings()) {
				if e.File != "f" || e.Line < 1 || e.Col < 1 || e.Msg == "" {
					t.Errorf("%+v", e)
				}
			}
			stuck.Stop()
		}
		r := NewReader("f", Options{})
		for _, doc := range r.Parse(data) {
			doc.Keys()
		}
	})
}
