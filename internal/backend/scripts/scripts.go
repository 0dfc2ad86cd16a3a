// Package scripts holds the Lua that runs inside Redis.
//
// It owns the sources only (a file per script; the head of each says what it is given and what it answers). Whoever
// runs them packs the arguments and judges the reply: package redis. What the scripts do to a counter is said by the
// pure functions of package backend, and a test over there compares the two step by step.
//
// The scripts need Redis 6.2 or something that speaks like it: SET with PXAT, and Lua's struct library. They call no
// deprecated command, touch no key that is not in KEYS, and read the clock once.
package scripts

import _ "embed"

// Take settles the takes of one or many requests.
//
//go:embed take.lua
var Take string
