package descriptor

import (
	"fmt"
	"regexp"
	"regexp/syntax"
	"strings"
	"testing"

	"pgregory.net/rapid"

	_ "github.com/ratelimitd/ratelimitd/internal/testkit/rapidtest"
)

var captures = []string{
	"(a)", "(a|ab)(c|bcd)(d*)", "(a*)*", "(a*)+b?", "(?:(a)|b)*", "(?:(a)|(b))*c?", "((a)|b)*?a*", "a(b)?c*", "(?U)(a+)(b*)", "(a+?)(a*)", "(.*)(b.*)", "(?s)(.*?)b(.*)",
	`/(?:v\d/)?tenants/([^/]+)(/.*)?`, `(?:.*,)?([0-9.]+)`, "^(a|b)+$", `\b(a+)\b.*`, `(a\B)(.*)`, "(?m)(^a$\n?)*", "(é+)|(K)", `([^\x00-\x7f]*).?`, "(?i)(k+)b*", "()a", "(a{0,3}){1,2}", "(x*|y)*",
	"(?:a|(b)c|(bc))(c?)", "(a(b(c)?)?)*", `\A(a)\z`, "(|a)+", "(|a)*b", "(a|b){3,5}", "(.)(.)?(.)?",
}

// sameText compares the result of a capture with package regexp.
func sameText(t rapid.TB, text string, number int, fold bool, value string) {
	t.Helper()
	c, err := newCapture(text, number, fold)
	if err != nil {
		return
	}
	parsed, err := parseRegex(text, fold)
	if err != nil {
		t.Fatal(err)
	}
	re, err := compileRegex(text, parsed, fold)
	if err != nil {
		t.Fatal(err)
	}
	want := ""
	if at := re.FindStringSubmatchIndex(value); at != nil && at[2*number] >= 0 {
		want = value[at[2*number]:at[2*number+1]]
	}
	if got := c.of(value); got != want {
		t.Fatalf("group %d of %s in %q is %q, want %q (fold: %t)", number, text, value, got, want, fold)
	}
}

func TestCapturesAgreeWithRegexp(t *testing.T) {
	letters := rapid.SliceOfN(rapid.SampledFrom([]string{"a", "b", "c", "d", "A", "/", ",", "1", ".", "\n", " ", "é", "K", "\u212a", "\xff", "\xe2\x82", "\xac", "/tenants/", "v1"}), 0, 9)
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.SampledFrom(captures).Draw(t, "expression")
		parsed, err := syntax.Parse(text, syntax.Perl)
		if err != nil {
			t.Fatal(err)
		}
		sameText(t, text, rapid.IntRange(1, parsed.MaxCap()).Draw(t, "group"), rapid.Bool().Draw(t, "fold"), strings.Join(letters.Draw(t, "value"), ""))
	})
}

func FuzzCapture(f *testing.F) {
	for _, text := range captures {
		for _, value := range []string{"", "ab", "abcd", "a\nb", "K\u212aé", "/v1/tenants/é/x", "\xff", "x\xe2\x82", "aababba", "1.2,3.4"} {
			f.Add(text, value, uint8(1))
		}
	}
	f.Fuzz(func(t *testing.T, text, value string, number uint8) {
		parsed, err := syntax.Parse(text, syntax.Perl)
		if err != nil || len(text) > 100 || len(value) > 200 || number == 0 || int(number) > parsed.MaxCap() {
			return
		}
		if _, err := regexp.Compile(text); err == nil && text != "" {
			sameText(t, text, int(number), number%2 == 0, value)
		}
	})
}

// The whole value counts, however long it is: a client cannot choose its counter with characters far behind the group
// or far before it.
func TestCaptureOfALongValue(t *testing.T) {
	const hops = `(?:.*,)?([0-9.]+)`
	d := domainOf(t, Options{PatternBytes: 64}, NodeSpec{Key: "forwarded", Kind: MatchRegex, Value: hops, Group: Group{Capture: 1}})
	for _, c := range []struct{ value, want string }{
		{"10.9.9.9", "10.9.9.9"},
		{"1.1.1.1," + strings.Repeat("x", 5000) + ",10.9.9.9", "10.9.9.9"},
		{"2.2.2.2," + strings.Repeat("x", 5000) + ",10.9.9.9", "10.9.9.9"},
		{"2.2.2.2," + strings.Repeat("x", 5000), ""}, // starts like a value that matches, and does not match
		{"3.3.3.3," + strings.Repeat("x", 5000), ""},
	} {
		if got := strings.TrimPrefix(keyOf(d, "forwarded", c.value), "forwarded~~"+hops+"=~"); got != c.want {
			t.Errorf("%.10s... of %d bytes counts as %q, want %q", c.value, len(c.value), got, c.want)
		}
	}
}

// An expression that would make matching slow is rejected.
func TestCapturesAreBounded(t *testing.T) {
	for text, fits := range map[string]bool{
		"/([^/]{1,200})/.*": true, "([a-z]{8}-[a-z]{4}).*": true, "(a|b).{1,30}": true, strings.Repeat("(a)", 300): false,
		"(.{1,100})/.*": true, "(b)[ab]{14}a[ab]*": false, "([a-z]{1,500})": false, `(\pL{3}\d{1,300})x`: false,
	} {
		if _, err := CheckCapture(text, 1, false); (err == nil) != fits {
			t.Errorf("%s: %v", text, err)
		}
	}
}

func BenchmarkCapture(b *testing.B) {
	for _, c := range []struct{ text, value string }{
		{`/(?:v\d/)?tenants/([^/?]+)([/?].*)?`, "/v1/tenants/acme/orders/1234567"},
		{`/([^/]{1,100})/.*`, "/tenants/acme/orders/1234567"},
		{`(?:.*,)?([0-9.]+)`, strings.Repeat("10.1.2.3,", 7000) + "10.1.2.3"},
		{`(?:ab|cd|ef|gh|ij|kl|mn|op|qr|st|uv|wx|yz|01|23|45|67|89)*(99)`, strings.Repeat("89", 30_000) + "99"},
	} {
		x, err := newCapture(c.text, 1, false)
		if err != nil {
			b.Fatal(err)
		}
		b.Run(fmt.Sprintf("%s/%d", c.text, len(c.value)), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				x.of(c.value)
			}
			b.ReportMetric(float64(len(x.sets)), "states")
		})
	}
}
