package report_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/net/html"

	"github.com/ratelimitd/ratelimitd/internal/authoring/simulate"
	"github.com/ratelimitd/ratelimitd/internal/authoring/simulate/report"
)

// setTexts gives every text in v, at any depth, what text returns for its place.
func setTexts(v reflect.Value, place string, text func(place string) string) {
	switch v.Kind() {
	case reflect.String:
		v.SetString(text(place))
	case reflect.Pointer:
		if !v.IsNil() {
			setTexts(v.Elem(), place, text)
		}
	case reflect.Slice:
		for i := range v.Len() {
			setTexts(v.Index(i), fmt.Sprintf("%s[%d]", place, i), text)
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if f := v.Type().Field(i); f.IsExported() && f.Type.PkgPath() != "time" {
				setTexts(v.Field(i), place+"."+f.Name, text)
			}
		}
	}
}

// everything is the example with something in every part of the page.
func everything(t *testing.T) *simulate.Report {
	t.Helper()
	r := example(t, true)
	r.Warnings, r.Unreached = []string{""}, []string{""}
	r.New.Failed, r.New.NotEnforced = 1, 1
	r.ByRule[0].New.Limits = append(r.ByRule[0].New.Limits, simulate.Limit{})
	r.ByRule = append(r.ByRule, simulate.Rule{Line: 1, Old: &simulate.RuleCount{}})
	r.ChangedRules = append(r.ChangedRules, simulate.RuleChange{Old: []string{""}}, simulate.RuleChange{New: []string{""}})
	r.Callers.Rows[0].RefusedBy, r.Callers.Rows[1].OldRefusedBy = []simulate.RefusedBy{{}}, []simulate.RefusedBy{{}}
	r.Callers.Rows[1].RefusedBy = nil
	return r
}

// structure parses a page. It returns its tags and comments in order, without the texts between them; the texts;
// and the data of the charts.
func structure(t *testing.T, page []byte) (tags []string, text, data string) {
	t.Helper()
	var all strings.Builder
	for tokens := html.NewTokenizer(bytes.NewReader(page)); ; {
		switch kind := tokens.Next(); kind {
		case html.ErrorToken:
			return tags, all.String(), data
		case html.TextToken:
			token := tokens.Token()
			if len(tags) > 0 && strings.Contains(tags[len(tags)-1], `id="data"`) {
				data += token.Data
				continue
			}
			all.WriteString(token.Data)
		default:
			tag := tokens.Token().String()
			if tag == "<wbr>" {
				continue // where a path may break, which depends on the path
			}
			all.WriteString("\n")
			tags = append(tags, tag)
		}
	}
}

// Whatever the texts of a report are, wherever they stand, the page has the same elements and attributes, and shows them.
func TestHostileTextsEverywhere(t *testing.T) {
	saved, err := json.Marshal(everything(t))
	if err != nil {
		t.Fatal(err)
	}
	type page struct {
		tags  []string
		data  string // of the charts
		shown int    // texts of the report that the page shows as they are
	}
	with := func(text string, compared bool) page {
		r := new(simulate.Report)
		if err := json.Unmarshal(saved, r); err != nil {
			t.Fatal(err)
		}
		if !compared {
			r.Old = nil
		}
		places := make(map[string]bool)
		setTexts(reflect.ValueOf(r).Elem(), "report", func(place string) string {
			places[place] = true
			return text + " at " + place + " "
		})
		var b bytes.Buffer
		if err := report.WriteHTML(&b, r); err != nil {
			t.Fatal(err)
		}
		tags, texts, data := structure(t, b.Bytes())
		p := page{tags: tags, data: data}
		for place := range places {
			if strings.Contains(texts, strings.ReplaceAll(text, "\x00", "\ufffd")+" at "+place+" ") {
				p.shown++
			}
		}
		return p
	}
	want, alone := with("harmless", true), with("harmless", false)
	if want.shown < 50 || alone.shown < 40 {
		t.Errorf("the pages show only %d and %d texts", want.shown, alone.shown)
	}
	if !json.Valid([]byte(want.data)) {
		t.Errorf("the data of the charts: %s", want.data)
	}
	for _, hostile := range []string{
		`</script><script>alert(1)</script>`, `</style><script>alert(1)</script>`, `</title><script>alert(1)</script>`, `"><img src=x onerror=alert(1)>`, `' onload='alert(1)`,
		`<!--`, `--><script>alert(1)</script>`, `<!--<script>`, `]]>`, `</td></tr></table><h1>`, `javascript:alert(1)`, `&lt;b&gt;`, `{{.}}`, "a\u2028alert(1)", `\u003cscript\u003e`, "<\x00script>",
	} {
		for compared, want := range map[bool]page{true: want, false: alone} {
			got := with(hostile, compared)
			if got.shown != want.shown {
				t.Errorf("%q: the page shows %d texts as they are, want %d", hostile, got.shown, want.shown)
			}
			if !slices.Equal(got.tags, want.tags) {
				t.Errorf("%q makes other tags:\n%s", hostile, cmp.Diff(want.tags, got.tags))
			}
			if got.data != want.data {
				t.Errorf("%q is in the data of the charts: %s", hostile, got.data)
			}
		}
	}
}
