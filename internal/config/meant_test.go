package config

import (
	"strings"
	"testing"
)

// An error suggests a correction where one is clear: for the key of another program, an entry in a short form, or a
// unit with a number.
func TestMeant(t *testing.T) {
	for rule, want := range map[string]string{
		"key: a, limit: {unit: minute}":                   "unknown key `limit`: did you mean `rate_limit`?",
		"key: a, limits: [{unit: minute}]":                "unknown key `limits`: did you mean `rate_limits`?",
		"key: a, limit: 5":                                "unknown key `limit`: a descriptor has",
		"key: a, per: minute":                             "unknown key `per`: did you mean `unit`, a key of `rate_limit`?",
		"key: a, rate_limit: {per: minute}":               "unknown key `per`: did you mean `unit`?",
		"plan: gold":                                      "unknown key `plan`: an entry of the request is `key: plan` and `value: \"gold\"`",
		"key: a, plan: gold":                              "unknown key `plan`: a descriptor has",
		"plan: {gold: 5}":                                 "unknown key `plan`: a descriptor has",
		"key: a, rate_limit: {unit: 15m}":                 "unknown unit \"15m\": did you mean `unit: minute` and `unit_multiplier: 15`?",
		"key: a, rate_limit: {unit: 30 seconds}":          "unknown unit \"30 seconds\": did you mean `unit: second` and `unit_multiplier: 30`?",
		"key: a, rate_limit: {unit: 1h}":                  "unknown unit \"1h\": did you mean `hour`?",
		"key: a, rate_limit: {unit: s}":                   "unknown unit \"s\": did you mean `second`?",
		"key: a, rate_limit: {unit: 0m}":                  "unknown unit \"0m\": write `millisecond`",
		"key: a, rate_limit: {unit: 15x}":                 "unknown unit \"15x\": write `millisecond`",
		"key: a, rate_limit: {unit: 99999999999 minutes}": "unknown unit \"99999999999 minutes\": write `millisecond`",
		"key: a, rate_limit: {unit: minutes}":             "unknown unit \"minutes\": did you mean `minute`?",
	} {
		_, errs := Compile([]File{{Name: "f", Data: []byte("domain: d\ndescriptors: [{" + rule + "}]\n")}}, CompileOptions{})
		if len(errs) == 0 || !strings.Contains(errs[0].Msg, want) {
			t.Errorf("%s: %v, want %s", rule, errs, want)
		}
	}
}
