package yamlform

import (
	"encoding/json"
	"reflect"
	"testing"
)

// YAML that was written from JSON has the same values.
func TestFromJSON(t *testing.T) {
	for _, text := range []string{
		`{"b": 1, "a": {"list": [1, 2.5, -1e21, true, false, null, [], {}], "empty": ""}}`,
		`["yes", "null", "~", "1", "0x1", "1e3", "2026-03-10", " space ", "a: b", "# no comment", "- item", "<<", "=", "multi\nline\n", "tab\there", "\u2028", "\"'", "", "é", "*a", "&a", "!t", "%"]`,
		`"text"`, `12345678901234567890`, `null`, `[]`, `{}`, `{"1": 2, "true": 3}`,
	} {
		var want any
		if err := json.Unmarshal([]byte(text), &want); err != nil {
			t.Fatal(err)
		}
		out, err := FromJSON([]byte(text))
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		values, err := Decode(out)
		if err != nil || len(values) != 1 {
			t.Errorf("%s becomes\n%s\nwhich is %d documents, %v", text, out, len(values), err)
			continue
		}
		again, err := json.Marshal(values[0])
		if err != nil {
			t.Errorf("%s becomes\n%s\nwhich JSON cannot hold: %v", text, out, err)
			continue
		}
		var got any
		if err := json.Unmarshal(again, &got); err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%s becomes\n%s\nwhich is %s", text, out, again)
		}
	}
	for _, text := range []string{"", "{", "[1", `{"a"`, "]", "nothing"} {
		if out, err := FromJSON([]byte(text)); err == nil {
			t.Errorf("%q becomes %q", text, out)
		}
	}
	if out, _ := FromJSON([]byte(`{"z": 1, "a": [{"b": 2}]}`)); string(out) != "z: 1\na:\n    - b: 2\n" {
		t.Errorf("the order is another one:\n%s", out)
	}
}
