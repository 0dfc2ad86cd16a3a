package entries

import (
	"errors"
	"fmt"
	"strings"

	"github.com/ratelimitd/ratelimitd/internal/config/yamlform"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// Type is the type of a key whose value Read reads.
var Type = yamlform.Type{Kind: yamlform.Anything, Form: "`key=value,key=value`, or a list of maps"}

// Parse parses the short form of a descriptor, key=value,key2=value2. A value may hold anything; a comma or a
// backslash in it is written with a backslash before it. Blanks before a key do not count.
func Parse(s string) ([]descriptor.Entry, error) {
	var all []descriptor.Entry
	var piece strings.Builder
	end := func() error {
		key, value, found := strings.Cut(strings.TrimLeft(piece.String(), " "), "=")
		piece.Reset()
		switch {
		case key == "" && !found:
			return errors.New("an entry is missing: write `key=value`, with commas between entries")
		case key == "":
			return fmt.Errorf("a value without a key: %s", yamlform.Quote("="+value))
		case !found:
			return fmt.Errorf("%s has no value: write `%s=value`, or `%s=` for an empty one", yamlform.Quote(key),
				yamlform.Clip(key), yamlform.Clip(key))
		}
		all = append(all, descriptor.Entry{Key: key, Value: value})
		return nil
	}
	for i := 0; i < len(s); i++ {
		switch {
		case s[i] == '\\' && i+1 < len(s) && (s[i+1] == ',' || s[i+1] == '\\'):
			i++
			piece.WriteByte(s[i])
		case s[i] == ',':
			if err := end(); err != nil {
				return nil, err
			}
		default:
			piece.WriteByte(s[i])
		}
	}
	if err := end(); err != nil {
		return nil, err
	}
	return all, nil
}

var escape = strings.NewReplacer(`\`, `\\`, ",", `\,`)

// Format writes a descriptor as Parse reads it.
func Format(all []descriptor.Entry) string {
	pieces := make([]string, len(all))
	for i, e := range all {
		pieces[i] = escape.Replace(e.Key) + "=" + escape.Replace(e.Value)
	}
	return strings.Join(pieces, ",")
}

// Read reads the entries of a descriptor: a text or a list of maps.
func Read(v yamlform.Value) ([]descriptor.Entry, bool) {
	if !v.IsList() {
		text, ok := v.Text()
		if !ok {
			return nil, false
		}
		all, err := Parse(text)
		if err != nil {
			v.Errorf("%v", err)
		}
		return all, err == nil
	}
	var all []descriptor.Entry
	for item := range v.Items() {
		if !item.IsMap() {
			item.Errorf("an entry of a descriptor must be a map like `key: value`, not %s", item.What())
			return nil, false
		}
		for k, value := range item.Pairs() {
			name, ok := k.Text()
			if !ok {
				return nil, false
			}
			text := ""
			if !value.IsNull() {
				if text, ok = value.Text(); !ok {
					return nil, false
				}
			}
			all = append(all, descriptor.Entry{Key: name, Value: text})
		}
	}
	if len(all) == 0 {
		v.Errorf("a descriptor without entries: write `key=value`")
	}
	return all, len(all) > 0
}
