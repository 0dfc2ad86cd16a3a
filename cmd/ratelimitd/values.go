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

	"github.com/ratelimitd/ratelimitd/internal/config"
)

// The values of flags say what is allowed in tags of their own, and so do the errors about them:
//
//	range:"1..65535"      of numbers and times; either end may be left out
//	oneof:"tcp,udp"       of texts, in any case of letters
//	form:"header"         of texts, see forms
//	nonempty:""           of texts: a variable that is empty is unset

// values are the mappers of everything that flags may be.
func values() []kong.Option {
	return []kong.Option{
		kong.KindMapper(reflect.Bool, flagValue{}),
		kong.KindMapper(reflect.String, textValue{}),
		kong.KindMapper(reflect.Int, wholeValue),
		kong.KindMapper(reflect.Int64, wholeValue),
		kong.KindMapper(reflect.Uint32, wholeValue),
		kong.KindMapper(reflect.Float32, shareValue),
		kong.KindMapper(reflect.Float64, shareValue),
		kong.TypeMapper(reflect.TypeFor[time.Duration](), timeValue),
		kong.ValueFormatter(describe),
	}
}

// flagValue reads true and false in all the ways that the reference's environment may write them (1, t, T, TRUE, true, True
// and their opposites), and yes and no.
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
			return fmt.Errorf("must be true or false, this is %q", v)
		}
		target.SetBool(b)
		return nil
	default:
		return fmt.Errorf("must be true or false, this is %v", v)
	}
}

// textValue reads texts. Of those that a tag lists, the target gets the spelling of the tag.
type textValue struct{}

// Decode implements kong.Mapper.
func (textValue) Decode(ctx *kong.DecodeContext, target reflect.Value) error {
	var v string
	if err := ctx.Scan.PopValueInto("string", &v); err != nil {
		return err
	}
	tag := ctx.Value.Tag
	if tag.Has("oneof") {
		names := strings.Split(tag.Get("oneof"), ",")
		for _, name := range names {
			if strings.EqualFold(name, v) {
				target.SetString(name)
				return nil
			}
		}
		return fmt.Errorf("must be %s, this is %q", config.List(names, "or"), v)
	}
	if tag.Has("form") {
		if err := forms[tag.Get("form")](v); err != nil {
			return fmt.Errorf("%w, this is %q", err, v)
		}
	}
	target.SetString(v)
	return nil
}

// forms are what texts may have to look like.
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
			return errors.New("must be a path that begins with /, such as /metrics")
		}
		return nil
	},
}

// wholeValue reads whole numbers.
var wholeValue = ranged("a whole number", func(v string, target reflect.Value) error {
	if target.CanUint() {
		n, err := strconv.ParseUint(v, 10, target.Type().Bits())
		target.SetUint(n)
		return err
	}
	n, err := strconv.ParseInt(v, 10, target.Type().Bits())
	target.SetInt(n)
	return err
}, func(v reflect.Value) string { return fmt.Sprint(v.Interface()) })

// shareValue reads numbers that need not be whole.
var shareValue = ranged("a number", func(v string, target reflect.Value) error {
	n, err := strconv.ParseFloat(v, target.Type().Bits())
	target.SetFloat(n)
	return err
}, func(v reflect.Value) string { return fmt.Sprint(v.Interface()) })

// timeValue reads times as Go writes them.
var timeValue = ranged("a time with its unit, such as 150ms, 10s or 1h", func(v string, target reflect.Value) error {
	d, err := time.ParseDuration(v)
	target.SetInt(int64(d))
	return err
}, func(v reflect.Value) string { return v.Interface().(time.Duration).String() }) //nolint:forcetypeassert // it is one

// ranged reads what is called so, and compares it with the flag's range, whose ends are read alike.
func ranged(what string, parse func(string, reflect.Value) error, write func(reflect.Value) string) kong.MapperFunc {
	return func(ctx *kong.DecodeContext, target reflect.Value) error {
		token, err := ctx.Scan.PopValue(what)
		if err != nil {
			return err
		}
		text := fmt.Sprint(token.Value)
		least, most, err := ends(ctx.Value.Tag.Get("range"), target.Type(), parse)
		if err != nil {
			return err
		}
		value := reflect.New(target.Type()).Elem()
		switch err := parse(text, value); {
		case err != nil, least.IsValid() && less(value, least), most.IsValid() && less(most, value), isNaN(value):
			return fmt.Errorf("must be %s%s, this is %q", what, between(least, most, write), text)
		}
		target.Set(value)
		return nil
	}
}

// ends are the two of a range; one that is left out is not valid.
func ends(text string, of reflect.Type, parse func(string, reflect.Value) error) (least, most reflect.Value, err error) {
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

// between says a range.
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

// describe is the help of a flag: what it does, its default if that is not seen in its name, and its variable.
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
