package main

import (
	"errors"
	"fmt"
	"math"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/alecthomas/kong"

	"github.com/ratelimitd/ratelimitd/internal/config/yamlform"
)

// Tags of a flag define its allowed values. Errors about other values name the allowed ones:
//
//	range:"1..65535"      of numbers and times; either end may be left out
//	oneof:"tcp,udp"       of texts, in upper or lower case
//	form:"header"         of texts, see forms
//	nonempty:""           of texts: an empty variable counts as unset
//
// envoyproxy/ratelimit accepts every value that it can read. So its variables adjust a value instead of rejecting it,
// and log that once (adjustments.go).
//
//	clamp:"1..65535"      a value outside becomes the nearer end
//	nonpositive:"10s"     a value of 0 or less becomes this
//	otherwise:"text"      with oneof and form: any other text becomes this

// values returns the mappers for every type of flag. They record in a which values they adjust.
func values(a *adjustments) []kong.Option {
	wholeValue, shareValue, timeValue := numbers(a)
	return []kong.Option{
		kong.KindMapper(reflect.Bool, flagValue{}),
		kong.KindMapper(reflect.String, textValue{a}),
		kong.KindMapper(reflect.Int, wholeValue),
		kong.KindMapper(reflect.Int64, wholeValue),
		kong.KindMapper(reflect.Uint32, wholeValue),
		kong.KindMapper(reflect.Float32, shareValue),
		kong.KindMapper(reflect.Float64, shareValue),
		kong.TypeMapper(reflect.TypeFor[time.Duration](), timeValue),
		kong.ValueFormatter(describe),
	}
}

// flagValue reads true and false in all spellings of envoyproxy/ratelimit (1, t, T, TRUE, true, True and their
// opposites), and yes and no.
type flagValue struct{}

// IsBool tells kong that the flag needs no value.
func (flagValue) IsBool() bool { return true }

// Decode implements kong.Mapper.
func (flagValue) Decode(ctx *kong.DecodeContext, target reflect.Value) error {
	if ctx.Scan.Peek().Type != kong.FlagValueToken {
		target.SetBool(true)
		return nil
	}
	switch v := ctx.Scan.Pop().Value.(type) {
	case bool:
		target.SetBool(v)
		return nil
	case string:
		switch strings.ToLower(v) {
		case "yes", "no":
			target.SetBool(strings.EqualFold(v, "yes"))
			return nil
		}
		b, err := strconv.ParseBool(v)
		if err != nil {
			return fmt.Errorf("must be true or false, not %q", v)
		}
		target.SetBool(b)
		return nil
	default:
		return fmt.Errorf("must be true or false, not %v", v)
	}
}

// errNoValue is about a flag at the end of the command line.
var errNoValue = errors.New("needs a value")

// textValue reads texts. A text of the tag oneof is changed to the spelling of the tag.
type textValue struct{ adjusted *adjustments }

// Decode implements kong.Mapper.
func (t textValue) Decode(ctx *kong.DecodeContext, target reflect.Value) error {
	var v string
	if ctx.Scan.Peek().IsEOL() {
		return errNoValue
	}
	if err := ctx.Scan.PopValueInto("string", &v); err != nil {
		return err
	}
	tag := ctx.Value.Tag
	otherwise := func(err error) error {
		if !tag.Has("otherwise") {
			return err
		}
		t.adjusted.note(ctx.Value, v, tag.Get("otherwise"))
		target.SetString(tag.Get("otherwise"))
		return nil
	}
	if tag.Has("oneof") {
		names := strings.Split(tag.Get("oneof"), ",")
		for _, name := range names {
			if strings.EqualFold(name, v) {
				target.SetString(name)
				return nil
			}
		}
		return otherwise(fmt.Errorf("must be %s, not %q", yamlform.List(names, "or"), v))
	}
	if tag.Has("form") {
		if err := forms[tag.Get("form")](v); err != nil {
			return otherwise(fmt.Errorf("%w, not %q", err, v))
		}
	}
	target.SetString(v)
	return nil
}

// forms check texts, by the value of the tag form.
var forms = map[string]func(string) error{
	"header": func(v string) error {
		for _, r := range v {
			if r > '~' || r <= ' ' || strings.ContainsRune(`"(),/:;<=>?@[\]{}`, r) {
				return errors.New("must be a header's name, of letters, digits and -")
			}
		}
		return nil
	},
	"path": func(v string) error {
		if !strings.HasPrefix(v, "/") || strings.ContainsAny(v, " {}?#") {
			return errors.New("must be a path that starts with /, such as /metrics")
		}
		return nil
	},
}

