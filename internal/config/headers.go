package config

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/ratelimitd/ratelimitd/internal/config/yamlform"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// The bounds of the headers that a domain defines. Proxies reject answers whose headers are larger than some KiB.
const (
	MaxOwnHeaders  = 16
	MaxHeaderName  = 128  // bytes
	MaxHeaderValue = 256  // bytes, as the rule file writes it
	MaxHeaderSent  = 1024 // bytes, as an answer may have it
	MaxHeaderOf    = 32   // names of limits
)

// ReservedHeaders are the headers that belong to a connection or describe a body. A rule file that set one could break
// the answer.
var ReservedHeaders = []string{
	"connection", "content-encoding", "content-length", "content-type", "host", "keep-alive", "proxy-connection", "te",
	"trailer", "transfer-encoding", "upgrade",
	"grpc-message", "grpc-status",
}

// ServiceHeaders are the headers that the service sends on its own. A header of the same name with another meaning
// would mislead clients.
var ServiceHeaders = []string{descriptor.DelayHeader, descriptor.DegradedHeader, descriptor.WarningHeader}

// familyHeaders are the headers of each family, in the order of their bits. Operators may rename the headers of the
// first family.
var familyHeaders = [][]string{
	{"ratelimit-limit", "ratelimit-remaining", "ratelimit-reset"},
	{"x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset"},
	{"ratelimit-policy", "ratelimit"},
	{"retry-after"},
}

var (
	fieldNames = descriptor.HeaderFieldNames[1:] // without the name of FieldNone

	headersType = yamlform.Type{Kind: yamlform.ListOf, Of: "header", Names: descriptor.HeaderFamilyNames}
	headerName  = yamlform.Type{Kind: yamlform.Text, Pattern: "[0-9A-Za-z][0-9A-Za-z._-]*",
		Form: "letters, digits, `-`, `_` and `.`"}
	headerValue = yamlform.Type{Kind: yamlform.Text, Form: "text, with placeholders",
		// printable, with no space at an end
		Pattern: strings.ReplaceAll("#( *#)*", "#", `([!-z|~]|\{\{|\}\}|\{(`+strings.Join(fieldNames, "|")+`)\})`)}

	headerForm = yamlform.NewForm("header", "a custom header", []yamlform.Field[headerReading]{
		{Key: yamlform.Key{Name: "name", Type: headerName, Required: true, Extension: true,
			Doc: "the header's name"},
			Read: func(h *headerReading, v yamlform.Value) { h.readName(v) }},
		{Key: yamlform.Key{Name: "value", Type: headerValue, Required: true, Extension: true,
			Doc: "Placeholders: " + placeholders("and") + ". `{{` and `}}` are braces"},
			Read: func(h *headerReading, v yamlform.Value) { h.readValue(v) }},
		{Key: yamlform.Key{Name: "of", Type: yamlform.Type{Kind: yamlform.TextOrList}, Extension: true,
			Default: "as in other headers",
			Doc:     "the `name` of the limit to show. Of several, the one with the least left"},
			Read: func(h *headerReading, v yamlform.Value) { h.readOf(v) }},
		{Key: yamlform.Key{Name: "when", Type: yamlform.OneOf(descriptor.HeaderWhenNames...), Extension: true,
			Default: "both", Doc: "send it only with this outcome"},
			Read: func(h *headerReading, v yamlform.Value) {
				i, _ := v.Choice()
				h.header.When = descriptor.HeaderWhen(i)
			}},
	}...)

	wholeName = regexp.MustCompile("^" + headerName.Pattern + "$")
)

// placeholders lists the fields as a value writes them.
func placeholders(and string) string {
	all := make([]string, len(fieldNames))
	for i, name := range fieldNames {
		all[i] = "`{" + name + "}`"
	}
	last := len(all) - 1
	return strings.Join(all[:last], ", ") + " " + and + " " + all[last]
}

// headerReading is a header while its map is being read.
type headerReading struct {
	header descriptor.OwnHeader
	bad    bool // an error is recorded
}

