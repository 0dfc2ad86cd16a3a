package server

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"unicode/utf8"

	"google.golang.org/protobuf/reflect/protoreflect"
)

// jsonFault finds what protojson rejects in the JSON of a message, to say where it is and what to write.
type jsonFault struct {
	body []byte
	in   *json.Decoder
}

// faultOf describes the first fault in a body that protojson has rejected.
func faultOf(body []byte, message protoreflect.MessageDescriptor) string {
	if len(bytes.TrimSpace(body)) == 0 {
		return fmt.Sprintf("the body is empty: send a %s as JSON", message.Name())
	}
	if !utf8.Valid(body) {
		return "the body is not UTF-8"
	}
	f := &jsonFault{body, json.NewDecoder(bytes.NewReader(body))}
	f.in.UseNumber()
	var skipped struct{}
	if syntax, ok := errors.AsType[*json.SyntaxError](json.Unmarshal(body, &skipped)); ok {
		if more, _ := errors.AsType[*json.SyntaxError](json.Unmarshal(append(body[:len(body):len(body)], ' '), &skipped)); more.Offset > syntax.Offset {
			return f.at(len(body)) + "the JSON ends too early: close what is open"
		}
		at := max(0, int(syntax.Offset)-1)
		r, _ := utf8.DecodeRune(body[at:])
		return f.at(at) + fmt.Sprintf("%q is not JSON here", r)
	}
	if said := f.message(message, ""); said != "" {
		return said
	}
	return fmt.Sprintf("the body is not the JSON of a %s", message.Name())
}

// at is the position of a byte, with which a description begins.
func (f *jsonFault) at(offset int) string {
	before := f.body[:offset]
	line := bytes.Count(before, []byte{'\n'}) + 1
	column := utf8.RuneCount(before[bytes.LastIndexByte(before, '\n')+1:]) + 1
	return fmt.Sprintf("line %d, column %d: ", line, column)
}

// next is where the next token begins.
func (f *jsonFault) next() int {
	at := int(f.in.InputOffset())
	return at + len(f.body[at:]) - len(bytes.TrimLeft(f.body[at:], " \t\r\n,:"))
}

// token reads a token. The body is JSON, so there is one.
func (f *jsonFault) token() (start int, t json.Token) {
	start = f.next()
	t, _ = f.in.Token()
	return start, t
}

// message describes the first fault in an object. path leads to it; empty: it is the whole body.
func (f *jsonFault) message(m protoreflect.MessageDescriptor, path string) string {
	if start, t := f.token(); t != json.Delim('{') {
		return f.wrong(start, path, "an object", t)
	}
	seen := make(map[protoreflect.Name]bool)
	for f.in.More() {
		start, t := f.token()
		key, _ := t.(string)
		field := m.Fields().ByJSONName(key)
		if field == nil {
			field = m.Fields().ByTextName(key)
		}
		switch {
		case field == nil:
			return f.at(start) + fmt.Sprintf("unknown field %s: the fields of %s are %s", clipped(key), m.Name(), fieldNames(m))
		case seen[field.Name()]:
			return f.at(start) + fmt.Sprintf("field %s twice: write it once", clipped(key))
		}
		seen[field.Name()] = true
		if said := f.field(field, strings.TrimPrefix(path+"."+key, ".")); said != "" {
			return said
		}
	}
	_, _ = f.token() // the end of the object
	return ""
}

// field describes the first fault in the value of a field.
func (f *jsonFault) field(field protoreflect.FieldDescriptor, path string) string {
	start := f.next()
	if f.body[start] == 'n' { // null, which is the same as an absent field
		_, _ = f.token()
		return ""
	}
	if !field.IsList() {
		return f.value(field, path)
	}
	if _, t := f.token(); t != json.Delim('[') {
		return f.wrong(start, path, "a list", t)
	}
	for i := 0; f.in.More(); i++ {
		if said := f.value(field, path+"["+strconv.Itoa(i)+"]"); said != "" {
			return said
		}
	}
	_, _ = f.token() // the end of the list
	return ""
}

// value describes the first fault in one value.
func (f *jsonFault) value(field protoreflect.FieldDescriptor, path string) string {
	kind := field.Kind()
	if kind == protoreflect.MessageKind {
		m := field.Message()
		if m.FullName().Parent() != "google.protobuf" {
			return f.message(m, path)
		}
		kind = m.Fields().Get(0).Kind() // google.protobuf.UInt64Value is a number here
	}
	start, t := f.token()
	want, ok := "", false
	switch kind {
	case protoreflect.StringKind:
		_, ok = t.(string)
		want = "a text in quotes"
	case protoreflect.BoolKind:
		_, ok = t.(bool)
		want = "true or false"
	case protoreflect.Uint32Kind:
		ok = isWhole(t, math.MaxUint32)
		want = fmt.Sprintf("a whole number from 0 to %d", uint32(math.MaxUint32))
	case protoreflect.Uint64Kind:
		ok = isWhole(t, math.MaxUint64)
		want = fmt.Sprintf("a whole number from 0 to %d", uint64(math.MaxUint64))
	case protoreflect.EnumKind:
		var names []string
		for i := range field.Enum().Values().Len() {
			name := string(field.Enum().Values().Get(i).Name())
			names = append(names, name)
			ok = ok || t == name
		}
		_, number := t.(json.Number)
		ok = ok || number
		want = "one of " + strings.Join(names, ", ")
	default:
		return ""
	}
	if ok {
		return ""
	}
	return f.wrong(start, path, want, t)
}

// isWhole reports whether a token is a whole number up to most, as a number or as text.
func isWhole(t json.Token, most float64) bool {
	text := ""
	switch t := t.(type) {
	case json.Number:
		text = t.String()
	case string:
		text = t
	}
	n, err := strconv.ParseFloat(text, 64)
	return err == nil && n >= 0 && n <= most && n == math.Trunc(n)
}

// wrong describes a value of the wrong type.
func (f *jsonFault) wrong(start int, path, want string, t json.Token) string {
	if path == "" {
		path = "the body"
	}
	got := "null"
	switch t := t.(type) {
	case json.Delim:
		got = "a list"
		if t == '{' {
			got = "an object"
		}
	case string:
		got = "the text " + clipped(t)
	case json.Number:
		got = "the number " + strings.Trim(clipped(t.String()), `"`)
	case bool:
		got = strconv.FormatBool(t)
	}
	return f.at(start) + fmt.Sprintf("%s must be %s, this is %s", path, want, got)
}

// fieldNames lists the fields of a message.
func fieldNames(m protoreflect.MessageDescriptor) string {
	var names []string
	for i := range m.Fields().Len() {
		names = append(names, m.Fields().Get(i).JSONName())
	}
	return strings.Join(names, ", ")
}

// clipped quotes a text, and leaves out what is long.
func clipped(text string) string {
	const most = 40
	if len(text) > most {
		return strconv.Quote(strings.ToValidUTF8(text[:most], "")) + "..."
	}
	return strconv.Quote(text)
}