// numbers returns the mappers of whole numbers, of other numbers, and of durations as Go writes them. Whole numbers may
// be written as for envoyproxy/ratelimit: 0x1000, 0b11, 1_000, and 010, which is 8.
func numbers(a *adjustments) (whole, share, span kong.MapperFunc) {
	plain := func(v reflect.Value) string { return fmt.Sprint(v.Interface()) }
	whole = a.ranged("a whole number", func(v string, target reflect.Value) error {
		if target.CanUint() {
			n, err := strconv.ParseUint(v, 0, target.Type().Bits())
			target.SetUint(n)
			return err
		}
		n, err := strconv.ParseInt(v, 0, target.Type().Bits())
		target.SetInt(n)
		return err
	}, plain)
	share = a.ranged("a number", func(v string, target reflect.Value) error {
		n, err := strconv.ParseFloat(v, target.Type().Bits())
		target.SetFloat(n)
		return err
	}, plain)
	span = a.ranged("a time with its unit, such as 150ms, 10s or 1h", func(v string, target reflect.Value) error {
		d, err := time.ParseDuration(v)
		target.SetInt(int64(d))
		return err
	}, func(v reflect.Value) string { return v.Interface().(time.Duration).String() }) //nolint:forcetypeassert // it is one
	return whole, share, span
}

// ranged returns a mapper that parses a value and checks it against the flag's range, whose ends are parsed in the same
// way.
func (m *adjustments) ranged(what string, parse func(string, reflect.Value) error,
	write func(reflect.Value) string) kong.MapperFunc {
	return func(ctx *kong.DecodeContext, target reflect.Value) error {
		if ctx.Scan.Peek().IsEOL() {
			return errNoValue
		}
		token, err := ctx.Scan.PopValue(what)
		if err != nil {
			return err
		}
		text, tag := fmt.Sprint(token.Value), ctx.Value.Tag
		least, most, err := ends(tag.Get("range"), target.Type(), parse)
		if err != nil {
			return err
		}
		value := reflect.New(target.Type()).Elem()
		switch err := parse(text, value); {
		case err != nil, least.IsValid() && less(value, least), most.IsValid() && less(most, value), isNaN(value) &&
			!tag.Has("clamp"):
			return fmt.Errorf("must be %s%s, not %q", what, between(least, most, write), text)
		}
		var used reflect.Value
		if tag.Has("nonpositive") && !less(reflect.Zero(target.Type()), value) {
			used = reflect.New(target.Type()).Elem()
			if err := parse(tag.Get("nonpositive"), used); err != nil {
				return err
			}
		} else if used, err = clamped(ctx.Value, value, parse); err != nil {
			return err
		}
		if tag.Has("clamp") || tag.Has("nonpositive") {
			m.note(ctx.Value, write(value), write(used))
		}
		target.Set(used)
		return nil
	}
}

// clamped returns the value, or the nearer end of the flag's clamp if the value is outside. NaN becomes the default.
func clamped(of *kong.Value, value reflect.Value, parse func(string, reflect.Value) error) (reflect.Value, error) {
	least, most, err := ends(of.Tag.Get("clamp"), value.Type(), parse)
	switch {
	case err != nil || !of.Tag.Has("clamp"):
		return value, err
	case isNaN(value):
		used := reflect.New(value.Type()).Elem()
		return used, parse(of.Default, used)
	case least.IsValid() && less(value, least):
		return least, nil
	case most.IsValid() && less(most, value):
		return most, nil
	}
	return value, nil
}

// ends returns the two ends of a range. An end that is left out is not valid.
func ends(text string, of reflect.Type, parse func(string,
	reflect.Value) error) (least, most reflect.Value, err error) {
	from, to, _ := strings.Cut(text, "..")
	for _, end := range []struct {
		text  string
		value *reflect.Value
	}{{from, &least}, {to, &most}} {
		if end.text == "" {
			continue
		}
		*end.value = reflect.New(of).Elem()
		if err := parse(end.text, *end.value); err != nil {
			return least, most, fmt.Errorf("the range %q: %w", text, err)
		}
	}
	if !least.IsValid() && of.Kind() == reflect.Uint32 {
		least = reflect.Zero(of)
	}
	return least, most, nil
}

// between describes a range in an error.
func between(least, most reflect.Value, write func(reflect.Value) string) string {
	switch {
	case least.IsValid() && most.IsValid():
		return " from " + write(least) + " to " + write(most)
	case least.IsValid():
		return ", at least " + write(least)
	case most.IsValid():
		return ", at most " + write(most)
	default:
		return ""
	}
}

func less(a, b reflect.Value) bool {
	switch {
	case a.CanFloat():
		return a.Float() < b.Float()
	case a.CanUint():
		return a.Uint() < b.Uint()
	default:
		return a.Int() < b.Int()
	}
}

func isNaN(v reflect.Value) bool {
	return v.CanFloat() && math.IsNaN(v.Float())
}

// describe returns the help of a flag: its effect, its default unless kong shows it already, and its variables.
func describe(v *kong.Value) string {
	var notes []string
	if v.HasDefault && v.Default != "" && (v.IsBool() || v.Tag.PlaceHolder != "") {
		notes = append(notes, "default "+v.Default)
	}
	for _, env := range v.Tag.Envs {
		notes = append(notes, "$"+env)
	}
	if len(notes) == 0 {
		return v.Help
	}
	return strings.TrimSuffix(v.Help, ".") + " (" + strings.Join(notes, "; ") + ")."
}