func (h *headerReading) readName(v yamlform.Value) {
	name, ok := v.Text()
	h.bad = true
	switch {
	case !ok:
	case name == "": // an empty name is the same as none
		h.bad = false
	case !wholeName.MatchString(name):
		v.Errorf("%s is not a valid header name: write letters, digits and - _ . only, such as X-RateLimit-Limit",
			yamlform.Quote(name))
	case len(name) > MaxHeaderName:
		v.Errorf("a header's name has at most %d characters, this one has %d", MaxHeaderName, len(name))
	case slices.Contains(ReservedHeaders, strings.ToLower(name)):
		v.Errorf("%s belongs to the connection or the body of an answer, and a rule file must not set it: leave it out",
			yamlform.Quote(name))
	case slices.Contains(ServiceHeaders, strings.ToLower(name)):
		v.Errorf("the service sends %s itself, with another meaning: choose another name", yamlform.Quote(name))
	default:
		h.header.Name, h.bad = name, false
	}
}

func (h *headerReading) readValue(v yamlform.Value) {
	if v.IsMap() {
		v.Errorf("`value` must be text, not a map: a value that starts with a { needs quotes, such as \"{remaining}\"")
		h.bad = true
		return
	}
	text, ok := v.Text()
	if ok && text != "" {
		var err error
		if h.header.Text, err = parseHeaderValue(text); err != nil {
			v.Errorf("%v", err)
			ok = false
		}
	}
	h.bad = h.bad || !ok
}

func (h *headerReading) readOf(v yamlform.Value) {
	if v.IsList() && v.Len() == 0 {
		v.Errorf("`of` is empty: write the `name` of a limit, or leave it out")
		h.bad = true
	}
	if v.IsList() && v.Len() > MaxHeaderOf {
		v.Errorf("`of` has %d names, %d are the most: give the limits that the header describes one name, or write "+
			"two headers", v.Len(), MaxHeaderOf)
		h.bad = true
		return
	}
	for item := range v.Items() {
		name, ok := item.Text()
		switch {
		case !ok:
		case name == "" && !v.IsList(): // an empty name is the same as none
			continue
		case name == "":
			item.Errorf("an empty text in `of`: write the `name` of a limit")
		case slices.Contains(h.header.Of, name):
			item.Errorf("%s twice in `of`", yamlform.Quote(name))
		default:
			h.header.Of = append(h.header.Of, name)
			continue
		}
		h.bad = true
	}
}

// parseHeaderValue splits a value into its parts. The texts are printable, so that no value can start another header.
func parseHeaderValue(text string) (parts []descriptor.HeaderPart, err error) {
	if len(text) > MaxHeaderValue {
		return nil, fmt.Errorf("a header's value has at most %d characters, this one has %d", MaxHeaderValue, len(text))
	}
	if strings.TrimSpace(text) != text {
		return nil, fmt.Errorf("the header's value %s starts or ends with a space: leave it out", yamlform.Quote(text))
	}
	if i := strings.IndexFunc(text, func(r rune) bool { return r < ' ' || r > '~' }); i >= 0 {
		return nil, fmt.Errorf("the header's value %s has a character that is not printable ASCII: leave it out",
			yamlform.Quote(text))
	}
	defer func() {
		if n := longest(parts); err == nil && n > MaxHeaderSent {
			err = fmt.Errorf("the header's value can become %d characters long, %d are the most: {name} can have %d; use "+
				"fewer placeholders",
				n, MaxHeaderSent, descriptor.MaxNameInHeader)
		}
	}()
	var literal strings.Builder
	for text != "" {
		i := strings.IndexAny(text, "{}")
		if i < 0 {
			break
		}
		literal.WriteString(text[:i])
		if strings.HasPrefix(text[i+1:], text[i:i+1]) { // {{ and }} are braces
			literal.WriteByte(text[i])
			text = text[i+2:]
			continue
		}
		if text[i] == '}' {
			return nil, fmt.Errorf("a } without a {: a placeholder is one of %s; write }} for a brace", placeholders("and"))
		}
		name, rest, closed := strings.Cut(text[i+1:], "}")
		if !closed {
			return nil, fmt.Errorf("a { without a }: a placeholder is one of %s; write {{ for a brace", placeholders("and"))
		}
		field := slices.Index(descriptor.HeaderFieldNames, name)
		if field <= 0 {
			return nil, fmt.Errorf("%s", yamlform.UnknownWord("placeholder", name, fieldNames))
		}
		parts = append(parts, descriptor.HeaderPart{Text: literal.String(), Field: descriptor.HeaderField(field)})
		literal.Reset()
		text = rest
	}
	if literal.WriteString(text); literal.Len() > 0 {
		parts = append(parts, descriptor.HeaderPart{Text: literal.String()})
	}
	return parts, nil
}

// longest returns how many characters a header's value can have in an answer.
func longest(parts []descriptor.HeaderPart) (n int) {
	for _, p := range parts {
		n += len(p.Text) + p.Field.Longest()
	}
	return n
}

// readHeaders reads the headers of a domain. An empty list means none.
func readHeaders(v yamlform.Value) *descriptor.Headers {
	if !v.IsList() {
		v.Errorf("`headers` must be a list, not %s: write some of %s in brackets, headers as `{name: NAME, value: "+
			"VALUE}`, or `[]` for none",
			v.What(), yamlform.List(descriptor.HeaderFamilyNames, "and"))
		return nil
	}
	h := new(descriptor.Headers)
	defined := 0
	for item := range v.Items() {
		if item.IsMap() {
			if defined++; defined <= MaxOwnHeaders {
				ownHeader(item, h)
			}
			continue
		}
		i, ok := item.Choice()
		if !ok {
			continue
		}
		family := descriptor.HeaderFamilies(1 << i)
		if h.Families&family != 0 {
			item.Errorf("%s twice in `headers`", yamlform.Quote(descriptor.HeaderFamilyNames[i]))
		}
		h.Families |= family
	}
	if defined > MaxOwnHeaders {
		v.Errorf("`headers` defines %d headers, %d are the most: leave out the others", defined, MaxOwnHeaders)
	}
	for i := range h.Own {
		for family, names := range familyHeaders {
			if h.Families&(1<<family) != 0 && slices.Contains(names, strings.ToLower(h.Own[i].Name)) {
				v.Errorf("`headers` has the family `%s`, which has a header %s too: leave out one of them",
					descriptor.HeaderFamilyNames[family], yamlform.Quote(h.Own[i].Name))
			}
		}
	}
	return h
}

// ownHeader reads a header and adds it to the headers of its domain.
func ownHeader(item yamlform.Value, all *descriptor.Headers) {
	var h headerReading
	read, unknown := yamlform.Read(item, headerForm, &h)
	switch {
	case !read || unknown || h.bad:
		return
	case h.header.Name == "":
		item.Errorf("a header without a `name`: write `{name: NAME, value: VALUE}`")
		return
	case len(h.header.Text) == 0:
		item.Errorf("a header without a `value`: write `{name: NAME, value: VALUE}`")
		return
	case h.header.When == descriptor.HeaderPassed && slices.ContainsFunc(h.header.Text,
		func(p descriptor.HeaderPart) bool { return p.Field == descriptor.FieldRetryAfter }):
		item.Errorf("`when: passed` and `{retry_after}`: a request that passes has none, so the header would never be " +
			"sent; leave out one of them")
		return
	}
	for i := range all.Own {
		o := &all.Own[i]
		meet := o.When == h.header.When || o.When == descriptor.HeaderAlways || h.header.When == descriptor.HeaderAlways
		if meet && strings.EqualFold(o.Name, h.header.Name) && slices.Equal(o.Of, h.header.Of) {
			item.Errorf("header %s twice in the same answer: leave out one, or give them different `when` or `of`",
				yamlform.Quote(o.Name))
			return
		}
	}
	all.Own = append(all.Own, h.header)
}
